//! `psitri-bench` as its users see it.

mod command_line;
mod space;
mod suite_names_its_commit;
