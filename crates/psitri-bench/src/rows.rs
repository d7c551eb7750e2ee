//! Rows of figures in a CSV file, for other programs.
//!
//! Rows are appended, so that the runs of several engines, each in its own process, and of several days share a file; the heading is
//! written when the file is new or empty.
use anyhow::{Context, Result};
use serde::Serialize;
use std::fs::OpenOptions;
use std::path::Path;

pub fn append<T: Serialize>(file: &Path, rows: &[T]) -> Result<()> {
    let write = || -> Result<()> {
        let file = OpenOptions::new().create(true).append(true).open(file)?;
        let is_empty = file.metadata()?.len() == 0;
        let mut writer = csv::WriterBuilder::new()
            .has_headers(is_empty)
            .from_writer(file);
        for row in rows {
            writer.serialize(row)?;
        }
        Ok(writer.flush()?)
    };
    write().with_context(|| format!("cannot add rows to {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Row {
        engine: &'static str,
        rate: f64,
    }

    #[test]
    fn there_is_one_heading() -> Result<()> {
        let directory = tempfile::tempdir()?;
        let file = directory.path().join("rows.csv");
        for engine in ["a", "b"] {
            append(&file, &[Row { engine, rate: 1.5 }])?;
        }
        assert_eq!(
            std::fs::read_to_string(&file)?,
            "engine,rate\na,1.5\nb,1.5\n"
        );
        Ok(())
    }
}
