//! Redis, as the program `redis-server` of the system, which the adapter starts and stops (`server.rs`).
//!
//! It is no embedded engine: every read is a request and an answer through a socket, which reports mark. The data are in the server's
//! memory, which is not in the peak that a report states. Keys have no order (a sorted set beside the keys would be
//! a second data structure to keep), and a snapshot reads what is newest.
//!
//! A batch reads its own writes from a map, as applications do, and sends its writes as one pipeline between MULTI and EXEC; a batch of
//! one write goes alone. The bulk load is pipelines of 10,000 writes outside of transactions. Connections are pooled, one a batch or snapshot.
//!
//! Sync modes: the append-only file is always on, and written before the answer is sent. `none` is `appendfsync no`; `async` is
//! `everysec`, the only period that Redis has; `sync` and `write-through` are `always`, one flush for all requests that arrived together.
//! `sync()` flushes the server's files from here, which is the same to the file system: Redis 7.0 has no command for it.
mod server;

use anyhow::{Context, Result, bail};
use psitri_bench::disk;
use psitri_bench::engine::{
    Batch, Capabilities, Cursor, Description, Engine, EngineSizes, ReadMode, Settings, Snapshot,
    SyncMode, Writer, Writes,
};
use psitri_bench::engines::pending::Pending;
use redis::{Connection, Pipeline};
use server::Server;
use std::fs::File;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

const LOAD_PIPELINE_WRITES: usize = 10_000;
const SCAN_KEYS: usize = 1_000;

pub struct Redis {
    connections: Mutex<Vec<Connection>>,
    server: Server,
}

fn append_fsync(sync_mode: SyncMode) -> &'static str {
    match sync_mode {
        SyncMode::None => "no",
        SyncMode::Async => "everysec",
        SyncMode::Sync | SyncMode::WriteThrough => "always",
    }
}

impl Redis {
    fn start(path: &Path, settings: &Settings) -> Result<Self> {
        Ok(Self {
            connections: Mutex::new(Vec::new()),
            server: Server::start(path, append_fsync(settings.sync_mode))?,
        })
    }

    fn pool(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn lend(&self) -> Result<Lent<'_>> {
        let pooled = self.pool().pop();
        let connection = match pooled {
            Some(connection) => connection,
            None => self.server.connect()?,
        };
        Ok(Lent {
            engine: self,
            connection: Some(connection),
        })
    }
}

/// A connection of the pool, given back when dropped.
pub struct Lent<'a> {
    engine: &'a Redis,
    connection: Option<Connection>,
}

impl Lent<'_> {
    #[inline]
    fn get(&mut self) -> Result<&mut Connection> {
        self.connection.as_mut().context("the connection is closed")
    }

    fn read(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(redis::cmd("GET").arg(key).query(self.get()?)?)
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        // One that failed would fail again.
        if let Some(connection) = self.connection.take()
            && redis::ConnectionLike::is_open(&connection)
        {
            self.engine.pool().push(connection);
        }
    }
}

fn put(pipeline: &mut Pipeline, key: &[u8], value: &[u8]) {
    pipeline.cmd("SET").arg(key).arg(value).ignore();
}

fn delete(pipeline: &mut Pipeline, key: &[u8]) {
    pipeline.cmd("DEL").arg(key).ignore();
}

fn execute(mut pipeline: Pipeline, connection: &mut Connection) -> Result<()> {
    if pipeline.len() > 1 {
        pipeline.atomic();
    }
    if !pipeline.is_empty() {
        pipeline.exec(connection)?;
    }
    Ok(())
}

pub struct RedisBatch<'a> {
    lent: Lent<'a>,
    pending: Pending,
}

impl Writer for Redis {
    type Batch<'a> = RedisBatch<'a>;

    #[inline]
    fn begin(&self) -> Result<RedisBatch<'_>> {
        Ok(RedisBatch {
            lent: self.lend()?,
            pending: Pending::default(),
        })
    }

    fn sync(&self) -> Result<()> {
        for file in self.server.append_only_files()? {
            File::open(&file)?.sync_data()?;
        }
        Ok(())
    }
}

impl Batch for RedisBatch<'_> {
    #[inline]
    fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        if let Some(own) = self.pending.get(key) {
            return Ok(look(own));
        }
        Ok(look(self.lent.read(key)?.as_deref()))
    }

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.pending.put(key, value);
        Ok(())
    }

    #[inline]
    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.pending.delete(key);
        Ok(())
    }

    fn commit(mut self) -> Result<()> {
        let mut pipeline = Pipeline::new();
        for (key, value) in self.pending.iter() {
            match value {
                Some(value) => put(&mut pipeline, key, value),
                None => delete(&mut pipeline, key),
            }
        }
        execute(pipeline, self.lent.get()?)
    }
}

/// Writes that need no map, since nothing reads them before they are committed.
pub struct RedisWrites<'a> {
    lent: Lent<'a>,
    pipeline: Pipeline,
}

impl Writes for RedisWrites<'_> {
    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        put(&mut self.pipeline, key, value);
        Ok(())
    }

    #[inline]
    fn delete(&mut self, key: &[u8]) -> Result<()> {
        delete(&mut self.pipeline, key);
        Ok(())
    }

    fn commit(mut self) -> Result<()> {
        execute(self.pipeline, self.lent.get()?)
    }
}

