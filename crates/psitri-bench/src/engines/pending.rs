//! The writes of a batch that is not committed yet, for engines whose batches cannot be read.
//!
//! An adapter puts it in front of its reads, so that a batch sees its own writes (rule 1 of [`crate::engine`]), and hands the writes to
//! the engine at commit: one for each key, the last one, in no particular order. Dropping it leaves nothing behind (rule 4).
use hashbrown::HashMap;

#[derive(Default)]
pub struct Pending {
    writes: HashMap<Box<[u8]>, Option<Box<[u8]>>>,
}

impl Pending {
    pub fn new() -> Self {
        Self::default()
    }

    /// What the batch has done to the key: nothing at all, removed it, or given it a value.
    #[inline]
    pub fn get(&self, key: &[u8]) -> Option<Option<&[u8]>> {
        if self.writes.is_empty() {
            return None;
        }
        self.writes.get(key).map(Option::as_deref)
    }

    #[inline]
    pub fn put(&mut self, key: &[u8], value: &[u8]) {
        self.set(key, Some(value.into()));
    }

    #[inline]
    pub fn delete(&mut self, key: &[u8]) {
        self.set(key, None);
    }

    #[inline]
    fn set(&mut self, key: &[u8], value: Option<Box<[u8]>>) {
        self.writes.entry_ref(key).insert(value);
    }

    pub fn len(&self) -> usize {
        self.writes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// Key and value of each write, no value where the key was removed.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> + Clone {
        self.writes
            .iter()
            .map(|(key, value)| (&**key, value.as_deref()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_write_of_a_key_counts() {
        let mut pending = Pending::new();
        assert_eq!(pending.get(b"a"), None);
        pending.put(b"a", b"1");
        pending.put(b"b", b"2");
        pending.put(b"a", b"3");
        pending.delete(b"b");
        pending.delete(b"c");
        assert_eq!(pending.get(b"a"), Some(Some(&b"3"[..])));
        assert_eq!(pending.get(b"b"), Some(None));
        let mut writes: Vec<_> = pending.iter().collect();
        writes.sort_unstable();
        assert_eq!(
            writes,
            [
                (&b"a"[..], Some(&b"3"[..])),
                (&b"b"[..], None),
                (&b"c"[..], None)
            ]
        );
    }
}
