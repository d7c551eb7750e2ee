//! Which figures a report has, and how to read each: one table says the unit, which direction is better, and whether the figure ranks
//! engines.
//!
//! Primary figures are throughput, time and size; secondary ones latency, memory and processor time; then comes upkeep, the time of opening,
//! filling, checkpoints, compaction and closing. The rest is context: shown, never compared. A figure
//! that the table does not know is context, so that a new workload cannot rank engines by accident.
use crate::emdb::{Comparative, ConcurrentReads, GroupCommit, WriteThrough};
use crate::lmdb_style::LmdbStyle;
use crate::report::{Phase, Report};
use crate::workload::Workload;
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    Higher,
    Lower,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    Primary,
    Secondary,
    /// Of what comes before and after the work.
    Upkeep,
    Context,
}

/// The ranks that are compared, and what they are called.
pub const RANKS: [(Rank, &str); 3] = [
    (Rank::Primary, "Throughput, time, size"),
    (Rank::Secondary, "Latency, memory, processor time"),
    (
        Rank::Upkeep,
        "Opening, filling, checkpoints, compaction, closing",
    ),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    PerSecond,
    Seconds,
    Milliseconds,
    Microseconds,
    Bytes,
    /// A share or a factor.
    Times,
    Plain,
}

#[derive(Debug)]
pub struct Kind {
    /// A name that begins with `*` stands for all that end so.
    name: &'static str,
    /// In words; empty where the name of the figure has to do.
    title: &'static str,
    pub better: Option<Better>,
    pub unit: Unit,
    pub rank: Rank,
}

const fn kind(
    name: &'static str,
    title: &'static str,
    better: Option<Better>,
    unit: Unit,
    rank: Rank,
) -> Kind {
    Kind {
        name,
        title,
        better,
        unit,
        rank,
    }
}

const HIGHER: Option<Better> = Some(Better::Higher);
const LOWER: Option<Better> = Some(Better::Lower);

