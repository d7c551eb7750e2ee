//! The workloads pass on correct engines, report what they promise, and find out engines that are not correct.

mod bank_checks_itself;
mod bank_on_psitri;
mod bank_sweep;
mod db_bench;
mod faulty;
mod lmdb_style_and_emdb_workloads_find_faults;
mod lmdb_style_and_emdb_workloads_pass;
mod tatp_on_psitri;
mod tides;
mod upsert;
