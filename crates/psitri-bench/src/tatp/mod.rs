//! TATP, the benchmark of a mobile operator's register of subscribers: four tables, seven short transactions, one client.
//!
//! The population and the mix are drawn with seeds ([`population`], [`mix`]), so that all engines get the same. An engine is behind
//! [`store::Store`]: [`sql`] puts any SQL engine there, [`native`] the `psitri` engine with keys encoded by hand. Everything a
//! transaction read or changed is repeated on a model of the loaded data afterwards and must be the same ([`model`], [`check`]).
//!
//! What is made fair, where a well-known implementation is not: every engine has the unique index on the numbers before the load; rows are
//! read to the end and statements reset; UpdateSubscriberData is one transaction and leaves nothing if the facility is missing; the
//! subscribers that transactions choose follow the definition's non-uniform distribution, or a uniform one if asked for.
pub mod check;
pub mod config;
pub mod mix;
pub mod model;
pub mod native;
pub mod population;
mod run;
pub mod sql;
pub mod store;

pub use config::TatpConfig;
