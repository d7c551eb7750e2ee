//! One run, from the names to the report.
use super::audit::{self, Totals};
use super::check;
use super::config::{BankConfig, Successes};
use super::limit;
use super::oracle::Oracle;
use super::sweep;
use super::{reader, transfers};
use crate::clock::Clock;
use crate::disk;
use crate::engine::{Engine, Needs, Settings};
use crate::memory::MemorySampler;
use crate::names::{self, Name};
use crate::progress::Progress;
use crate::reopening;
use crate::report::{Phase, Report, Series, Size, grouped};
use crate::workers::StopOnDrop;
use crate::workload::{Run, RunOptions, Workload};
use anyhow::{Context, Result, anyhow};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread::ScopedJoinHandle;

impl Workload for BankConfig {
    const NAME: &'static str = "bank";

    const NEEDS: Needs = Needs {
        ordered: true,
        snapshots: true,
        atomic_batches: true,
        persistent: false,
    };

    fn options(&self) -> &RunOptions {
        &self.run
    }

    fn settings(&self) -> Settings {
        // Names, balances and log entries, without an engine's overhead.
        let entries_bytes = 20 * self.num_accounts + 45 * self.num_transactions * 2;
        self.engine.settings(entries_bytes)
    }

    fn run<E: Engine>(&self, run: &Run<'_>) -> Result<Report> {
        if self.sweep {
            sweep::run::<E>(self, run)
        } else {
            run_bank::<E>(self, run, None)
        }
    }
}

/// `memory_before`: what the process had without the engine, where that is known better than from here.
pub(super) fn run_bank<E: Engine>(
    config: &BankConfig,
    run: &Run<'_>,
    memory_before: Option<u64>,
) -> Result<Report> {
    let (path, clock) = (run.path, run.clock);
    let wall_start = clock.ticks();
    let names = names::names(config.num_accounts as usize, config.seed);
    let names_phase = Phase::new(
        "names",
        config.num_accounts,
        clock.seconds(wall_start, clock.ticks()),
    );
    let memory = match memory_before {
        None => MemorySampler::start(),
        Some(bytes) => MemorySampler::beyond(bytes),
    };
    let engine = E::create(path, &config.settings()).context("cannot create the database")?;

    let mut bank = Bank {
        config,
        names: &names,
        path,
        clock,
        engine: &engine,
        phases: vec![names_phase],
        rounds: Vec::new(),
        checks: Vec::new(),
        failures: Vec::new(),
    };
    bank.bulk_load()?;
    let counted = bank.transfers()?;
    let totals = bank.scans(counted)?;
    // What follows is the harness's own work, on the harness's own memory.
    let peak = memory.finish();
    let oracle = Oracle::new(config);
    bank.check(&oracle, counted)?;
    let Bank {
        phases,
        rounds,
        mut checks,
        mut failures,
        ..
    } = bank;

    let engine_sizes = engine.sizes().context("cannot ask for sizes")?;
    let usage = disk::usage(path)?;
    let keys = reopening::keys(&engine)?;
    engine.close().context("cannot close the database")?;
    reopening::check::<E>(path, &config.settings(), keys, &mut checks, &mut failures)?;

    let mut report = Report::new(BankConfig::NAME, run.engine, serde_json::to_value(config)?);
    report.checks = checks;
    report.series = rounds;
    report.phases = phases;
    report.size = Some(Size {
        file_bytes: usage.allocated_bytes,
        file_length_bytes: usage.length_bytes,
        data_bytes: engine_sizes.data_bytes,
        log_bytes: engine_sizes.log_bytes,
        reachable_bytes: engine_sizes.reachable_bytes,
        raw_bytes: totals.raw_bytes,
    });
    report.memory(&peak);
    if !failures.is_empty() {
        report.fail(failures);
    } else if config.limit {
        // After the engine is closed, so that neither takes time or memory from the other.
        let directory = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        let limit = limit::limit_attempts_per_second(config, &names, directory, clock)?;
        report.limit_ops_per_second = Some(limit);
        report.limit_share = report
            .phase("write_only")
            .map(|phase| phase.ops_per_second / limit);
    }
    Ok(report)
}

