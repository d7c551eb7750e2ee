//! What a client does with entries that expire, besides writing them: time passes, and what has expired is dropped.
use super::{
    Client, LongTxn, Random, Step, Stop, changes::some_key, clock::some_time_later, oracle::Note,
};
use psitri::{Error, Keyspace};
use std::{sync::Arc, time::Duration};

/// After how long entries of a keyspace expire.
pub fn some_default(random: &mut Random) -> Duration {
    Duration::from_millis(1 + random.below(400))
}

impl LongTxn {
    /// From now on it goes by one time. A cursor needs it; a key that was removed is absent at any.
    pub(super) fn look_at_clock(&mut self, now: u64) -> Result<(), Error> {
        if !self.is_timed {
            drop(self.txn.cursor(&self.keyspace)?);
            self.map.go_by(now);
            self.is_timed = true;
        }
        Ok(())
    }
}

impl Client<'_> {
    /// Moves the clock. The disk hears of it first: whoever finds it as it was just before asks for less.
    pub(super) fn pass_time(&mut self) {
        let now = self.oracle.clock.now();
        let later = some_time_later(self.oracle.newest(), now, self.random);
        let note = self.oracle.note(self.operation);
        self.storage.set_note(Note { now: later, ..note }.words());
        self.oracle.clock.set(later);
    }

    pub(super) fn let_time_pass(&mut self) -> Step {
        self.pass_time();
        Ok(())
    }

    /// Merges that come by entries which have just expired.
    pub(super) fn merge_what_expired(&mut self) -> Step {
        self.pass_time();
        let result = self.db.checkpoint();
        self.check(result)?;
        self.all_is_durable("checkpoint");
        Ok(())
    }

    /// Entries that expire have no subtrees: none is made, moved or cloned to there.
    pub(super) fn subtree_where_entries_expire(
        &mut self,
        parent: &Keyspace,
        existing: Option<&[u8]>,
    ) -> Step {
        let Some((keyspace, _)) = self.pick_expiring()? else {
            return Ok(());
        };
        let to = some_key(self.random);
        let result = match existing {
            None => self.db.create_subtree(&keyspace, &to).map(drop),
            Some(from) if self.random.one_in(2) => {
                self.db.move_subtree(parent, from, &keyspace, &to)
            }
            Some(from) => {
                let cloned = self.db.clone_subtree(parent, from, &keyspace, &to);
                cloned.map(drop)
            }
        };
        match result {
            Err(Error::SubtreeExpires { .. } | Error::KeyExists) => Ok(()),
            Ok(()) => panic!("a subtree where entries expire"),
            other => self.check(other),
        }
    }

    fn pick_expiring(&mut self) -> Result<Option<(Keyspace, String)>, Stop> {
        let mut names = self.free_names();
        names.retain(|name| self.oracle.newest()[name].expires());
        if names.is_empty() {
            return Ok(None);
        }
        let name = names.swap_remove(self.random.below(names.len() as u64) as usize);
        let keyspace = self.db.open_keyspace(&name);
        Ok(Some((self.check(keyspace)?, name)))
    }

    /// Drops what has expired. With a checkpoint after it, it stays away for good, unless it is in leaves that others have as well.
    pub(super) fn drop_expired(&mut self) -> Step {
        let Some((keyspace, name)) = self.pick_expiring()? else {
            return Ok(());
        };
        if self.random.one_in(2) {
            self.pass_time();
        }
        let result = self.db.drop_expired(&keyspace);
        self.check(result)?;
        if self.random.one_in(3) {
            return Ok(());
        }
        let mut next = self.oracle.newest().clone();
        let map = next.get_mut(&name).expect("it was listed");
        Arc::make_mut(map).drop_expired(self.oracle.clock.now());
        self.try_for(next, format!("drop what has expired in {name}"));
        let result = self.db.checkpoint();
        self.committed(result, false)?;
        self.all_is_durable("checkpoint");
        Ok(())
    }
}
