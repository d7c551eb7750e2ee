//! Snapshots, new and old, and readers of the merged layers.

use psitri::{Error, ReadMode};

use super::{World, check};

impl World {
    pub(super) fn read_newest(&mut self) {
        let Some(table) = self.some_live_table() else {
            return;
        };
        let snapshot = self.db().snapshot();
        let expected = self.oracle.tables[table].entries(self.time());
        let keyspace = self.handle(table);
        check::many(
            &snapshot,
            &keyspace,
            &expected,
            &self.keys,
            &mut self.random,
        );
        if self.random.percent(30) {
            check::all(&snapshot, &keyspace, &expected);
        } else {
            check::some(
                &snapshot,
                &keyspace,
                &expected,
                &self.keys,
                &mut self.random,
            );
        }
    }

    /// What has been frozen, and what has been merged, is the state after some earlier commit, and never goes back.
    pub(super) fn read_old_layers(&mut self) {
        let Some(table) = self.some_live_table() else {
            return;
        };
        if self.oracle.tables[table].expiry.is_some() {
            // Its content changes without a commit, so that it has no digest.
            return;
        }
        let keyspace = self.handle(table);
        for mode in [ReadMode::Trie, ReadMode::Buffered] {
            let snapshot = self.db().snapshot_with(mode);
            let digest = check::digest_of(&snapshot, &keyspace);
            let model = &mut self.oracle.tables[table];
            let from = match mode {
                ReadMode::Trie => model.seen_trie,
                _ => model.seen_buffered.max(model.seen_trie),
            };
            let found = model.digests[from..].iter().position(|&(_, d)| d == digest);
            let Some(found) = found.map(|at| from + at) else {
                panic!(
                    "{mode} reader of {keyspace:?} sees no prefix of the commits from {from} on"
                );
            };
            match mode {
                ReadMode::Trie => model.seen_trie = found,
                _ => model.seen_buffered = found,
            }
            let expected = model.at(model.digests[found].0, 0);
            check::some(
                &snapshot,
                &keyspace,
                &expected,
                &self.keys,
                &mut self.random,
            );
        }
    }

    pub(super) fn take_snapshot(&mut self) {
        if self.snapshots.len() < 8 {
            let snapshot = self.db().snapshot();
            for table in self.oracle.live() {
                // It looks at the clock now, for all its life.
                snapshot.expiry(&self.handle(table), b"").unwrap();
            }
            (self.snapshots).push((snapshot, self.oracle.step, self.time()));
        }
    }

    pub(super) fn read_snapshot(&mut self) {
        if self.snapshots.is_empty() {
            return;
        }
        let (snapshot, step, time) = &self.snapshots[self.random.below(self.snapshots.len())];
        let table = self.random.below(self.oracle.tables.len());
        let Some(keyspace) = &self.handles[table] else {
            return;
        };
        let model = &self.oracle.tables[table];
        if !model.exists_at(*step) {
            let gone = snapshot.get(keyspace, b"a");
            assert!(matches!(gone, Err(Error::KeyspaceGone { .. })), "{gone:?}");
            return;
        }
        let expected = model.at(*step, *time);
        if self.random.percent(30) {
            check::all(snapshot, keyspace, &expected);
        } else {
            check::some(snapshot, keyspace, &expected, &self.keys, &mut self.random);
        }
    }

    pub(super) fn drop_snapshot(&mut self) {
        if !self.snapshots.is_empty() {
            let at = self.random.below(self.snapshots.len());
            let (snapshot, ..) = self.snapshots.swap_remove(at);
            if self.random.percent(50) {
                std::thread::spawn(move || drop(snapshot)).join().unwrap();
            }
        }
    }
}
