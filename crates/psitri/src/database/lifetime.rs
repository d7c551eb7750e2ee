//! What handles, snapshots and transactions keep open: the engine and its background threads. The last of them to go away closes the database.

use std::thread::JoinHandle;

use crate::{
    Result,
    engine::Engine,
    lookup, merger,
    storage::StorageError,
    sync::{Arc, Mutex, Ordering},
};

/// What snapshots keep a database open by. There are several, so that readers do not wait for one another's changes of one count of references:
/// each uses the one of its pin's cell, as cells are its thread's as a rule.
#[repr(align(128))] // behind a count that others change
pub(crate) struct Hold {
    pub engine: Arc<Engine>,
    /// Last: closing is its business.
    _core: Arc<DatabaseCore>,
}

pub(super) const HOLDS: usize = 16;

/// What handles, snapshots and transactions keep open.
#[repr(align(128))] // as `Hold`
pub(crate) struct DatabaseCore {
    pub engine: Arc<Engine>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    pub batches: crate::batch::BatchQueue,
}

impl Hold {
    pub fn several(core: &Arc<DatabaseCore>) -> [Arc<Hold>; HOLDS] {
        std::array::from_fn(|_| {
            Arc::new(Hold {
                engine: Arc::clone(&core.engine),
                _core: Arc::clone(core),
            })
        })
    }
}

/// Runs a background thread. If it panics, nobody would do its work, and those who wait for it would wait for ever: writes are
/// refused from then on.
fn run_guarded(engine: &Engine, body: fn(&Engine)) {
    let run = std::panic::AssertUnwindSafe(|| body(engine));
    if std::panic::catch_unwind(run).is_err() {
        engine.poison_for(
            "a background thread panicked, which is a defect: please report it".to_owned(),
        );
    }
}

/// What a background thread does.
type Body = fn(&Engine);

impl DatabaseCore {
    /// Starts the threads. What was replayed is merged, and many short segments of the log are given up, before anybody else comes.
    pub fn start(engine: Engine) -> Result<Arc<DatabaseCore>> {
        let core = DatabaseCore {
            engine: Arc::new(engine),
            threads: Default::default(),
            batches: Default::default(),
        };
        core.start_threads()?;
        let engine = &core.engine;
        if engine.has_many_short_segments()
            && let Err(error) = engine.checkpoint_fully()
        {
            if engine.is_poisoned() {
                return Err(error);
            }
            // The database is open all the same, and the next opening tries again.
            engine.note_failure(&error);
        }
        engine.merge_what_was_replayed();
        Ok(Arc::new(core))
    }

    fn start_threads(&self) -> Result<()> {
        let engine = &self.engine;
        if engine.read_only {
            return Ok(());
        }
        // In memory there is nothing to store.
        let is_stored = !engine.in_memory;
        let has_tables = engine.options.lookup_table_bytes > 0;
        let bodies: [(bool, &str, Body); 4] = [
            (true, "psitri-merge", merger::run),
            (is_stored, "psitri-ckpt", Engine::run_checkpoints),
            (is_stored, "psitri-log", Engine::run_log),
            (has_tables, "psitri-table", lookup::run),
        ];
        for (_, name, body) in bodies.into_iter().filter(|body| body.0) {
            let engine = Arc::clone(engine);
            let builder = std::thread::Builder::new().name(name.into());
            match builder.spawn(move || run_guarded(&engine, body)) {
                Ok(thread) => self.threads.lock().push(thread),
                Err(source) => {
                    // Those that were started must not keep the database locked.
                    self.stop_threads();
                    let what = format!("background thread {name}");
                    return Err(StorageError::io("start", &what, source).into());
                }
            }
        }
        Ok(())
    }

    fn stop_threads(&self) {
        {
            let mut signals = self.engine.signals.lock.lock();
            signals.stopping = true;
            self.engine.signals.work.notify_all();
            self.engine.signals.tables.notify_all();
        }
        for thread in self.threads.lock().drain(..) {
            // A thread that panicked has nothing more to say here; the log has everything.
            let _ = thread.join();
        }
    }
}

impl Drop for DatabaseCore {
    fn drop(&mut self) {
        let engine = &self.engine;
        trace_span!(INFO, "close", path = %engine.storage.describe());
        let may_write = !engine.read_only && !engine.is_poisoned() && !engine.in_memory;
        // Without its threads, an opening that failed, nothing would be merged.
        let is_running = !self.threads.lock().is_empty();
        if may_write && is_running && !engine.is_at_rest() {
            // Nothing is lost if this fails: the log has everything.
            let _ = engine.checkpoint_to_close();
        }
        self.stop_threads();
        // A checkpoint that was at work may have failed, and whoever is poisoned did not even try.
        engine.flush_promised_at_last();
        if let Some(log) = &engine.log {
            if !engine.is_poisoned() {
                // A file system without holes keeps the space.
                let _ = log.trim(engine.replay_from.load(Ordering::Relaxed));
            }
            // Spares hold nothing; the next opening removes what stays.
            let _ = log.shrink();
        }
    }
}
