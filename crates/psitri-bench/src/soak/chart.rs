//! The charts of a soak: memory, and files, over time.
use super::{Figure, Sample};
use crate::page::{
    chart::{
        Mark,
        lines::{Axis, Line, Lines, draw},
        standalone,
    },
    figures::Unit,
};
use anyhow::{Context, Result};
use std::{fs, path::Path};

pub fn write(out: &Path, samples: &[Sample]) -> Result<()> {
    let figure = |label, of| Figure { label, of };
    let memory = [figure("not backed by a file", |s| s.anonymous_bytes)];
    let files = [
        figure("data", |s| s.data_bytes),
        figure("log", |s| s.log_bytes),
    ];
    for (name, label, figures) in [
        ("memory.svg", "memory over time", &memory[..]),
        ("files.svg", "size of the files over time", &files[..]),
    ] {
        let line = |(at, figure): (usize, &Figure)| Line {
            mark: Mark {
                label: figure.label.to_owned(),
                class: ["ours-0", "other-0"][at].to_owned(),
                ours: at == 0,
                dashed: false,
            },
            points: samples
                .iter()
                .map(|sample| (sample.second, (figure.of)(sample) as f64))
                .collect(),
        };
        let drawing = draw(Lines {
            label,
            x_label: "seconds",
            axis: Axis::Number,
            unit: Unit::Bytes,
            lines: figures.iter().enumerate().map(line).collect(),
        });
        let path = out.join(name);
        fs::write(&path, standalone(&drawing))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