struct Bank<'a, E> {
    config: &'a BankConfig,
    names: &'a [Name],
    path: &'a Path,
    clock: &'a Clock,
    engine: &'a E,
    phases: Vec<Phase>,
    rounds: Vec<Series>,
    checks: Vec<String>,
    failures: Vec<String>,
}

impl<E: Engine> Bank<'_, E> {
    fn file_bytes(&self) -> Result<Option<u64>> {
        let bytes = disk::usage(self.path)?.allocated_bytes;
        Ok((bytes > 0).then_some(bytes))
    }

    fn bulk_load(&mut self) -> Result<()> {
        let balance = self.config.initial_balance.to_le_bytes();
        let progress = Progress::new("bulk load", self.config.num_accounts);
        let start = self.clock.ticks();
        self.engine
            .bulk_load(self.names.iter().enumerate().map(|(position, name)| {
                if position.is_multiple_of(1 << 16) {
                    progress.at(position as u64);
                }
                (name.as_bytes(), &balance[..])
            }))
            .context("the bulk load failed")?;
        let seconds = self.clock.seconds(start, self.clock.ticks());
        self.engine.recall_load()?;
        self.phases.push(Phase {
            file_bytes: self.file_bytes()?,
            ..Phase::new("bulk_load", self.config.num_accounts, seconds)
        });
        Ok(())
    }

    /// Warm-up and both measured phases.
    fn transfers(&mut self) -> Result<Successes> {
        let config = self.config;
        let warm_up = self.write(
            "warm-up",
            config.warm_up_seed(),
            config.warm_up_attempts(),
            0,
            &AtomicU64::new(0),
        )?;
        let write_only = self.write(
            "write only",
            config.write_only_seed(),
            config.num_transactions,
            0,
            &AtomicU64::new(0),
        )?;
        let phase = self.written("write_only", &write_only)?;
        self.phases.push(phase);
        let write_read = self.write_beside_reader(write_only.successes)?;
        Ok(Successes {
            warm_up: warm_up.successes,
            write_only: write_only.successes,
            write_read,
        })
    }

    fn write(
        &self,
        label: &str,
        seed: u64,
        attempts: u64,
        sequence_start: u64,
        committed: &AtomicU64,
    ) -> Result<transfers::Outcome> {
        let plan = transfers::Plan {
            names: self.names,
            attempts,
            seed,
            amount_max: self.config.initial_balance,
            sequence_start,
            batch_size: self.config.batch_size,
            sync_every: self.config.sync_every,
            announce: self.config.announce,
        };
        let progress = Progress::new(label, attempts);
        transfers::run(self.engine, &plan, self.clock, &progress, committed)
            .with_context(|| format!("the {label} phase failed"))
    }

    fn written(&mut self, name: &'static str, outcome: &transfers::Outcome) -> Result<Phase> {
        if !outcome.rounds.is_empty() {
            self.rounds.push(Series {
                name: format!("{name} per round"),
                x_label: "round".to_owned(),
                y_label: "attempts/s".to_owned(),
                points: (1..)
                    .map(f64::from)
                    .zip(outcome.rounds.iter().copied())
                    .collect(),
            });
        }
        let worst_round = outcome.rounds.iter().copied().reduce(f64::min);
        let phase = Phase::new(name, self.config.num_transactions, outcome.seconds);
        Ok(Phase {
            successes: Some(outcome.successes),
            commits: Some(outcome.commits),
            latency_us: outcome.commit_latency.summary(),
            steadiness: Some(outcome.throughput.steadiness()),
            file_bytes: self.file_bytes()?,
            figures: worst_round
                .map(|rate| ("worst_round_per_second".to_owned(), rate))
                .into_iter()
                .chain([(
                    "successes_per_second".to_owned(),
                    outcome.successes as f64 / outcome.seconds,
                )])
                .collect(),
            ..phase
        })
    }

    fn write_beside_reader(&mut self, sequence_start: u64) -> Result<u64> {
        let (config, clock, engine) = (self.config, self.clock, self.engine);
        let (stop, committed) = (AtomicBool::new(false), AtomicU64::new(sequence_start));
        let reader_plan = reader::Plan {
            names: self.names,
            seed: config.reader_seed(),
            reads_per_batch: config.reads_per_tx,
            reads_at_once: config.reads_at_once,
            mode: config.read_mode,
        };
        let expected = audit::Expected {
            accounts: config.num_accounts,
            balance: config.balance_total(),
        };
        let (written, read, audited) = std::thread::scope(|scope| {
            let reader =
                scope.spawn(|| reader::run(engine, &reader_plan, clock, &stop, &committed));
            let auditor = config.audit.then(|| {
                scope.spawn(|| audit::run(engine, config.read_mode, expected, &stop, &committed))
            });
            let stopping = StopOnDrop(&stop);
            let written = self.write(
                "write + read",
                config.write_read_seed(),
                config.num_transactions,
                sequence_start,
                &committed,
            );
            drop(stopping);
            (
                written,
                join(reader, "reader"),
                auditor.map(|auditor| join(auditor, "auditor")),
            )
        });
        let (written, read, audited) = (written?, read?, audited.transpose()?);

        if read.found != read.reads {
            self.failures.push(format!(
                "{} of {} concurrent reads found their account",
                read.found, read.reads
            ));
        }
        if read.stale_snapshots > 0 {
            let (stale, all) = (read.stale_snapshots, read.snapshots);
            self.failures.push(format!(
                "{stale} of {all} snapshots missed a commit that had returned before"
            ));
        }
        self.checks.push(format!(
            "{} concurrent reads found their account, at {} snapshots",
            grouped(read.reads),
            grouped(read.snapshots)
        ));
        if let Some(audited) = audited {
            self.checks.push(format!(
                "{} audits while transfers ran, each a full scan at one snapshot",
                grouped(audited.audits)
            ));
            self.failures.extend(audited.failures);
        }
        let phase = Phase {
            reads: Some(read.reads),
            reads_per_second: Some(read.reads as f64 / read.seconds),
            ..self.written("write_read", &written)?
        };
        self.phases.push(phase);
        Ok(written.successes)
    }

    /// A scan of the database as the transfers left it, a checkpoint, and the scan of its resting state.
    fn scans(&mut self, counted: Successes) -> Result<Totals> {
        self.scan("scan_before_checkpoint", counted)?;
        let start = self.clock.ticks();
        self.engine.checkpoint().context("the checkpoint failed")?;
        let seconds = self.clock.seconds(start, self.clock.ticks());
        self.phases.push(Phase {
            file_bytes: self.file_bytes()?,
            ..Phase::new("checkpoint", 0, seconds)
        });
        self.scan("scan", counted)
    }

    fn scan(&mut self, name: &'static str, counted: Successes) -> Result<Totals> {
        let start = self.clock.ticks();
        let totals = Totals::scan(&mut self.engine.snapshot(Default::default())?)
            .with_context(|| format!("the {name} failed"))?;
        let seconds = self.clock.seconds(start, self.clock.ticks());
        check::totals(self.config, counted, name, &totals, &mut self.failures);
        self.phases
            .push(Phase::new(name, totals.entries(), seconds));
        Ok(totals)
    }

    fn check(&mut self, oracle: &Oracle, counted: Successes) -> Result<()> {
        check::successes(self.config, oracle, counted, &mut self.failures);
        let mut snapshot = self.engine.snapshot(Default::default())?;
        check::contents(
            self.config,
            oracle,
            self.names,
            &mut snapshot,
            &mut self.failures,
        )?;
        let published = if self.config.known_successes().is_some() {
            ", and the published counts"
        } else {
            ""
        };
        self.checks.push(format!(
            "{} balances, {} log entries and the order of keys against the oracle{published}",
            grouped(self.config.num_accounts),
            grouped(counted.log_entries())
        ));
        Ok(())
    }
}

fn join<T>(thread: ScopedJoinHandle<'_, Result<T>>, what: &str) -> Result<T> {
    thread
        .join()
        .map_err(|_| anyhow!("the {what} thread panicked"))?
        .with_context(|| format!("the {what} failed"))
}
