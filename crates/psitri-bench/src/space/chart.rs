//! The charts of a workload: sizes over time, and their ratio.
use super::sampler::Sample;
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

/// More points than the chart has pixels show nothing more; of those that share a pixel, the greatest is drawn.
const POINTS_MAX: usize = 360;

struct Figure {
    label: &'static str,
    of: fn(&Sample) -> f64,
}

pub fn write(out: &Path, name: &str, samples: &[Sample]) -> Result<()> {
    let figure = |label, of| Figure { label, of };
    let sizes = [
        figure("data file", |s| s.reading.data_bytes as f64),
        figure("reachable", |s| s.reading.reachable_bytes as f64),
        figure("log", |s| s.reading.log_bytes as f64),
    ];
    let ratio = [figure("data file to reachable bytes", |s| {
        if s.reading.reachable_bytes < super::REACHABLE_BYTES_MIN {
            return 0.0;
        }
        s.reading.ratio()
    })];
    for (file, label, unit, figures) in [
        (
            format!("{name}.svg"),
            "sizes over time",
            Unit::Bytes,
            &sizes[..],
        ),
        (
            format!("{name}-ratio.svg"),
            "ratio of data file to reachable bytes over time",
            Unit::Times,
            &ratio[..],
        ),
    ] {
        let line = |(at, figure): (usize, &Figure)| Line {
            mark: Mark {
                label: figure.label.to_owned(),
                class: ["ours-0", "other-0", "other-1"][at].to_owned(),
                ours: at == 0,
                dashed: false,
            },
            points: points(samples, figure.of),
        };
        let drawing = draw(Lines {
            label,
            x_label: "seconds",
            axis: Axis::Number,
            unit,
            lines: figures.iter().enumerate().map(line).collect(),
        });
        let path = out.join(file);
        fs::write(&path, standalone(&drawing))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn points(samples: &[Sample], of: fn(&Sample) -> f64) -> Vec<(f64, f64)> {
    let share = samples.len().div_ceil(POINTS_MAX).max(1);
    let greatest = |part: &[Sample]| part.iter().map(of).fold(0.0, f64::max);
    samples
        .chunks(share)
        .map(|part| (part[0].second, greatest(part)))
        .collect()
}
