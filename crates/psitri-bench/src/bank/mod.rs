//! The bank: transfers between accounts with a log entry each, modelled on TPC-B.
//!
//! A transfer reads two balances, writes two balances and inserts a log entry, in one transaction. Accounts are picked with a triangular
//! distribution. Everything is decided by a seed, so the number of successful transfers is a checksum of the whole run.
//! The workload is that of the PsiTri project's bank benchmark, down to the draws.
mod attempts;
mod audit;
mod check;
mod config;
pub(crate) mod encoding;
mod harness;
mod limit;
mod oracle;
mod reader;
mod run;
mod sweep;
pub(crate) mod transfers;

pub use config::{BankConfig, Successes};
pub use harness::HarnessConfig;
