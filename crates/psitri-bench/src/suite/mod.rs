//! Many cases in one go: [`cases`] says which, `runner.rs` runs them, [`results`] is what they leave behind.
pub mod cases;
mod machine;
pub mod results;
mod runner;

pub use runner::SuiteOptions;
