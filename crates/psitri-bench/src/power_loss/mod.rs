//! `power-loss`: cuts real file systems off while a database is written to, and looks at what is left.
//!
//! A file system in an image is mounted, a worker process commits transactions to a database on it, and says which ones. At a
//! random moment the file system is shut down without writing anything more, which is what a power loss leaves; it is mounted again, and the
//! database must have a state that was committed: the one after transaction `n` for some `n`, whole, and in the durability `sync`
//! not before the last one that was acknowledged. What the system would have written of mapped files by then is up to the system:
//! that is what the simulated disk of the tests cannot show.
//!
//! Needs root, loop devices, and the tools of ext4 and XFS. Where they are missing it says so, and succeeds. An interrupt (Ctrl-C) ends it after the
//! cycle under way, with a report and nothing left behind. After a failure the image is kept, and named.
mod model;
mod mount;
mod worker;

use crate::progress::Progress;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use comfy_table::{Table, presets::UTF8_FULL_CONDENSED};
use model::Model;
use mount::Mount;
use psitri::{Durability, Options};
use std::{
    fs,
    io::{BufRead, BufReader, IsTerminal},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// How long a worker runs before the lights go out.
const RUN_MS: std::ops::Range<u64> = 20..250;
/// A database is begun anew after so many cycles, so that beginnings are cut off too.
const CYCLES_OF_A_DATABASE: u64 = 20;
/// How often a run that nobody watches says how far it is.
const CYCLES_OF_A_LINE: u64 = 100;

/// Arguments of `power-loss`.
#[derive(Args, Clone, Debug)]
pub struct PowerLossConfig {
    /// Power losses of each file system and durability
    #[arg(long, default_value_t = 10)]
    cycles: u64,
    /// File systems, separated by commas
    #[arg(long, default_value = "ext4,xfs", value_delimiter = ',')]
    file_systems: Vec<String>,
    /// Durability of the commits, separated by commas
    #[arg(
        long,
        default_value = "none,async,sync,write-through",
        value_delimiter = ','
    )]
    durability: Vec<String>,
    /// Seed of everything random but time
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Directory for the image and where it is mounted; one for temporary files without
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Runs a worker on this database
    #[arg(long, hide = true)]
    worker: Option<PathBuf>,
}

fn durability_of(name: &str) -> Result<Durability> {
    Ok(match name {
        "none" => Durability::None,
        "async" => Durability::Async,
        "sync" => Durability::Sync,
        "write-through" => Durability::WriteThrough,
        other => bail!("{other} is no durability: none, async, sync, write-through"),
    })
}

/// Small, so that buffers are merged, log segments recycled and checkpoints taken all the time.
fn options(durability: Durability) -> Options {
    Options::new()
        .buffer_bytes(1 << 20)
        .wal_segment_bytes(256 << 10)
        .checkpoint_bytes(4 << 20)
        .async_interval(Duration::from_millis(10))
        .durability(durability)
}

impl PowerLossConfig {
    pub fn run(&self) -> Result<bool> {
        if let Some(database) = &self.worker {
            let durability = self.durability.first().context("a durability")?;
            return worker::run(database, durability_of(durability)?, self.seed);
        }
        for durability in &self.durability {
            durability_of(durability)?;
        }
        if let Some(missing) = self.missing() {
            println!("skipped: {missing}");
            return Ok(true);
        }
        mount::enter_own_namespace();
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in signal_hook::consts::TERM_SIGNALS {
            signal_hook::flag::register(*signal, Arc::clone(&interrupted))?;
        }
        let directory = match &self.dir {
            Some(parent) => tempfile::tempdir_in(parent)?,
            None => tempfile::tempdir()?,
        };
        let mut cuts = Vec::new();
        let result = self.run_all(directory.path(), &interrupted, &mut cuts);
        println!("{}", table(&cuts));
        if let Err(error) = result {
            let kept = directory.keep();
            return Err(error.context(format!("the images are kept in {}", kept.display())));
        }
        if interrupted.load(Ordering::Relaxed) {
            println!("interrupted");
            return Ok(false);
        }
        println!("PASS");
        Ok(true)
    }

    /// Every durability on every file system. What was done is in `cuts`, also if it ends early.
    fn run_all(
        &self,
        directory: &Path,
        interrupted: &AtomicBool,
        cuts: &mut Vec<Cut>,
    ) -> Result<()> {
        for file_system in &self.file_systems {
            let mut mount = Mount::make(directory, file_system)?;
            for durability in &self.durability {
                if interrupted.load(Ordering::Relaxed) {
                    return Ok(());
                }
                cuts.push(Cut::new(file_system, durability));
                let cut = cuts.last_mut().expect("just pushed");
                let start = Instant::now();
                let result = self.cut_off(&mut mount, cut, interrupted);
                cut.seconds = start.elapsed().as_secs_f64();
                cut.failed = result.is_err();
                result?;
            }
        }
        Ok(())
    }

    /// What this machine lacks.
    fn missing(&self) -> Option<String> {
        if !rustix::process::geteuid().is_root() {
            return Some("only root can mount file systems".to_owned());
        }
        let mut tools = vec!["mount".to_owned(), "umount".to_owned(), "xfs_io".to_owned()];
        tools.extend(self.file_systems.iter().map(|name| format!("mkfs.{name}")));
        for tool in tools {
            let found = Command::new(&tool).arg("-V").output().is_ok();
            if !found {
                return Some(format!(
                    "{tool} is not installed (packages e2fsprogs, xfsprogs, mount)"
                ));
            }
        }
        (!Path::new("/dev/loop-control").exists()).then(|| "there are no loop devices".to_owned())
    }

