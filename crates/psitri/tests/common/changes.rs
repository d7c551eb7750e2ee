//! What a transaction does to one keyspace: one function for each change, named in [`CHANGES`].
use super::{Map, Random, clock::some_expiry};
use psitri::{Error, Expiry, Keyspace, WriteTxn};

/// A change of one keyspace, in the transaction and in the map beside it, which go by the same time. `bulk`: with values that fill a buffer.
type Change = fn(&mut WriteTxn, &Keyspace, &mut Map, &mut Random, bool) -> Result<(), Error>;

/// How often, of all, and what.
const CHANGES: [(u64, Change); 10] = [
    (1, remove),
    (1, remove_range),
    (1, get),
    (1, ingest),
    (1, compare_and_swap),
    (1, pop),
    (1, retain),
    (1, extract),
    (1, insert_or_update),
    (7, upsert),
];
/// In a transaction that is to fill a buffer, one change in so many is not another large value.
const OTHERS_ONE_IN_BULK: u64 = 8;

/// One random change of a keyspace, in the transaction and in the map.
pub fn change(
    txn: &mut WriteTxn,
    keyspace: &Keyspace,
    map: &mut Map,
    random: &mut Random,
    bulk: bool,
) -> Result<(), Error> {
    if bulk && !random.one_in(OTHERS_ONE_IN_BULK) {
        return upsert(txn, keyspace, map, random, bulk);
    }
    let all: u64 = CHANGES.iter().map(|(share, _)| share).sum();
    let mut draw = random.below(all);
    for (share, change) in CHANGES {
        if draw < share {
            return change(txn, keyspace, map, random, bulk);
        }
        draw -= share;
    }
    unreachable!("the draw is below the sum")
}

pub fn some_key(random: &mut Random) -> Vec<u8> {
    let number = random.below(150);
    match random.below(60) {
        0 => Vec::new(),
        1 => format!("long {number} {}", "x".repeat(1500)).into_bytes(),
        _ => format!("key {number:04}").into_bytes(),
    }
}

pub fn some_value(random: &mut Random) -> Vec<u8> {
    let len = match random.below(40) {
        0 => 16_385 + random.below(30_000),
        1..3 => 4_000 + random.below(9_000),
        3..8 => 200 + random.below(2_000),
        _ => random.below(60),
    };
    random.bytes(len as usize)
}

fn is_odd(key: &[u8]) -> bool {
    key.iter().fold(0, |sum, &byte| sum ^ byte) % 8 == 1
}

/// When a new entry expires, if it is to say so itself.
pub fn own_expiry(map: &Map, random: &mut Random) -> Option<Expiry> {
    (map.expires() && !random.one_in(3)).then(|| some_expiry(random, map.now()))
}

/// Sets a value, until the keyspace's default or a moment of its own.
pub fn put(
    txn: &mut WriteTxn,
    keyspace: &Keyspace,
    map: &mut Map,
    random: &mut Random,
    (key, value): (Vec<u8>, Vec<u8>),
) -> Result<(), Error> {
    match own_expiry(map, random) {
        Some(expiry) => {
            txn.upsert_expiring(keyspace, &key, &value, expiry)?;
            map.put_until(key, value, expiry);
        }
        None => {
            txn.upsert(keyspace, &key, &value)?;
            map.put(key, value);
        }
    }
    Ok(())
}

fn upsert(
    txn: &mut WriteTxn,
    keyspace: &Keyspace,
    map: &mut Map,
    random: &mut Random,
    bulk: bool,
) -> Result<(), Error> {
    let key = some_key(random);
    let value = if bulk {
        let len = 2_000 + random.below(6_000) as usize;
        random.bytes(len)
    } else {
        some_value(random)
    };
    put(txn, keyspace, map, random, (key, value))
}

fn insert_or_update(
    txn: &mut WriteTxn,
    keyspace: &Keyspace,
    map: &mut Map,
    random: &mut Random,
    _bulk: bool,
) -> Result<(), Error> {
    let (key, value) = (some_key(random), some_value(random));
    let (result, fails) = if random.one_in(2) {
        (txn.insert(keyspace, &key, &value), map.contains_key(&key))
    } else {
        (txn.update(keyspace, &key, &value), !map.contains_key(&key))
    };
    match result {
        Ok(()) => {
            assert!(!fails, "insert and update say what was there");
            map.put(key, value);
        }
        Err(Error::KeyExists | Error::KeyAbsent) => assert!(fails, "insert and update"),
        Err(other) => return Err(other),
    }
    Ok(())
}