/// The first line that fits counts.
#[rustfmt::skip]
const KINDS: &[Kind] = &[
    kind("ops_per_second", "operations a second", HIGHER, Unit::PerSecond, Rank::Primary),
    kind("reads_per_second", "concurrent reads a second", HIGHER, Unit::PerSecond, Rank::Primary),
    kind("worst_second", "operations in the worst second", HIGHER, Unit::PerSecond, Rank::Primary),
    kind("seconds", "time", LOWER, Unit::Seconds, Rank::Primary),
    kind("file_bytes", "size on disk", LOWER, Unit::Bytes, Rank::Primary),
    kind("latency_mean", "latency, mean", LOWER, Unit::Microseconds, Rank::Context),
    kind("latency_p50", "latency, median", LOWER, Unit::Microseconds, Rank::Context),
    kind("latency_p95", "latency, p95", LOWER, Unit::Microseconds, Rank::Context),
    kind("latency_p99", "latency, p99", LOWER, Unit::Microseconds, Rank::Secondary),
    kind("latency_p999", "latency, p99.9", LOWER, Unit::Microseconds, Rank::Context),
    kind("latency_max", "latency, longest", LOWER, Unit::Microseconds, Rank::Context),
    kind("peak_anonymous_bytes", "peak memory without mapped files", LOWER, Unit::Bytes, Rank::Secondary),
    kind("peak_resident_bytes", "peak memory with mapped files", LOWER, Unit::Bytes, Rank::Secondary),
    kind("phase_file_bytes", "size on disk after the phase", LOWER, Unit::Bytes, Rank::Context),
    kind("data_bytes", "data file", LOWER, Unit::Bytes, Rank::Context),
    kind("log_bytes", "log", LOWER, Unit::Bytes, Rank::Context),
    kind("reachable_bytes", "live data", LOWER, Unit::Bytes, Rank::Context),
    kind("raw_bytes", "keys and values", None, Unit::Bytes, Rank::Context),
    kind("worst_to_median", "worst second as a share of the median second", HIGHER, Unit::Times, Rank::Context),
    kind("limit_share", "share of the upper bound", HIGHER, Unit::Times, Rank::Context),
    // What operations a second say in another unit, or of another mean, is not counted once more.
    kind("mib_per_second", "MiB a second", HIGHER, Unit::PerSecond, Rank::Context),
    kind("entries_per_second", "entries a second", HIGHER, Unit::PerSecond, Rank::Context),
    // Attempts a second say the same.
    kind("successes_per_second", "transfers a second", HIGHER, Unit::PerSecond, Rank::Context),
    kind("harmonic_mean_per_second", "harmonic mean of the rounds", HIGHER, Unit::PerSecond, Rank::Context),
    // With less than a hundred windows, the worst one.
    kind("p1_window_per_second", "", HIGHER, Unit::PerSecond, Rank::Context),
    kind("best_round_per_second", "best round", HIGHER, Unit::PerSecond, Rank::Context),
    kind("*_per_second", "", HIGHER, Unit::PerSecond, Rank::Primary),
    kind("*cpu_seconds", "", LOWER, Unit::Seconds, Rank::Secondary),
    kind("*cpu_user_seconds", "", LOWER, Unit::Seconds, Rank::Secondary),
    kind("*cpu_system_seconds", "", LOWER, Unit::Seconds, Rank::Secondary),
    kind("*_seconds", "", LOWER, Unit::Seconds, Rank::Primary),
    kind("*_milliseconds", "", LOWER, Unit::Milliseconds, Rank::Primary),
    kind("open_ms", "", LOWER, Unit::Milliseconds, Rank::Upkeep),
    // One cold call, beside the rate of the same.
    kind("first_ms", "", LOWER, Unit::Milliseconds, Rank::Context),
    kind("min_ms", "", LOWER, Unit::Milliseconds, Rank::Context),
    kind("max_ms", "", LOWER, Unit::Milliseconds, Rank::Context),
    kind("*_ms", "", LOWER, Unit::Milliseconds, Rank::Primary),
    kind("*p99_us", "", LOWER, Unit::Microseconds, Rank::Secondary),
    kind("*p99_microseconds", "", LOWER, Unit::Microseconds, Rank::Secondary),
    kind("*_us", "", LOWER, Unit::Microseconds, Rank::Context),
    kind("*_microseconds", "", LOWER, Unit::Microseconds, Rank::Context),
    kind("*size_bytes", "", LOWER, Unit::Bytes, Rank::Primary),
    kind("*file_bytes", "", LOWER, Unit::Bytes, Rank::Primary),
    kind("*memory_bytes", "", LOWER, Unit::Bytes, Rank::Secondary),
    kind("*resident_bytes", "", LOWER, Unit::Bytes, Rank::Secondary),
    kind("*written_bytes", "", LOWER, Unit::Bytes, Rank::Secondary),
    kind("*_bytes", "", None, Unit::Bytes, Rank::Context),
    // Next to nothing where the system's cache has the data.
    kind("read_amplification", "", LOWER, Unit::Times, Rank::Context),
    kind("*_amplification", "", LOWER, Unit::Times, Rank::Secondary),
    kind("*_ratio", "", None, Unit::Times, Rank::Context),
];

static UNKNOWN: Kind = kind("*", "", None, Unit::Plain, Rank::Context);

/// The time of a phase that only makes ready for what is measured, or puts away what was.
static UPKEEP_TIME: Kind = kind("seconds", "time", LOWER, Unit::Seconds, Rank::Upkeep);

/// Some engines have nothing to do in these phases.
const UPKEEP_PHASES: &[&str] = &["populate", "checkpoint", "close"];

/// Phases that are there for their size. The time of the first is that of a checkpoint, the time of the second that of a compaction.
const SIZE_PHASES: &[&str] = &["uncompacted size", "compacted size"];

/// Work of the harness, not of an engine.
const HARNESS_PHASES: &[&str] = &["names", "generate pairs"];

/// Of the bank, where it is divided into as many.
const ROUNDS_MIN: u64 = 10;
const WORST_ROUND: &str = "worst_round_per_second";

/// The figures of the table of latencies, and what heads their columns there.
pub const LATENCIES: [(&str, &str); 6] = [
    ("latency_mean", "mean"),
    ("latency_p50", "median"),
    ("latency_p95", "p95"),
    ("latency_p99", "p99"),
    ("latency_p999", "p99.9"),
    ("latency_max", "longest"),
];

