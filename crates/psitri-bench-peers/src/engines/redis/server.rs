//! A Redis server of our own: started in the database's directory, reached through a socket there, stopped at the end.
//!
//! It listens on no port. Its append-only file is the database, its log says why it did not start. A server that is dropped without
//! having been stopped is killed, which loses nothing that was answered: answers are sent after the write to the file.
//! Failures: no `redis-server` on the path; a directory whose name is too long for a socket; a server that ends or does not answer.
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const PROGRAM: &str = "redis-server";
/// Loading a large file takes a while; a server that cannot start ends by itself.
const START_SECONDS_MAX: u64 = 600;
const STOP_SECONDS_MAX: u64 = 120;
/// What a socket's address has room for, without the zero at its end.
const SOCKET_PATH_BYTES_MAX: usize = 107;

pub struct Server {
    child: Child,
    client: redis::Client,
    directory: PathBuf,
}

/// The version of the installed server, if there is one.
pub fn version() -> Option<String> {
    let output = Command::new(PROGRAM).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.split(' ').find_map(|word| word.strip_prefix("v="))?;
    Some(version.trim().to_owned())
}

impl Server {
    pub fn start(directory: &Path, append_fsync: &str) -> Result<Self> {
        fs::create_dir_all(directory)?;
        let directory = fs::canonicalize(directory)?;
        let socket = directory.join("redis.sock");
        ensure!(
            socket.as_os_str().len() <= SOCKET_PATH_BYTES_MAX,
            "{} is too long a name for a socket; choose a shorter directory",
            socket.display()
        );
        // One that was killed leaves its socket behind.
        if let Err(error) = fs::remove_file(&socket)
            && error.kind() != ErrorKind::NotFound
        {
            return Err(error).context("cannot remove the old socket");
        }
        let child = Command::new(PROGRAM)
            .args([
                "--port",
                "0",
                "--daemonize",
                "no",
                "--unixsocketperm",
                "700",
            ])
            .arg("--unixsocket")
            .arg(&socket)
            .arg("--dir")
            .arg(&directory)
            .arg("--logfile")
            .arg(directory.join("redis.log"))
            .args(["--save", "", "--appendonly", "yes"])
            .args(["--appendfsync", append_fsync])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let child = match child {
            Err(error) if error.kind() == ErrorKind::NotFound => bail!(
                "{PROGRAM} is not installed; `scripts/setup-peers` installs it, or leave the engine redis out"
            ),
            other => other.with_context(|| format!("cannot start {PROGRAM}"))?,
        };
        let client = redis::Client::open(format!("unix://{}", socket.display()))?;
        let mut server = Self {
            child,
            client,
            directory,
        };
        server.wait_until_ready()?;
        Ok(server)
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(START_SECONDS_MAX);
        loop {
            // While it loads its file it answers every command with an error.
            let answer = self
                .client
                .get_connection()
                .and_then(|mut connection| redis::cmd("PING").query::<String>(&mut connection));
            let Err(error) = answer else { return Ok(()) };
            if let Some(status) = self.child.try_wait()? {
                let log = fs::read_to_string(self.directory.join("redis.log"));
                let log = log.unwrap_or_default();
                bail!("{PROGRAM} ended with {status}: {}", log.trim_end());
            }
            if Instant::now() > deadline {
                return Err(error).context(format!("{PROGRAM} does not answer"));
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    pub fn connect(&self) -> Result<redis::Connection> {
        Ok(self.client.get_connection()?)
    }

    /// The files that the server appends to.
    pub fn append_only_files(&self) -> Result<Vec<PathBuf>> {
        let entries = fs::read_dir(self.directory.join("appendonlydir"))?;
        entries.map(|entry| Ok(entry?.path())).collect()
    }

    /// Flushes its files and ends it.
    pub fn stop(mut self) -> Result<()> {
        let mut connection = self.connect()?;
        // No answer comes, since the other end goes away; the exit code says whether it worked.
        let _ = redis::cmd("SHUTDOWN")
            .arg("NOSAVE")
            .query::<()>(&mut connection);
        let deadline = Instant::now() + Duration::from_secs(STOP_SECONDS_MAX);
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                ensure!(status.success(), "{PROGRAM} ended with {status}");
                return Ok(());
            }
            thread::sleep(Duration::from_millis(1));
        }
        bail!("{PROGRAM} does not stop")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both do nothing for a child that has ended and was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