fn remove(
    txn: &mut WriteTxn,
    keyspace: &Keyspace,
    map: &mut Map,
    random: &mut Random,
    _bulk: bool,
) -> Result<(), Error> {
    let key = some_key(random);
    let present = txn.remove(keyspace, &key)?;
    let was_there = map.remove(&key).is_some();
    assert_eq!(present, was_there, "remove says what was there");
    Ok(())
}

fn remove_range(
    txn: &mut WriteTxn,
    keyspace: &Keyspace,
    map: &mut Map,
    random: &mut Random,
    _bulk: bool,
) -> Result<(), Error> {
    let (key, to) = (some_key(random), some_key(random));
    let hi = (!random.one_in(6)).then_some(&to[..]);
    if hi.is_none_or(|hi| key.as_slice() < hi) && !random.one_in(3) {
        txn.remove_range(keyspace, &key, hi)?;
        map.remove_range(&key, hi);
    }
    Ok(())
}

fn get(
    txn: &mut WriteTxn,
    keyspace: &Keyspace,
    map: &mut Map,
    random: &mut Random,
    _bulk: bool,
) -> Result<(), Error> {
    let key = some_key(random);
    let found = txn.get(keyspace, &key)?;
    let entry = map.get(&key);
    assert_eq!(
        found,
        entry.map(|entry| &entry.value[..]),
        "reads its own writes"
    );
    let moment = txn.expiry(keyspace, &key)?.map(|until| map.moment(until));
    assert_eq!(moment, entry.map(|entry| entry.expires), "and until when");
    Ok(())
}

fn ingest(
    txn: &mut WriteTxn,
    keyspace: &Keyspace,
    map: &mut Map,
    random: &mut Random,
    _bulk: bool,
) -> Result<(), Error> {
    let entries: Vec<_> = (0..random.below(40))
        .map(|_| (some_key(random), some_value(random)))
        .collect();
    if map.expires() && random.one_in(2) {
        let entries: Vec<_> = entries
            .into_iter()
            .map(|(key, value)| (key, value, some_expiry(random, map.now())))
            .collect();
        txn.ingest_expiring(keyspace, entries.iter().map(|(k, v, until)| (k, v, *until)))?;
        for (key, value, until) in entries {
            map.put_until(key, value, until);
        }
        return Ok(());
    }
    txn.ingest(keyspace, entries.iter().map(|(k, v)| (k, v)))?;
    for (key, value) in entries {
        map.put(key, value);
    }
    Ok(())
}

fn compare_and_swap(
    txn: &mut WriteTxn,
    keyspace: &Keyspace,
    map: &mut Map,
    random: &mut Random,
    _bulk: bool,
) -> Result<(), Error> {
    let key = some_key(random);
    let expected = map.get(&key).map(|entry| entry.value.to_vec());
    let new = (!random.one_in(3)).then(|| some_value(random));
    let swapped = txn.compare_and_swap(keyspace, &key, expected.as_deref(), new.as_deref())?;
    assert!(swapped, "compare and swap");
    match new {
        Some(value) => map.put(key, value),
        None => drop(map.remove(&key)),
    }
    Ok(())
}

fn pop(
    txn: &mut WriteTxn,
    keyspace: &Keyspace,
    map: &mut Map,
    random: &mut Random,
    _bulk: bool,
) -> Result<(), Error> {
    for _ in 0..random.below(10) {
        let (popped, wanted) = if random.one_in(2) {
            (txn.pop_first(keyspace)?, map.pop_first())
        } else {
            (txn.pop_last(keyspace)?, map.pop_last())
        };
        let wanted = wanted.map(|(key, entry)| (key, entry.value.to_vec()));
        assert_eq!(popped, wanted, "pop");
    }
    Ok(())
}

fn retain(
    txn: &mut WriteTxn,
    keyspace: &Keyspace,
    map: &mut Map,
    random: &mut Random,
    _bulk: bool,
) -> Result<(), Error> {
    let key = some_key(random);
    txn.retain(keyspace, key.as_slice().., |key, _| !is_odd(key))?;
    map.retain(|k| k < key.as_slice() || !is_odd(k));
    Ok(())
}

fn extract(
    txn: &mut WriteTxn,
    keyspace: &Keyspace,
    map: &mut Map,
    random: &mut Random,
    _bulk: bool,
) -> Result<(), Error> {
    let key = some_key(random);
    let extracted = txn.extract(keyspace, ..=key.as_slice(), |key, _| is_odd(key))?;
    let wanted: Vec<_> = map
        .range(..=key)
        .filter(|(k, _)| is_odd(k))
        .map(|(k, entry)| (k.clone(), entry.value.to_vec()))
        .collect();
    assert_eq!(extracted, wanted, "extract");
    for (key, _) in wanted {
        map.remove(&key);
    }
    Ok(())
}
