//! `power-loss`: cuts real file systems off while a database is written to, and looks at what is left.
//!
//! A file system in an image is mounted, a worker process commits transactions to a database on it, and says which ones. At a
//! random moment the file system is shut down without writing anything more, which is what a power loss leaves; it is mounted again, and the
//! database must have a state that was committed: the one after transaction `n` for some `n`, whole, and in the durability `sync`
//! not before the last one that was acknowledged. What the system would have written of mapped files by then is up to the system:
//! that is what the simulated disk of the tests cannot show.
//!
//! Needs root, loop devices, and the tools of ext4 and XFS. Where they are missing it says so, and succeeds.
mod model;
mod worker;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use model::Model;
use psitri::{Durability, Options};
use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// XFS does not make smaller ones.
const IMAGE_BYTES: u64 = 320 << 20;
/// How long a worker runs before the lights go out.
const RUN_MS: std::ops::Range<u64> = 20..250;
/// A database is begun anew after so many cycles, so that beginnings are cut off too.
const CYCLES_OF_A_DATABASE: u64 = 20;

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
        if let Some(missing) = self.missing() {
            println!("skipped: {missing}");
            return Ok(true);
        }
        let directory = match &self.dir {
            Some(parent) => tempfile::tempdir_in(parent)?,
            None => tempfile::tempdir()?,
        };
        for file_system in &self.file_systems {
            let mut mount = Mount::make(directory.path(), file_system)?;
            for durability in &self.durability {
                let start = Instant::now();
                let cut = self.cut_off(&mut mount, durability)?;
                println!(
                    "{file_system}, {durability}: {} power losses in {:.0} s, {} transactions, {} of them lost, {} of those acknowledged as durable",
                    self.cycles,
                    start.elapsed().as_secs_f64(),
                    cut.committed,
                    cut.lost,
                    cut.lost_durable,
                );
                ensure!(cut.lost_durable == 0, "commits were lost");
            }
        }
        println!("PASS");
        Ok(true)
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

    fn cut_off(&self, mount: &mut Mount, durability: &str) -> Result<Cut> {
        let mut random = fastrand::Rng::with_seed(self.seed);
        let waits = matches!(durability, "sync" | "write-through");
        let mut cut = Cut::default();
        let mut model = Model::default();
        for cycle in 0..self.cycles {
            let database = mount.directory.join("db");
            if cycle.is_multiple_of(CYCLES_OF_A_DATABASE) {
                if database.exists() {
                    fs::remove_dir_all(&database)?;
                }
                model = Model::default();
            }
            let context = format!("{durability}, cycle {cycle}");
            let (mut child, reader, acknowledged) = self.start_worker(&database, durability)?;
            std::thread::sleep(Duration::from_millis(random.u64(RUN_MS)));
            // What is acknowledged from here on does not count: without power there would be nobody to hear it, and a flush that meets the
            // shutdown half way may succeed although the file system's journal was given up.
            let acknowledged = acknowledged.load(Ordering::Relaxed);
            mount.shut_down()?;
            child.kill()?;
            child.wait()?;
            if reader.join().is_err() {
                bail!("{context}: the worker cannot be heard");
            }
            mount.mount_again()?;
            let before = model.transactions();
            let found = check(&database, &mut model, &context)?;
            cut.committed += acknowledged.saturating_sub(before);
            let lost = acknowledged.saturating_sub(found);
            cut.lost += lost;
            cut.lost_durable += if waits { lost } else { 0 };
            ensure!(
                !waits || lost == 0,
                "{context}: transaction {acknowledged} was acknowledged, {found} is the last one that is there"
            );
        }
        Ok(cut)
    }

    fn start_worker(
        &self,
        database: &Path,
        durability: &str,
    ) -> Result<(Child, JoinHandle<()>, Arc<AtomicU64>)> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("power-loss")
            .args(["--worker".as_ref(), database.as_os_str()])
            .args(["--durability", durability])
            .args(["--seed", &self.seed.to_string()])
            .stdout(Stdio::piped())
            // It fails when its file system does.
            .stderr(Stdio::null())
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
        Ok((child, reader, acknowledged))
    }
}

#[derive(Default)]
struct Cut {
    committed: u64,
    lost: u64,
    lost_durable: u64,
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

/// A file system in an image, mounted.
struct Mount {
    image: PathBuf,
    directory: PathBuf,
    is_mounted: bool,
}

fn run(command: &mut Command) -> Result<()> {
    let output = command
        .output()
        .with_context(|| format!("cannot run {command:?}"))?;
    ensure!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

impl Mount {
    fn make(parent: &Path, file_system: &str) -> Result<Mount> {
        let image = parent.join(format!("{file_system}.img"));
        fs::File::create(&image)?.set_len(IMAGE_BYTES)?;
        let force = if file_system == "xfs" { "-f" } else { "-F" };
        run(Command::new(format!("mkfs.{file_system}"))
            .args(["-q", force])
            .arg(&image))?;
        let directory = parent.join(file_system);
        fs::create_dir(&directory)?;
        let mut mount = Mount {
            image,
            directory,
            is_mounted: false,
        };
        mount.mount()?;
        Ok(mount)
    }

    fn mount(&mut self) -> Result<()> {
        run(Command::new("mount")
            .args(["-o", "loop"])
            .arg(&self.image)
            .arg(&self.directory))?;
        self.is_mounted = true;
        Ok(())
    }

    /// Nothing is written from now on, what is under way excepted.
    fn shut_down(&self) -> Result<()> {
        run(Command::new("xfs_io")
            .args(["-x", "-c", "shutdown"])
            .arg(&self.directory))
    }

    fn mount_again(&mut self) -> Result<()> {
        self.unmount()?;
        self.mount()
    }

    fn unmount(&mut self) -> Result<()> {
        run(Command::new("umount").arg(&self.directory))?;
        self.is_mounted = false;
        Ok(())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.is_mounted {
            // Left behind, it would keep the directory from being removed; there is nobody to tell.
            let _ = self.unmount();
        }
    }
}
