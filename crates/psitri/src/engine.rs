//! What all handles of one open database share.
//!
//! # Lock order
//! keyspace write locks (by id) -> `checkpointing` -> `tree` -> `keyspaces` -> `commits` -> `layers` -> counts of shared nodes -> the pager's
//! space. Readers take none of them. The step of `admission.rs` comes before the locks of the signals, and a thread that holds the first of these may
//! wait for it; no background thread takes it.
//!
//! # Invariants
//! (1) `visible_csn` only grows, and every commit up to it is in the layers of the state that is current then.
//! (2) After a failed flush or write of the log or a superblock the engine is poisoned: nothing is written any more.

use std::{collections::BTreeMap, sync::OnceLock, time::Duration};

use crate::{
    Options, Result,
    admission::Admission,
    buffer::BufferError,
    counters::Counters,
    error::{Error, Failure},
    events::Event,
    keyspace::{KeyspaceCore, Names},
    merger::Headway,
    pager::Pager,
    pins::Registry,
    readers::OtherReaders,
    saved::SavedSnapshot,
    state::{ArenaPool, Generation, KEYSPACES_MAX, KeyspaceState, Reach, State},
    storage::{Storage, StorageError, StorageLock},
    sync::{Arc, AtomicBool, AtomicU64, Condvar, Mutex, Ordering, OwnLines, RwLock},
    tree::Root,
    wal::{Wal, WalError, WalShared},
};

/// Everything that commits take turns at.
pub(crate) struct Commits {
    pub log: Option<Wal>,
    pub csn_next: u64,
    /// Commits that are logged but not visible yet, as one before them waits for the disk: CSN and end in the log.
    pub waiting: std::collections::VecDeque<(u64, u64)>,
}

/// The durable side of the tree.
#[derive(Debug, Default)]
pub(crate) struct TreeState {
    pub catalog: Root,
    /// Counts of shared nodes as of the last checkpoint.
    pub shares: Root,
    pub catalog_csn: u64,
    /// Trees and catalog have nothing of commits beyond this one, but what generations that are merged in part got since.
    pub reach: Reach,
    pub checkpoint_generation: u64,
    pub keyspace_next: u32,
    /// Keyspaces dropped since the last checkpoint: their ids leave the catalog.
    pub dropped: Vec<u32>,
    /// Saved snapshots by name, and the number of the next.
    pub saved: BTreeMap<String, Arc<SavedSnapshot>>,
    pub saved_next: u32,
    /// Those that came (true) or went since the last checkpoint.
    pub saved_changed: Vec<(Arc<SavedSnapshot>, bool)>,
    /// Slots that may be used again once the generation is frozen.
    pub free_slots: Vec<(u32, u64)>,
}

/// What wakes the background threads and those who wait for them.
#[derive(Default)]
pub(crate) struct Signals {
    pub lock: Mutex<SignalState>,
    /// There may be something to merge or to checkpoint.
    pub work: Condvar,
    /// Something was merged, or failed.
    pub done: Condvar,
    /// There are trees that were asked for many keys.
    pub tables: Condvar,
    /// Said before `tables` is notified, and not under the lock, as readers take none: the thread may miss it, and finds it at its next tick.
    pub are_tables_wanted: AtomicBool,
}

#[derive(Default)]
pub(crate) struct SignalState {
    pub stopping: bool,
    pub checkpoint_wanted: bool,
    /// Set with every notification of `work` that is for the merge thread.
    pub merge_wanted: bool,
    /// Threads that wait for a merge, though there may be room for more buffers.
    pub draining: usize,
    /// The database is being closed, and what is not merged stays in the log.
    pub is_closing: bool,
    /// Why the last merge failed; cleared by the next that succeeds.
    pub failure: Option<Failure>,
    /// Why the last checkpoint failed: the next is owed. Merges may go on without them for a while.
    pub checkpoint_failure: Option<Failure>,
    /// Why the last one could not give back what it let go of.
    pub give_back_failure: Option<Failure>,
    /// Counts attempts of the merge thread, successful or not.
    pub rounds: u64,
}

impl SignalState {
    /// Whether the last merge or the last checkpoint failed.
    pub fn is_failing(&self) -> bool {
        self.failure.is_some() || self.checkpoint_failure.is_some()
    }

    /// All failures there are, the one that matters most first.
    pub fn failures(&self) -> impl Iterator<Item = &Failure> {
        let all = [
            &self.failure,
            &self.checkpoint_failure,
            &self.give_back_failure,
        ];
        all.into_iter().flatten()
    }
}