/// Whether a phase is one of these, which are in words.
fn is_one_of(phases: &[&str], phase: &str) -> bool {
    phases.contains(&phase.replace('_', " ").as_str())
}

impl Kind {
    pub fn of(name: &str) -> &'static Self {
        let fits = |kind: &&Self| match kind.name.strip_prefix('*') {
            Some(ending) => name.ends_with(ending),
            None => kind.name == name,
        };
        KINDS.iter().find(fits).unwrap_or(&UNKNOWN)
    }
}

/// What a figure is of: of a phase, or of the whole run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    pub phase: Option<String>,
    pub figure: String,
}

impl Name {
    pub fn kind(&self) -> &'static Kind {
        let is_upkeep =
            |phase: &String| is_one_of(UPKEEP_PHASES, phase) || is_one_of(SIZE_PHASES, phase);
        if self.figure == "seconds" && self.phase.as_ref().is_some_and(is_upkeep) {
            return &UPKEEP_TIME;
        }
        Kind::of(&self.figure)
    }

    /// The figure without its phase, in words.
    pub fn figure_words(&self) -> String {
        let title = self.kind().title;
        if title.is_empty() {
            self.figure.replace('_', " ")
        } else {
            title.to_owned()
        }
    }

    pub fn phase_words(&self) -> Option<String> {
        self.phase.as_ref().map(|phase| phase.replace('_', " "))
    }

    pub fn words(&self) -> String {
        match self.phase_words() {
            Some(phase) => format!("{phase}: {}", self.figure_words()),
            None => self.figure_words(),
        }
    }
}

/// All figures of a report, in its own order.
pub fn of(report: &Report) -> Vec<(Name, f64)> {
    let mut figures = Vec::new();
    let mut add = |phase: Option<&str>, figure: &str, value: Option<f64>| {
        if let Some(value) = value.filter(|value| value.is_finite()) {
            let name = Name {
                phase: phase.map(str::to_owned),
                figure: figure.to_owned(),
            };
            figures.push((name, value));
        }
    };
    let bytes = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64);
    for phase in &report.phases {
        let of = Some(phase.name.as_str());
        if is_one_of(HARNESS_PHASES, &phase.name) {
            continue;
        }
        if phase.ops > 0 {
            add(of, "ops_per_second", Some(phase.ops_per_second));
        } else if phase.seconds > 0.0 {
            add(of, "seconds", Some(phase.seconds));
        }
        add(of, "reads_per_second", phase.reads_per_second);
        if let Some(steadiness) = &phase.steadiness {
            add(of, "worst_second", bytes(steadiness.worst_second));
            add(of, "worst_to_median", steadiness.worst_to_median);
        }
        if let Some(latency) = &phase.latency_us {
            // Reports from before these two were measured have zeros there.
            let measured = |value: f64| (value > 0.0).then_some(value);
            add(of, "latency_mean", measured(latency.mean));
            add(of, "latency_p50", Some(latency.p50));
            add(of, "latency_p95", measured(latency.p95));
            let of_enough = |samples: u64, value: f64| (latency.count >= samples).then_some(value);
            add(of, "latency_p99", of_enough(100, latency.p99));
            add(of, "latency_p999", of_enough(1_000, latency.p999));
            add(of, "latency_max", Some(latency.max));
        }
        let file = if is_there_for_its_size(phase) {
            "file_bytes"
        } else {
            "phase_file_bytes"
        };
        add(of, file, bytes(phase.file_bytes));
        // Without a commit in each round, the worst one has no more to say than which one had it.
        let commits = phase.latency_us.as_ref().map_or(u64::MAX, |it| it.count);
        let has_rounds = commits >= ROUNDS_MIN;
        for (name, &value) in &phase.figures {
            add(
                of,
                name,
                (has_rounds || name != WORST_ROUND).then_some(value),
            );
        }
    }
    if let Some(size) = &report.size {
        // Nothing on disk is an engine in memory, not a small one.
        add(
            None,
            "file_bytes",
            bytes((size.file_bytes > 0).then_some(size.file_bytes)),
        );
        add(None, "data_bytes", bytes(size.data_bytes));
        add(None, "log_bytes", bytes(size.log_bytes));
        add(None, "reachable_bytes", bytes(size.reachable_bytes));
        add(None, "raw_bytes", bytes(Some(size.raw_bytes)));
    }
    add(
        None,
        "peak_anonymous_bytes",
        bytes(report.peak_anonymous_bytes),
    );
    add(None, "peak_resident_bytes", bytes(report.peak_rss_bytes));
    add(None, "limit_share", report.limit_share);
    figures
}

