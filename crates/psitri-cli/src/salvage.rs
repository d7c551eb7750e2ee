//! The command that rebuilds a damaged database.
use crate::commands::{FOUND, Outcome, not_found, print_verdict};
use crate::failure::Failure;
use crate::text;
use indicatif::{ProgressBar, ProgressStyle};
use psitri::{
    Error, LostRange, SalvageOptions, SalvagePhase, SalvageReport, SalvagedFrom, SalvagedKeyspace,
    StorageError,
};
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;

pub fn salvage(
    damaged: &Path,
    target: &Path,
    past_damage: bool,
    json: bool,
    out: &mut impl Write,
) -> Outcome {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {human_pos} of {human_len}");
    // Shown on terminals only.
    let bar = ProgressBar::new(0).with_style(style.expect("the template is right"));
    let mut report = |phase, done, all| {
        bar.set_message(match phase {
            SalvagePhase::Trees => "keys",
            SalvagePhase::Scan => "bytes scanned",
            _ => "commits",
        });
        bar.set_length(all);
        bar.set_position(done);
    };
    let options = SalvageOptions::new()
        .past_damage(past_damage)
        .progress(&mut report);
    let report = psitri::salvage(damaged, target, options).map_err(|error| match error {
        Error::NotFound { .. } => Failure::Missing(damaged.to_owned()),
        Error::Storage(StorageError::Locked { .. }) => Failure::Open(damaged.to_owned(), error),
        other => Failure::Operation(other),
    })?;
    bar.finish_and_clear();
    if json {
        print_verdict(out, &report_json(&report))?;
    } else {
        print_verdict(out, &report)?;
    }
    Ok(if report.is_whole() {
        FOUND
    } else {
        not_found()
    })
}

fn report_json(report: &SalvageReport) -> Value {
    json!({
        "whole": report.is_whole(),
        "checkpoint": report.checkpoint,
        "damage": report.damage,
        "keyspaces_lost": report.keyspaces_lost,
        "entries_unknown": report.entries_unknown,
        "snapshots_left_out": report.snapshots_left_out,
        "subtrees_detached": report.subtrees_detached(),
        "trees_left_out": report.trees_left_out,
        "keyspaces": report.keyspaces.iter().map(keyspace_json).collect::<Vec<_>>(),
        "log": {
            "commits": report.log.commits,
            "commits_passed_by": report.log.commits_passed_by,
            "values_lost": report.log.values_lost,
            "damage": report.log.damage,
        },
    })
}

fn keyspace_json(keyspace: &SalvagedKeyspace) -> Value {
    let values_lost = keyspace.values_lost.iter().map(|key| text::hex(key));
    json!({
        "name": keyspace.name,
        "id": keyspace.id,
        "from": match keyspace.from {
            SalvagedFrom::Checkpoint => "checkpoint",
            SalvagedFrom::FoundCatalog => "found catalog",
            SalvagedFrom::FoundTree => "found tree",
            SalvagedFrom::Log => "log",
            SalvagedFrom::LogWithoutName => "log without name",
            _ => "other",
        },
        "keys": keyspace.keys,
        "keys_lost": keyspace.keys_lost(),
        "lost": keyspace.lost.iter().map(range_json).collect::<Vec<_>>(),
        "values_lost_hex": values_lost.collect::<Vec<_>>(),
        "possibly_old": keyspace.possibly_old,
        "possibly_old_in": keyspace.possibly_old_in,
        "was_subtree": keyspace.was_subtree,
    })
}

fn range_json(range: &LostRange) -> Value {
    json!({
        "from_hex": text::hex(&range.from),
        "to_hex": range.to.as_deref().map(text::hex),
        "keys": range.keys,
        "offset": range.offset,
        "what": range.what,
    })
}