pub(crate) struct Engine {
    pub id: u64,
    pub options: Options,
    pub storage: Arc<dyn Storage>,
    pub read_only: bool,
    /// Read-only, as of a checkpoint, while another process may write.
    pub beside_writer: bool,
    pub in_memory: bool,
    pub pager: Pager,
    pub states: OwnLines<Registry<State>>,
    /// Id of the active generation; stored before the state that has it is published.
    pub generation_active: AtomicU64,
    /// Stored by each commit, and looked at by each reader.
    pub visible_csn: OwnLines<AtomicU64>,
    pub commits: OwnLines<Mutex<Commits>>,
    pub log: Option<Arc<WalShared>>,
    pub tree: Mutex<TreeState>,
    pub layers: Mutex<()>,
    pub keyspaces: RwLock<Names>,
    pub pool: Arc<ArenaPool>,
    pub signals: Arc<Signals>,
    pub counters: OwnLines<Counters>,
    #[cfg(feature = "metrics")]
    pub metrics: crate::metrics::Metrics,
    pub admission: OwnLines<Admission>,
    pub headway: Headway,
    /// One checkpoint at a time.
    pub checkpointing: Mutex<()>,
    /// Readers in other processes.
    pub readers: Mutex<OtherReaders>,
    /// Where replay would begin, by the last checkpoint.
    pub replay_from: AtomicU64,
    /// The newest generation with what the opening replayed, until a checkpoint has all of that; 0 then.
    pub replayed: AtomicU64,
    /// End of the last commit that is to be flushed in the background.
    pub async_end: AtomicU64,
    poison: OnceLock<String>,
    /// Last: nobody else may open the files while anything above lives.
    pub _lock: Option<StorageLock>,
}

pub(crate) fn buffer_error(error: BufferError, reserve_bytes: usize) -> Error {
    match error {
        BufferError::Full => Error::BufferFull {
            bytes: reserve_bytes,
        },
        BufferError::KeyTooLong { bytes } => Error::KeyTooLong {
            bytes,
            max: crate::KEY_BYTES_MAX,
        },
        BufferError::ValueTooLong { bytes } => Error::ValueTooLong {
            bytes: bytes as u64,
            max: crate::VALUE_BYTES_MAX,
        },
        BufferError::Map { bytes, source } => {
            let what = format!("{bytes} bytes of address space for the write buffer");
            Error::from(StorageError::io("reservation", &what, source))
        }
    }
}

impl From<WalError> for Error {
    fn from(error: WalError) -> Error {
        match error {
            WalError::Storage(source) => Error::Storage(source),
            WalError::Corrupted { file, offset, what } => Error::Corrupted {
                what: what.to_string(),
                file,
                offset,
            },
            WalError::UnsupportedVersion {
                found, supported, ..
            } => Error::UnsupportedVersion { found, supported },
            WalError::Poisoned { cause } => Error::Poisoned {
                cause: cause.to_string(),
            },
            WalError::Visitor(inner) => match inner.downcast::<Error>() {
                Ok(error) => *error,
                Err(other) => Error::corrupted("log", 0, other.to_string()),
            },
            WalError::InvalidOption { what } => Error::BadOption {
                option: "wal_segment_bytes",
                what: what.to_owned(),
            },
        }
    }
}

impl TreeState {
    /// A change of which keyspaces there are was logged.
    pub fn note_keyspace_change(&mut self, reach: Reach) {
        self.catalog_csn = reach.csn;
        self.reach.extend(reach);
    }
}

impl Commits {
    /// How far the newest commit reaches.
    pub fn reach(&self) -> Reach {
        Reach {
            csn: self.csn_next - 1,
            lsn: self.log.as_ref().map_or(0, Wal::end_lsn),
        }
    }
}