/// A phase in which nothing else is measured, or one of those whose time is that of what makes the size.
fn is_there_for_its_size(phase: &Phase) -> bool {
    let nothing_else = phase.ops == 0 && phase.seconds == 0.0;
    nothing_else || is_one_of(SIZE_PHASES, &phase.name)
}

/// How durable the commits of a run were, as its configuration says, in the names of the sync modes.
pub fn durability(config: &serde_json::Value) -> Option<String> {
    let find = |key: &str| Some(config.get(key)?.as_str()?.to_owned());
    let of_sqlite = |synchronous: String| match synchronous.as_str() {
        "off" => "none (synchronous off)".to_owned(),
        "normal" => "async (synchronous normal)".to_owned(),
        "full" => "sync (synchronous full)".to_owned(),
        _ => format!("synchronous {synchronous}"),
    };
    find("sync_mode")
        .or_else(|| find("durability"))
        .or_else(|| find("synchronous").map(of_sqlite))
}

/// Workloads that have no option for it: workload, phase in words, and how durable its commits are. A `*` stands for all phases that no
/// line before it names; without a phase it is what is said of the whole run.
const OWN_DURABILITY: &[(&str, Option<&str>, &str)] = &[
    (LmdbStyle::NAME, Some("nosync writes"), "none"),
    (LmdbStyle::NAME, Some("*"), "sync"),
    (LmdbStyle::NAME, None, "sync, and none in nosync writes"),
    (Comparative::NAME, Some("compare read"), "none"),
    (
        Comparative::NAME,
        None,
        "none, with a flush at the end that is timed",
    ),
    (
        ConcurrentReads::NAME,
        None,
        "none, with a flush before the reads",
    ),
    (GroupCommit::NAME, None, "sync"),
    (WriteThrough::NAME, Some("sync"), "sync"),
    (WriteThrough::NAME, Some("write through"), "write-through"),
    (WriteThrough::NAME, None, "sync and write-through"),
];

/// How durable the commits of a phase are, or those of the whole run, where the workload and not its configuration says so.
pub fn own_durability(workload: &str, phase: Option<&str>) -> Option<&'static str> {
    let phase = phase.map(|phase| phase.replace('_', " "));
    OWN_DURABILITY
        .iter()
        .filter(|(known, ..)| *known == workload)
        .find(|(_, of, _)| match (of, &phase) {
            (Some(of), Some(phase)) => *of == "*" || of == phase,
            (Some(_), None) => false,
            (None, _) => true,
        })
        .map(|(.., words)| *words)
}

