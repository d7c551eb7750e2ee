//! Keys and values of the bank.
//!
//! A balance is a little-endian u64 under the account's name. A log entry's key is `00 'T' 'X'` and the sequence number, big-endian,
//! so that entries sort by it; its value is both names, each after its length as a little-endian u16, and the amount as a little-endian u64.
use crate::names::Name;
use crate::words::WORD_BYTES_MAX;

pub const LOG_KEY_BYTES: usize = 11;
const LOG_PREFIX: [u8; 3] = [0, b'T', b'X'];
const LOG_VALUE_BYTES_MAX: usize = 2 * (2 + WORD_BYTES_MAX) + 8;

const _: () = assert!(LOG_KEY_BYTES == LOG_PREFIX.len() + size_of::<u64>());

#[inline]
pub fn balance(value: &[u8]) -> Option<u64> {
    value.try_into().ok().map(u64::from_le_bytes)
}

#[inline]
pub fn log_key(sequence: u64) -> [u8; LOG_KEY_BYTES] {
    let mut key = [0; LOG_KEY_BYTES];
    key[..3].copy_from_slice(&LOG_PREFIX);
    key[3..].copy_from_slice(&sequence.to_be_bytes());
    key
}

/// The sequence number, when `key` is that of a log entry.
#[inline]
pub fn log_sequence(key: &[u8]) -> Option<u64> {
    let sequence = key.strip_prefix(&LOG_PREFIX)?.try_into().ok()?;
    Some(u64::from_be_bytes(sequence))
}

/// A log entry's value, built without allocating.
pub struct LogValue {
    bytes: [u8; LOG_VALUE_BYTES_MAX],
    length: usize,
}

impl LogValue {
    #[inline]
    pub fn new(source: &Name, destination: &Name, amount: u64) -> Self {
        let mut value = Self {
            bytes: [0; LOG_VALUE_BYTES_MAX],
            length: 0,
        };
        for name in [source.as_bytes(), destination.as_bytes()] {
            value.push(&(name.len() as u16).to_le_bytes());
            value.push(name);
        }
        value.push(&amount.to_le_bytes());
        value
    }

    #[inline]
    fn push(&mut self, part: &[u8]) {
        self.bytes[self.length..self.length + part.len()].copy_from_slice(part);
        self.length += part.len();
    }

    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names;

    #[test]
    fn log_keys_sort_by_sequence_and_come_back() {
        assert_eq!(log_key(1), [0, b'T', b'X', 0, 0, 0, 0, 0, 0, 0, 1]);
        assert!(log_key(255) < log_key(256));
        assert_eq!(log_sequence(&log_key(77)), Some(77));
        assert_eq!(log_sequence(&[0; 8]), None);
        assert_eq!(log_sequence(b"\0TX12345678x"), None);
    }

    #[test]
    fn no_account_looks_like_a_log_entry() {
        assert!(
            names::names(300_000, 1)
                .iter()
                .all(|name| log_sequence(name.as_bytes()).is_none())
        );
    }

    #[test]
    fn log_values_hold_names_and_amount() {
        let names = names::names(2, 1);
        let value = LogValue::new(&names[0], &names[1], 0x0102);
        let (first, second) = (names[0].as_bytes(), names[1].as_bytes());
        let expected = [
            &(first.len() as u16).to_le_bytes()[..],
            first,
            &(second.len() as u16).to_le_bytes()[..],
            second,
            &[2, 1, 0, 0, 0, 0, 0, 0],
        ]
        .concat();
        assert_eq!(value.as_bytes(), expected);
    }
}