impl Engine for Redis {
    const CAPABILITIES: Capabilities = Capabilities {
        pops: false,
        ordered: false,
        backwards: false,
        snapshots: false,
        group_commit: true,
        networked: true,
        ..Capabilities::FULL
    };

    type Snapshot<'a> = RedisSnapshot<'a>;
    type Writes<'a> = RedisWrites<'a>;

    fn describe(settings: &Settings) -> Description {
        Description {
            version: server::version()
                .unwrap_or_else(|| "redis-server is not installed".to_owned()),
            settings: vec![
                "a server process of its own, on a socket in the database's directory".to_owned(),
                format!(
                    "appendonly yes, appendfsync {}, no snapshots of its own (save \"\")",
                    append_fsync(settings.sync_mode)
                ),
                "writes pipelined between MULTI and EXEC, reads one by one".to_owned(),
                "no cache, write buffer, merge threads or compression: the engine has none"
                    .to_owned(),
            ],
        }
    }

    fn create(path: &Path, settings: &Settings) -> Result<Self> {
        Self::start(path, settings)
    }

    fn open(path: &Path, settings: &Settings) -> Result<Self> {
        Self::start(path, settings)
    }

    fn bulk_load<'e>(&self, entries: impl Iterator<Item = (&'e [u8], &'e [u8])>) -> Result<()> {
        let mut lent = self.lend()?;
        let mut pipeline = Pipeline::with_capacity(LOAD_PIPELINE_WRITES);
        for (key, value) in entries {
            put(&mut pipeline, key, value);
            if pipeline.len() == LOAD_PIPELINE_WRITES {
                pipeline.exec(lent.get()?)?;
                pipeline.clear();
            }
        }
        if !pipeline.is_empty() {
            pipeline.exec(lent.get()?)?;
        }
        Ok(())
    }

    #[inline]
    fn snapshot(&self, _mode: ReadMode) -> Result<RedisSnapshot<'_>> {
        Ok(RedisSnapshot { lent: self.lend()? })
    }

    #[inline]
    fn begin_writes(&self) -> Result<RedisWrites<'_>> {
        Ok(RedisWrites {
            lent: self.lend()?,
            pipeline: Pipeline::new(),
        })
    }

    fn checkpoint(&self) -> Result<()> {
        self.sync()
    }

    /// Writes the append-only file anew, without what was overwritten.
    fn compact(&mut self) -> Result<bool> {
        let mut lent = self.lend()?;
        redis::cmd("BGREWRITEAOF").query::<()>(lent.get()?)?;
        loop {
            let persistence: String = redis::cmd("INFO").arg("persistence").query(lent.get()?)?;
            let field = |name: &str| {
                persistence
                    .lines()
                    .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
                    .map(str::trim)
                    .with_context(|| format!("INFO does not say {name}"))
            };
            if field("aof_rewrite_in_progress")? == "0" && field("aof_rewrite_scheduled")? == "0" {
                if field("aof_last_bgrewrite_status")? != "ok" {
                    bail!("Redis could not write its append-only file anew");
                }
                return Ok(true);
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn sizes(&self) -> Result<EngineSizes> {
        let mut log_bytes = 0;
        for file in self.server.append_only_files()? {
            log_bytes += disk::usage(&file)?.length_bytes;
        }
        Ok(EngineSizes {
            log_bytes: Some(log_bytes),
            ..EngineSizes::default()
        })
    }

    fn close(self) -> Result<()> {
        self.pool().clear();
        self.server.stop()
    }
}

/// No snapshot, but a connection: each read sees what is newest.
pub struct RedisSnapshot<'a> {
    lent: Lent<'a>,
}

impl Snapshot for RedisSnapshot<'_> {
    type Cursor<'c>
        = NoCursor
    where
        Self: 'c;

    #[inline]
    fn read<R>(&mut self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        Ok(look(self.lent.read(key)?.as_deref()))
    }

    /// Lists the keys in one request, so that each comes once, and asks for the values of a thousand at a time.
    fn scan(&mut self, mut each: impl FnMut(&[u8], &[u8])) -> Result<()> {
        let connection = self.lent.get()?;
        let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query(connection)?;
        for keys in keys.chunks(SCAN_KEYS) {
            let values: Vec<Option<Vec<u8>>> = redis::cmd("MGET").arg(keys).query(connection)?;
            for (key, value) in keys.iter().zip(values) {
                // One that was deleted in between is no entry any more.
                if let Some(value) = value {
                    each(key, &value);
                }
            }
        }
        Ok(())
    }

    fn cursor(&mut self) -> Result<NoCursor> {
        bail!("keys have no order in Redis, so there is no cursor")
    }

    fn count(&mut self) -> Result<u64> {
        Ok(redis::cmd("DBSIZE").query(self.lent.get()?)?)
    }
}

/// There is none.
pub enum NoCursor {}

impl Cursor for NoCursor {
    fn seek(&mut self, _key: &[u8]) -> Result<bool> {
        match *self {}
    }

    fn seek_first(&mut self) -> Result<bool> {
        match *self {}
    }

    fn seek_last(&mut self) -> Result<bool> {
        match *self {}
    }

    fn next(&mut self) -> Result<bool> {
        match *self {}
    }

    fn prev(&mut self) -> Result<bool> {
        match *self {}
    }

    fn entry(&self) -> Option<(&[u8], &[u8])> {
        match *self {}
    }
}