impl Engine {
    #[expect(
        clippy::too_many_arguments,
        reason = "called once by each way of opening"
    )]
    pub fn new(
        id: u64,
        options: Options,
        storage: Arc<dyn Storage>,
        kind: EngineKind,
        pager: Pager,
        state: State,
        csn: u64,
        log: Option<Wal>,
        mut tree: TreeState,
        keyspaces: Names,
        pool: Arc<ArenaPool>,
        lock: Option<StorageLock>,
    ) -> Engine {
        if let Some(log) = &log {
            log.shared().set_referred(pager.data_sync.clone());
        }
        let replay_from = log.as_ref().map_or(0, |log| {
            let shared = log.shared();
            shared.appended_lsn() - shared.retained_bytes()
        });
        let opened_lsn = log.as_ref().map_or(0, |log| log.shared().appended_lsn());
        // What was found is durable.
        tree.reach = Reach {
            csn,
            lsn: opened_lsn,
        };
        let signals = Arc::<Signals>::default();
        pager.lookups.let_wake(&signals);
        Engine {
            id,
            options,
            read_only: matches!(kind, EngineKind::ReadOnly | EngineKind::BesideWriter),
            beside_writer: kind == EngineKind::BesideWriter,
            in_memory: kind == EngineKind::Memory,
            pager,
            generation_active: AtomicU64::new(state.active().id),
            states: OwnLines(Registry::new(Box::new(state))),
            visible_csn: OwnLines(AtomicU64::new(csn)),
            log: log.as_ref().map(|log| Arc::clone(log.shared())),
            commits: OwnLines(Mutex::new(Commits {
                log,
                csn_next: csn + 1,
                waiting: Default::default(),
            })),
            tree: Mutex::new(tree),
            layers: Mutex::new(()),
            keyspaces: RwLock::new(keyspaces),
            pool,
            signals,
            counters: OwnLines(Counters::new(csn, opened_lsn)),
            #[cfg(feature = "metrics")]
            metrics: crate::metrics::Metrics::new(storage.describe()),
            admission: OwnLines(Admission::new()),
            headway: Headway::default(),
            checkpointing: Mutex::new(()),
            readers: Mutex::new(OtherReaders::default()),
            replay_from: AtomicU64::new(replay_from),
            replayed: AtomicU64::new(0),
            async_end: AtomicU64::new(0),
            poison: OnceLock::new(),
            storage,
            _lock: lock,
        }
    }

    /// A commit that every snapshot sees, present and coming ones.
    pub fn seen_by_all(&self) -> u64 {
        let newest = self.visible_csn.load(Ordering::Acquire);
        self.states.seen_by_all(newest)
    }

    /// An error if nothing may be written.
    pub fn check_writable(&self) -> Result<()> {
        if self.read_only {
            return Err(Error::ReadOnly);
        }
        match self.poison.get() {
            Some(cause) => Err(Error::Poisoned {
                cause: cause.clone(),
            }),
            None => Ok(()),
        }
    }

    /// (2): remembers the first failure after which the state of the disk is unknown.
    pub fn poison(&self, error: &Error) {
        self.poison_for(error.to_string());
    }

    /// The same, for what is no error of a call.
    pub fn poison_for(&self, cause: String) {
        let is_first = self.poison.set(cause.clone()).is_ok();
        self.signals.done.notify_all();
        if is_first {
            self.tell(|| Event::Poisoned { cause });
        }
    }

    pub fn is_poisoned(&self) -> bool {
        self.poison.get().is_some()
    }

    /// How long ago the oldest state that somebody still sees, here or in another process, was replaced. Zero if all see the current one.
    pub fn oldest_pin_age(&self) -> Duration {
        let (_, mut oldest) = self.readers_beside();
        self.states
            .visit_pinned(|state| oldest = oldest.max(state.age()));
        oldest
    }

    /// Reports states that are held for long, each once.
    pub fn report_slow_readers(&self) {
        if !self.is_heard() {
            return;
        }
        let mut slow = self.slow_readers_beside(self.options.slow_reader_after);
        self.states.visit_pinned(|state| {
            let age = state.age();
            if age >= self.options.slow_reader_after
                && !state.replaced.reported.swap(true, Ordering::Relaxed)
            {
                slow.push(age);
            }
        });
        for age in slow {
            let pending_bytes = self
                .pager
                .space_use()
                .map_or(0, |space| space.pending_bytes);
            self.tell(|| Event::SlowReader { age, pending_bytes });
        }
    }

    /// Wakes the merge thread.
    pub fn wake(&self) {
        let mut signals = self.signals.lock.lock();
        signals.merge_wanted = true;
        self.signals.work.notify_all();
    }

    /// Slots for new keyspaces, and the generation that is active where they are free: nothing up to the one before counts for them.
    pub fn free_slots(&self, tree: &TreeState, count: usize) -> Result<(Vec<u32>, u64)> {
        let state = self.states.current();
        let active = state.active();
        let is_free = |&&(slot, dropped_in): &&(u32, u64)| {
            dropped_in < active.id || active.buffer(slot).is_none()
        };
        let reusable = tree
            .free_slots
            .iter()
            .filter(is_free)
            .map(|&(slot, _)| slot);
        let slots: Vec<u32> = reusable
            .chain(state.keyspaces.len() as u32..)
            .take(count)
            .collect();
        if slots.iter().any(|&slot| slot as usize >= KEYSPACES_MAX) {
            return Err(Error::TooManyKeyspaces { max: KEYSPACES_MAX });
        }
        Ok((slots, active.id))
    }

    /// The error of using a keyspace that a state does not have.
    pub fn keyspace_state<'s>(
        &self,
        state: &'s State,
        core: &KeyspaceCore,
    ) -> Result<&'s KeyspaceState> {
        if core.database != self.id {
            return Err(Error::ForeignKeyspace);
        }
        state
            .keyspace(core.slot, core.id)
            .ok_or_else(|| core.gone())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EngineKind {
    Disk,
    Memory,
    ReadOnly,
    BesideWriter,
}

/// Frozen generations that the merge can take up.
pub(crate) fn ready(state: &State) -> impl Iterator<Item = &Arc<Generation>> {
    let frozen = state.generations[1..].iter();
    frozen.filter(|generation| !generation.blocked.load(Ordering::Relaxed))
}

/// How many of them there are.
pub(crate) fn frozen_count(state: &State) -> usize {
    ready(state).count()
}
