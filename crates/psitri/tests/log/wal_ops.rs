//! Story: operations come back as they were encoded, and no bytes make the reader panic or read past the end.
use proptest::prelude::*;
use psitri::wal::ops::{Op, OpsBuilder, OpsIter};

#[derive(Clone, Debug)]
enum Owned {
    Put(u32, Vec<u8>, Vec<u8>),
    PutLarge(u32, Vec<u8>, [u8; 24]),
    Delete(u32, Vec<u8>),
    DeleteRange(u32, Vec<u8>, Option<Vec<u8>>),
    Create(u32, Option<u64>, Vec<u8>),
    Drop(u32),
    Rename(u32, Vec<u8>),
}

impl Owned {
    fn op(&self) -> Op<'_> {
        match self {
            Owned::Put(keyspace, key, value) => Op::Put {
                keyspace: *keyspace,
                key,
                value,
            },
            Owned::PutLarge(keyspace, key, pointer) => Op::PutLarge {
                keyspace: *keyspace,
                key,
                pointer: *pointer,
            },
            Owned::Delete(keyspace, key) => Op::Delete {
                keyspace: *keyspace,
                key,
            },
            Owned::DeleteRange(keyspace, lo, hi) => Op::DeleteRange {
                keyspace: *keyspace,
                lo,
                hi: hi.as_deref(),
            },
            Owned::Create(id, expiry, name) => Op::CreateKeyspace {
                id: *id,
                expiry: *expiry,
                name,
            },
            Owned::Drop(id) => Op::DropKeyspace { id: *id },
            Owned::Rename(id, name) => Op::RenameKeyspace { id: *id, name },
        }
    }
}

fn id() -> impl Strategy<Value = u32> {
    prop_oneof![0u32..4, any::<u32>()]
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        10 => prop::collection::vec(any::<u8>(), 0..40),
        1 => (0usize..=65_536).prop_map(|len| vec![7; len])
    ]
}

fn op() -> impl Strategy<Value = Owned> {
    prop_oneof![
        (id(), bytes(), bytes()).prop_map(|(k, key, value)| Owned::Put(k, key, value)),
        (id(), bytes(), any::<[u8; 24]>())
            .prop_map(|(k, key, pointer)| Owned::PutLarge(k, key, pointer)),
        (id(), bytes()).prop_map(|(k, key)| Owned::Delete(k, key)),
        (id(), bytes(), prop::option::of(bytes()))
            .prop_map(|(k, lo, hi)| Owned::DeleteRange(k, lo, hi)),
        (id(), any::<Option<u64>>(), bytes())
            .prop_map(|(id, expiry, name)| Owned::Create(id, expiry, name)),
        id().prop_map(Owned::Drop),
        (id(), bytes()).prop_map(|(id, name)| Owned::Rename(id, name)),
    ]
}

fn encode(ops: &[Owned]) -> OpsBuilder {
    let mut builder = OpsBuilder::new();
    ops.iter().for_each(|op| builder.push(op.op()));
    builder
}

/// Reads to the end or the first error; the reader must then be finished.
fn drain(payload: &[u8], op_count: u32) -> bool {
    let mut iter = OpsIter::new(payload, op_count);
    let mut good = true;
    while let Some(op) = iter.next() {
        if let Err(error) = op {
            assert!(error.offset <= payload.len());
            assert!(iter.next().is_none(), "the first error ends it");
            good = false;
        }
    }
    good
}

proptest! {
    #[test]
    fn round_trip(ops in prop::collection::vec(op(), 0..20)) {
        let builder = encode(&ops);
        let read: Vec<Op<'_>> = OpsIter::new(builder.payload(), builder.op_count()).map(|op| op.unwrap()).collect();
        let expected: Vec<Op<'_>> = ops.iter().map(Owned::op).collect();
        prop_assert_eq!(read, expected);
        // The count and the length must agree.
        prop_assert!(!drain(builder.payload(), builder.op_count() + 1));
        if builder.op_count() > 0 {
            prop_assert!(!drain(builder.payload(), builder.op_count() - 1));
            prop_assert!(!drain(&builder.payload()[..builder.bytes_len() - 1], builder.op_count()));
        }
    }

    #[test]
    fn rewind_forgets_what_came_after(before in prop::collection::vec(op(), 0..8), after in prop::collection::vec(op(), 0..8), last in op()) {
        let mut builder = encode(&before);
        let mark = builder.mark();
        after.iter().for_each(|op| builder.push(op.op()));
        builder.rewind(mark);
        builder.push(last.op());
        let direct: Vec<Owned> = before.into_iter().chain([last]).collect();
        let direct = encode(&direct);
        prop_assert_eq!(builder.payload(), direct.payload());
    }

    #[test]
    fn any_bytes_are_survived(payload in prop::collection::vec(any::<u8>(), 0..300), op_count in prop_oneof![0u32..50, any::<u32>()]) {
        drain(&payload, op_count);
    }

    #[test]
    fn damaged_payloads_are_survived(
        ops in prop::collection::vec(op(), 1..10),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let builder = encode(&ops);
        let mut payload = builder.payload().to_vec();
        for (at, byte) in changes {
            let at = at.index(payload.len());
            payload[at] = byte;
        }
        drain(&payload, builder.op_count());
    }
}

#[test]
fn counts_do_not_wrap_at_16_bits() {
    let mut builder = OpsBuilder::new();
    for i in 0..70_000u32 {
        builder.put(1, &i.to_be_bytes(), b"");
    }
    assert_eq!(builder.op_count(), 70_000);
    assert_eq!(
        OpsIter::new(builder.payload(), 70_000)
            .filter(|op| op.is_ok())
            .count(),
        70_000
    );
}

#[test]
fn keys_over_the_limit_are_refused() {
    let mut builder = OpsBuilder::new();
    builder.put(1, &vec![0; 65_537], b"");
    assert!(!drain(builder.payload(), 1));
}