    fn cut_off(&self, mount: &mut Mount, cut: &mut Cut, interrupted: &AtomicBool) -> Result<()> {
        let mut random = fastrand::Rng::with_seed(self.seed);
        let durability = cut.durability.clone();
        let waits = matches!(durability.as_str(), "sync" | "write-through");
        let mut model = Model::default();
        let watched = std::io::stderr().is_terminal();
        let label = format!("{}, {durability}", cut.file_system);
        let progress = Progress::new(&label, self.cycles);
        let start = Instant::now();
        for cycle in 0..self.cycles {
            if interrupted.load(Ordering::Relaxed) {
                break;
            }
            let database = mount.directory.join("db");
            if cycle.is_multiple_of(CYCLES_OF_A_DATABASE) {
                if database.exists() {
                    fs::remove_dir_all(&database)?;
                }
                model = Model::default();
            }
            let context = format!("{label}, cycle {cycle}, seed {}", self.seed);
            let worker = self.start_worker(&database, &durability)?;
            std::thread::sleep(Duration::from_millis(random.u64(RUN_MS)));
            // What is acknowledged from here on does not count: without power there would be nobody to hear it, and a flush that meets the
            // shutdown half way may succeed although the file system's journal was given up.
            let acknowledged = worker.acknowledged.load(Ordering::Relaxed);
            mount.shut_down()?;
            worker
                .end()
                .with_context(|| format!("{context}: the worker"))?;
            mount.mount_again()?;
            let before = model.transactions();
            let found = check(&database, &mut model, &context)?;
            cut.cycles += 1;
            cut.committed += acknowledged.saturating_sub(before);
            let lost = acknowledged.saturating_sub(found);
            cut.lost += lost;
            cut.lost_durable += if waits { lost } else { 0 };
            ensure!(
                !waits || lost == 0,
                "{context}: transaction {acknowledged} was acknowledged, {found} is the last one that is there"
            );
            progress.at(cut.cycles);
            if !watched && cut.cycles.is_multiple_of(CYCLES_OF_A_LINE) {
                let seconds = start.elapsed().as_secs_f64();
                eprintln!(
                    "{label}: {} of {} cycles, {:.2} s each",
                    cut.cycles,
                    self.cycles,
                    seconds / cut.cycles as f64
                );
            }
        }
        Ok(())
    }

    fn start_worker(&self, database: &Path, durability: &str) -> Result<Worker> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("power-loss")
            .args(["--worker".as_ref(), database.as_os_str()])
            .args(["--durability", durability])
            .args(["--seed", &self.seed.to_string()])
            .stdout(Stdio::piped())
            // It fails when its file system does.
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        let output = child.stdout.take().expect("piped");
        let acknowledged = Arc::new(AtomicU64::new(0));
        let newest = Arc::clone(&acknowledged);
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let number = line.strip_suffix('.').and_then(|line| line.parse().ok());
                newest.fetch_max(number.unwrap_or(0), Ordering::Relaxed);
            }
        });
        Ok(Worker {
            child,
            reader: Some(reader),
            acknowledged,
        })
    }
}

/// The process that commits, and the thread that hears what it has committed. Killed when dropped.
struct Worker {
    child: Child,
    reader: Option<JoinHandle<()>>,
    acknowledged: Arc<AtomicU64>,
}

impl Worker {
    fn end(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        if self
            .reader
            .take()
            .is_some_and(|reader| reader.join().is_err())
        {
            bail!("cannot be heard");
        }
        Ok(())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It would keep its file system from being unmounted. After `end` there is nothing left to do, which is no error.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What became of one durability on one file system.
struct Cut {
    file_system: String,
    durability: String,
    cycles: u64,
    seconds: f64,
    committed: u64,
    lost: u64,
    lost_durable: u64,
    failed: bool,
}

impl Cut {
    fn new(file_system: &str, durability: &str) -> Cut {
        Cut {
            file_system: file_system.to_owned(),
            durability: durability.to_owned(),
            cycles: 0,
            seconds: 0.0,
            committed: 0,
            lost: 0,
            lost_durable: 0,
            failed: false,
        }
    }
}

fn table(cuts: &[Cut]) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED);
    table.set_header([
        "file system",
        "durability",
        "power losses",
        "s each",
        "transactions",
        "lost",
        "lost though durable",
        "",
    ]);
    for cut in cuts {
        table.add_row([
            cut.file_system.clone(),
            cut.durability.clone(),
            cut.cycles.to_string(),
            format!("{:.2}", cut.seconds / cut.cycles.max(1) as f64),
            cut.committed.to_string(),
            cut.lost.to_string(),
            cut.lost_durable.to_string(),
            if cut.failed { "FAILED" } else { "" }.to_owned(),
        ]);
    }
    table
}

/// Opens what is left and compares all of it. Gives the transaction after which it is, and takes the model there.
fn check(database: &Path, model: &mut Model, context: &str) -> Result<u64> {
    if !database.exists() {
        // Not even its directory was durable.
        *model = Model::default();
        return Ok(0);
    }
    let db = options(Durability::None)
        .open(database)
        .with_context(|| format!("{context}: opening"))?;
    let damage = db.verify()?.errors;
    ensure!(damage.is_empty(), "{context}: {damage:?}");
    let found = worker::transactions(&db)?;
    if found < model.transactions() {
        // What was there after the last power loss may be gone after this one, where nothing made it durable.
        *model = Model::default();
    }
    model.advance_to(found);
    worker::compare(&db, model).with_context(|| format!("{context}: after transaction {found}"))?;
    db.close()?;
    Ok(found)
}
