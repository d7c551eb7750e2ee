//! Story: the write buffer holds nothing but a place for a keyspace that is dropped by then. It is frozen all the same; a
//! checkpoint, which waits until everything frozen is merged, must not wait for it for ever.
use psitri::Options;
use std::{sync::mpsc, time::Duration};

#[test]
fn a_buffer_of_dropped_keyspaces_only_is_done_with() {
    let db = Options::new()
        .idle_flush(Duration::from_secs(3600))
        .in_memory()
        .unwrap();
    let kept = db.create_keyspace("kept").unwrap();
    for round in 0..3u8 {
        let gone = db.create_keyspace("gone").unwrap();
        // A transaction that writes nothing leaves an empty buffer.
        db.begin(&[&gone]).unwrap().abort();
        db.drop_keyspace("gone").unwrap();
        let (sender, done) = mpsc::channel();
        let checkpointing = db.clone();
        std::thread::spawn(move || sender.send(checkpointing.checkpoint().is_ok()));
        let result = done.recv_timeout(Duration::from_secs(10));
        assert_eq!(result, Ok(true), "round {round}: the checkpoint ends");
        assert_eq!(db.stats().unwrap().frozen_buffers, 0);
        let mut txn = db.begin(&[&kept]).unwrap();
        txn.upsert(&kept, b"round", &[round]).unwrap();
        txn.commit().unwrap();
    }
}