/// Option and value of each argument; the same for `--option value` and `--option=value`.
pub fn options(arguments: &[String]) -> BTreeMap<String, String> {
    let mut options = BTreeMap::new();
    let mut open: Option<String> = None;
    for argument in arguments {
        if let Some(option) = argument.strip_prefix("--") {
            if let Some(flag) = open.take() {
                options.insert(flag, String::new());
            }
            match option.split_once('=') {
                Some((option, value)) => {
                    options.insert(option.to_owned(), value.to_owned());
                }
                None => open = Some(option.to_owned()),
            }
        } else if let Some(option) = open.take() {
            options.insert(option, argument.clone());
        }
    }
    if let Some(flag) = open {
        options.insert(flag, String::new());
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_figures_of_a_workload_are_known_by_their_unit() {
        let rank = |name: &str| (Kind::of(name).rank, Kind::of(name).better);
        assert_eq!(rank("worst_round_ops_per_second"), (Rank::Primary, HIGHER));
        assert_eq!(rank("load_cpu_seconds"), (Rank::Secondary, LOWER));
        assert_eq!(rank("total_cpu_system_seconds"), (Rank::Secondary, LOWER));
        assert_eq!(rank("open_ms"), (Rank::Upkeep, LOWER));
        assert_eq!(rank("max_ms"), (Rank::Context, LOWER));
        assert_eq!(rank("compaction_seconds"), (Rank::Primary, LOWER));
        assert_eq!(rank("mib_per_second"), (Rank::Context, HIGHER));
        assert_eq!(rank("writes_per_second"), (Rank::Primary, HIGHER));
        assert_eq!(rank("something"), (Rank::Context, None));
    }

    #[test]
    fn the_time_of_closing_is_upkeep_and_its_latency_is_not() {
        let rank = |phase: &str, figure: &str| {
            let (phase, figure) = (Some(phase.to_owned()), figure.to_owned());
            Name { phase, figure }.kind().rank
        };
        assert_eq!(rank("close", "seconds"), Rank::Upkeep);
        assert_eq!(rank("uncompacted_size", "seconds"), Rank::Upkeep);
        assert_eq!(rank("compacted_size", "seconds"), Rank::Upkeep);
        assert_eq!(rank("compacted_size", "file_bytes"), Rank::Primary);
        assert_eq!(rank("close", "latency_p99"), Rank::Secondary);
        assert_eq!(rank("total", "seconds"), Rank::Primary);
    }

    #[test]
    fn durability_is_said_in_the_names_of_the_sync_modes() {
        let config = |key: &str, value: &str| durability(&serde_json::json!({ key: value }));
        assert_eq!(config("sync_mode", "async").as_deref(), Some("async"));
        let off = config("synchronous", "off");
        assert_eq!(off.as_deref(), Some("none (synchronous off)"));
        let full = config("synchronous", "full");
        assert_eq!(full.as_deref(), Some("sync (synchronous full)"));
        assert_eq!(config("records", "20"), None);

        let of = own_durability;
        assert_eq!(of("lmdb-style", Some("individual_writes")), Some("sync"));
        assert_eq!(of("lmdb-style", Some("nosync_writes")), Some("none"));
        let whole = "sync, and none in nosync writes";
        assert_eq!(of("lmdb-style", None), Some(whole));
        let both = of("write-through", None);
        assert_eq!(both, Some("sync and write-through"));
        let one = of("write-through", Some("write_through"));
        assert_eq!(one, Some("write-through"));
        assert_eq!(of("group-commit", Some("one_thread")), Some("sync"));
        assert_eq!(of("bank", Some("write_only")), None);
    }

    #[test]
    fn what_only_the_harness_does_is_no_figure() {
        let mut report = Report::new("lmdb-style", "psitri", serde_json::Value::Null);
        let phases = ["names", "generate_pairs", "bulk_load"];
        report.phases = phases.map(|name| Phase::new(name, 10, 1.0)).to_vec();
        let names: Vec<_> = of(&report).into_iter().map(|(name, _)| name).collect();
        assert!(
            names
                .iter()
                .filter_map(|name| name.phase.as_deref())
                .all(|phase| phase == "bulk_load"),
            "{names:?}"
        );
    }

    #[test]
    fn the_size_of_a_phase_with_a_time_is_compared_if_it_is_there_for_its_size() {
        let mut report = Report::new("lmdb-style", "psitri", serde_json::Value::Null);
        let phases = [("compacted_size", 0), ("removals", 10)];
        report.phases = phases
            .map(|(name, ops)| Phase {
                file_bytes: Some(4_096),
                ..Phase::new(name, ops, 0.5)
            })
            .to_vec();
        let rank = |phase: &str| {
            of(&report)
                .into_iter()
                .find(|(name, value)| name.phase.as_deref() == Some(phase) && *value == 4_096.0)
                .map(|(name, _)| name.kind().rank)
        };
        assert_eq!(rank("compacted_size"), Some(Rank::Primary));
        assert_eq!(rank("removals"), Some(Rank::Context));
    }

    #[test]
    fn options_are_read_in_both_spellings() {
        let arguments = [
            "bank",
            "--batch-size=10",
            "--audit",
            "--seed",
            "7",
            "--limit",
        ];
        let options = options(&arguments.map(str::to_owned));
        let expected = [
            ("audit", ""),
            ("batch-size", "10"),
            ("limit", ""),
            ("seed", "7"),
        ];
        assert!(
            options
                .iter()
                .map(|(a, b)| (a.as_str(), b.as_str()))
                .eq(expected)
        );
    }
}
