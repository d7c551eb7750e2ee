//! Which engines a program has, and the way from a name on the command line to a type.
use crate::engine::{Capabilities, Description, Engine, Settings};
use crate::engines::model::Model;
use crate::engines::psitri::{Psitri, PsitriDirect};
use crate::report::Report;
use crate::sql::workload::{SqlEntry, SqlWorkload};
use crate::workload::{Run, Workload};
use anyhow::Result;
use serde::{Deserialize, Serialize};

/// An engine of a registry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub name: String,
    pub capabilities: Capabilities,
    /// With default settings.
    pub description: Description,
}

impl Entry {
    pub fn of<E: Engine>(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            capabilities: E::CAPABILITIES,
            description: E::describe(&Settings::default()),
        }
    }
}

/// The engines that a program was built with.
pub trait Engines {
    /// In the order in which reports show them.
    fn entries(&self) -> Vec<Entry>;

    /// Runs the workload on the engine of that name; nothing if there is none.
    fn run<W: Workload>(&self, workload: &W, run: &Run<'_>) -> Result<Option<Report>>;

    /// The engines that understand SQL.
    fn sql_entries(&self) -> Vec<SqlEntry> {
        Vec::new()
    }

    /// Runs the workload on the SQL engine of that name; nothing if there is none.
    fn run_sql<W: SqlWorkload>(&self, _workload: &W, _run: &Run<'_>) -> Result<Option<Report>> {
        Ok(None)
    }
}

/// Declares a registry: `engines! { pub struct Name { "name" => Type, ... } }`, with `sql { "name" => Type, ... }` behind it if some of
/// its engines understand SQL. An entry may have attributes, `#[cfg(...)]` for one.
#[macro_export]
macro_rules! engines {
    ($(#[$meta:meta])* $visibility:vis struct $registry:ident {
        $($(#[$attribute:meta])* $name:literal => $engine:ty),* $(,)?
    } $(sql {
        $($(#[$sql_attribute:meta])* $sql_name:literal => $sql_engine:ty),* $(,)?
    })?) => {
        $(#[$meta])*
        $visibility struct $registry;

        impl $crate::registry::Engines for $registry {
            fn entries(&self) -> Vec<$crate::registry::Entry> {
                let mut entries = Vec::new();
                $($(#[$attribute])* {
                    entries.push($crate::registry::Entry::of::<$engine>($name));
                })*
                entries
            }

            fn run<W: $crate::workload::Workload>(
                &self,
                workload: &W,
                run: &$crate::workload::Run<'_>,
            ) -> anyhow::Result<Option<$crate::report::Report>> {
                $($(#[$attribute])*
                if run.engine == $name {
                    return $crate::workload::run::<W, $engine>(workload, run).map(Some);
                })*
                Ok(None)
            }

            $(
            #[allow(unused_mut)] // Attributes may leave none.
            fn sql_entries(&self) -> Vec<$crate::sql::workload::SqlEntry> {
                let mut entries = Vec::new();
                $($(#[$sql_attribute])* {
                    entries.push($crate::sql::workload::SqlEntry::of::<$sql_engine>($sql_name));
                })*
                entries
            }

            fn run_sql<W: $crate::sql::workload::SqlWorkload>(
                &self,
                workload: &W,
                run: &$crate::workload::Run<'_>,
            ) -> anyhow::Result<Option<$crate::report::Report>> {
                let _ = workload;
                $($(#[$sql_attribute])*
                if run.engine == $sql_name {
                    return $crate::sql::workload::run::<W, $sql_engine>(workload, run).map(Some);
                })*
                Ok(None)
            }
            )?
        }
    };
}

engines! {
    /// What is in a plain build.
    pub struct Builtin {
        "psitri" => Psitri,
        "psitri-direct" => PsitriDirect,
        "model" => Model,
    }
}

/// Engines that `all` does not mean: they are checks of the harness, not candidates.
pub const NOT_IN_ALL: &[&str] = &["model"];
