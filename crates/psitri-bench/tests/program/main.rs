//! `psitri-bench` as its users see it.

mod command_line;
mod space;
mod suite_names_its_commit;
mod suite_repeats_what_is_short;
