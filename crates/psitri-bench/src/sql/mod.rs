//! Workloads in SQL: what they ask of an engine ([`engine`]), how they are run ([`workload`]), and the plain one, inserts ([`insert`]).
pub mod engine;
pub mod insert;
pub mod workload;

pub use insert::InsertConfig;
