//! The workload on the `psitri` engine itself: a keyspace for each table and one for the index, keys encoded by hand.
//!
//! | keyspace | key | value |
//! |---|---|---|
//! | subscriber | s_id, big endian | number, bits, hexes, bytes, both locations |
//! | number | the fifteen digits | s_id |
//! | access_info | s_id, ai_type | data1 to data4 |
//! | special_facility | s_id, sf_type | is_active, error_cntrl, data_a, data_b |
//! | call_forwarding | s_id, sf_type, start_time | end_time, numberx |
//!
//! Reads are at a fresh snapshot; a transaction that writes is a buffered one, dropped if it does not succeed. Rows have fixed lengths, and one
//! of another length is an error. The number is unique because it is a key: the load refuses a second one.
use super::mix::Transaction;
use super::population::{
    AccessInfo, Facility, Forwarding, NUMBER_DIGITS, Number, Rows, START_TIMES, Subscriber,
};
use super::store::{Destinations, Outcome, Store, Sums};
use crate::engine::Description;
use crate::sql::engine::{SqlSettings, Synchronous};
use anyhow::{Context, Result};
use psitri::{Database, Durability, Keyspace, Options, Snapshot, WriteTxn};
use std::ops::ControlFlow;
use std::path::Path;

const SUBSCRIBER_BYTES: usize = NUMBER_DIGITS + 30 + 8;
const VLR_LOCATION_AT: usize = SUBSCRIBER_BYTES - 4;
const BIT_1_AT: usize = NUMBER_DIGITS;
const ACCESS_BYTES: usize = 10;
const FACILITY_BYTES: usize = 8;
const DATA_A_AT: usize = 2;
const FORWARDING_BYTES: usize = 1 + NUMBER_DIGITS;

pub struct Native {
    database: Database,
    subscriber: Keyspace,
    number: Keyspace,
    access: Keyspace,
    facility: Keyspace,
    forwarding: Keyspace,
}

fn durability(synchronous: Synchronous) -> Durability {
    match synchronous {
        Synchronous::Off => Durability::None,
        Synchronous::Normal => Durability::Async,
        Synchronous::Full => Durability::Sync,
    }
}

pub fn describe(settings: &SqlSettings) -> Description {
    Description {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        settings: vec![
            format!("durability {:?}", durability(settings.synchronous)),
            "no SQL: a keyspace for each table and index, keys encoded by hand".to_owned(),
            "no choice of journal: there is a write-ahead log".to_owned(),
        ],
    }
}

fn row<const N: usize>(value: &[u8], table: &str) -> Result<[u8; N]> {
    value
        .try_into()
        .with_context(|| format!("a row of {table} has {} bytes, not {N}", value.len()))
}

/// Some bytes of a row, whose length is known.
fn part<const N: usize>(row: &[u8], at: usize) -> [u8; N] {
    let mut part = [0; N];
    part.copy_from_slice(&row[at..at + N]);
    part
}

fn key_of_type(s_id: u32, kind: u8) -> [u8; 5] {
    let [a, b, c, d] = s_id.to_be_bytes();
    [a, b, c, d, kind]
}

fn forwarding_key(s_id: u32, sf_type: u8, start_time: u8) -> [u8; 6] {
    let [a, b, c, d] = s_id.to_be_bytes();
    [a, b, c, d, sf_type, start_time]
}

fn encode_subscriber(subscriber: &Subscriber) -> [u8; SUBSCRIBER_BYTES] {
    let mut row = [0; SUBSCRIBER_BYTES];
    let mut at = 0;
    for part in [
        &subscriber.number[..],
        &subscriber.bits,
        &subscriber.hexes,
        &subscriber.bytes,
        &subscriber.msc_location.to_le_bytes(),
        &subscriber.vlr_location.to_le_bytes(),
    ] {
        row[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    row
}

fn decode_subscriber(value: &[u8]) -> Result<Subscriber> {
    let row: [u8; SUBSCRIBER_BYTES] = row(value, "subscriber")?;
    Ok(Subscriber {
        number: part(&row, 0),
        bits: part(&row, BIT_1_AT),
        hexes: part(&row, BIT_1_AT + 10),
        bytes: part(&row, BIT_1_AT + 20),
        msc_location: u32::from_le_bytes(part(&row, VLR_LOCATION_AT - 4)),
        vlr_location: u32::from_le_bytes(part(&row, VLR_LOCATION_AT)),
    })
}

fn encode_access(access: &AccessInfo) -> [u8; ACCESS_BYTES] {
    let mut row = [0; ACCESS_BYTES];
    row[0] = access.data1;
    row[1] = access.data2;
    row[2..5].copy_from_slice(&access.data3);
    row[5..].copy_from_slice(&access.data4);
    row
}

fn decode_access(value: &[u8]) -> Result<AccessInfo> {
    let row: [u8; ACCESS_BYTES] = row(value, "access_info")?;
    Ok(AccessInfo {
        data1: row[0],
        data2: row[1],
        data3: part(&row, 2),
        data4: part(&row, 5),
    })
}

fn encode_facility(facility: &Facility) -> [u8; FACILITY_BYTES] {
    let mut row = [0; FACILITY_BYTES];
    row[0] = u8::from(facility.is_active);
    row[1] = facility.error_control;
    row[DATA_A_AT] = facility.data_a;
    row[3..].copy_from_slice(&facility.data_b);
    row
}

fn encode_forwarding(forwarding: &Forwarding) -> [u8; FORWARDING_BYTES] {
    let mut row = [0; FORWARDING_BYTES];
    row[0] = forwarding.end_time;
    row[1..].copy_from_slice(&forwarding.number);
    row
}

fn decode_forwarding(value: &[u8]) -> Result<Forwarding> {
    let row: [u8; FORWARDING_BYTES] = row(value, "call_forwarding")?;
    Ok(Forwarding {
        end_time: row[0],
        number: part(&row, 1),
    })
}

impl Native {
    pub fn create(path: &Path, settings: &SqlSettings) -> Result<Self> {
        let options = Options::new().durability(durability(settings.synchronous));
        let database = options.create(path)?;
        let keyspace = |name: &str| database.create_keyspace(name);
        Ok(Self {
            subscriber: keyspace("subscriber")?,
            number: keyspace("number")?,
            access: keyspace("access_info")?,
            facility: keyspace("special_facility")?,
            forwarding: keyspace("call_forwarding")?,
            database,
        })
    }

    pub fn close(self) -> Result<()> {
        let Self { database, .. } = self;
        Ok(database.close()?)
    }

    fn id_of(&self, value: Option<&[u8]>) -> Result<u32> {
        let value = value.context("no subscriber has the number")?;
        Ok(u32::from_be_bytes(row(value, "number")?))
    }

    fn get_new_destination(
        &self,
        snapshot: &Snapshot,
        (s_id, sf_type): (u32, u8),
        (start_time, end_time): (u8, u8),
    ) -> Result<Destinations> {
        let mut found = Destinations::default();
        let facility = snapshot.get(&self.facility, &key_of_type(s_id, sf_type))?;
        let Some(facility) = facility else {
            return Ok(found);
        };
        let facility: [u8; FACILITY_BYTES] = row(facility, "special_facility")?;
        if facility[0] == 0 {
            return Ok(found);
        }
        let (first, last) = (
            forwarding_key(s_id, sf_type, 0),
            forwarding_key(s_id, sf_type, start_time),
        );
        let mut outcome = Ok(());
        snapshot.for_each(&self.forwarding, &first[..]..=&last[..], |_, value| {
            outcome = decode_forwarding(value).and_then(|forwarding| {
                if end_time < forwarding.end_time {
                    found.push(forwarding.number)?;
                }
                Ok(())
            });
            if outcome.is_ok() {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })?;
        outcome?;
        Ok(found)
    }

    fn load_one(&self, transaction: &mut WriteTxn, rows: &Rows) -> Result<()> {
        let id = rows.s_id.to_be_bytes();
        let subscriber = encode_subscriber(&rows.subscriber);
        transaction.insert(&self.subscriber, &id, &subscriber)?;
        transaction.insert(&self.number, &rows.subscriber.number, &id)?;
        for (place, access) in rows.access.iter().enumerate() {
            if let Some(access) = access {
                let key = key_of_type(rows.s_id, place as u8 + 1);
                transaction.insert(&self.access, &key, &encode_access(access))?;
            }
        }
        for (place, facility) in rows.facilities.iter().enumerate() {
            let Some((facility, forwardings)) = facility else {
                continue;
            };
            let sf_type = place as u8 + 1;
            let key = key_of_type(rows.s_id, sf_type);
            transaction.insert(&self.facility, &key, &encode_facility(facility))?;
            for (start_time, forwarding) in START_TIMES.into_iter().zip(forwardings) {
                if let Some(forwarding) = forwarding {
                    let key = forwarding_key(rows.s_id, sf_type, start_time);
                    transaction.insert(&self.forwarding, &key, &encode_forwarding(forwarding))?;
                }
            }
        }
        Ok(())
    }

    fn update_subscriber_data(
        &self,
        (s_id, bit_1): (u32, u8),
        (sf_type, data_a): (u8, u8),
    ) -> Result<bool> {
        let mut transaction = self.database.begin(&[&self.subscriber, &self.facility])?;
        // In the order of the definition: what finds no facility is undone.
        self.change_subscriber(&mut transaction, s_id, BIT_1_AT, &[bit_1])?;
        let key = key_of_type(s_id, sf_type);
        let Some(facility) = transaction.get(&self.facility, &key)? else {
            return Ok(false);
        };
        let mut facility: [u8; FACILITY_BYTES] = row(facility, "special_facility")?;
        facility[DATA_A_AT] = data_a;
        transaction.upsert(&self.facility, &key, &facility)?;
        transaction.commit()?;
        Ok(true)
    }

    fn change_subscriber(
        &self,
        transaction: &mut WriteTxn,
        s_id: u32,
        at: usize,
        bytes: &[u8],
    ) -> Result<()> {
        let id = s_id.to_be_bytes();
        let value = transaction.get(&self.subscriber, &id)?;
        let value = value.context("no such subscriber")?;
        let mut subscriber: [u8; SUBSCRIBER_BYTES] = row(value, "subscriber")?;
        subscriber[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(transaction.upsert(&self.subscriber, &id, &subscriber)?)
    }

    fn update_location(&self, number: &Number, vlr_location: u32) -> Result<bool> {
        let mut transaction = self.database.begin(&[&self.subscriber, &self.number])?;
        let s_id = self.id_of(transaction.get(&self.number, number)?)?;
        let location = vlr_location.to_le_bytes();
        self.change_subscriber(&mut transaction, s_id, VLR_LOCATION_AT, &location)?;
        transaction.commit()?;
        Ok(true)
    }

    fn insert_forwarding(
        &self,
        number: &Number,
        (sf_type, start_time): (u8, u8),
        forwarding: &Forwarding,
    ) -> Result<bool> {
        let keyspaces = &[&self.number, &self.facility, &self.forwarding];
        let mut transaction = self.database.begin(keyspaces)?;
        let s_id = self.id_of(transaction.get(&self.number, number)?)?;
        // The definition asks for all types of the subscriber.
        let mut has_type = false;
        let types = transaction.cursor(&self.facility)?;
        types.with_prefix(&s_id.to_be_bytes()).for_each(|key, _| {
            has_type |= key.ends_with(&[sf_type]);
            ControlFlow::Continue(())
        })?;
        let key = forwarding_key(s_id, sf_type, start_time);
        if !has_type || transaction.get(&self.forwarding, &key)?.is_some() {
            return Ok(false);
        }
        transaction.upsert(&self.forwarding, &key, &encode_forwarding(forwarding))?;
        transaction.commit()?;
        Ok(true)
    }

    fn delete_forwarding(&self, number: &Number, sf_type: u8, start_time: u8) -> Result<bool> {
        let mut transaction = self.database.begin(&[&self.number, &self.forwarding])?;
        let s_id = self.id_of(transaction.get(&self.number, number)?)?;
        let key = forwarding_key(s_id, sf_type, start_time);
        let was_there = transaction.remove(&self.forwarding, &key)?;
        if was_there {
            transaction.commit()?;
        }
        Ok(was_there)
    }

    fn sum(
        &self,
        snapshot: &Snapshot,
        keyspace: &Keyspace,
        mut add: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<i64> {
        let (mut rows, mut outcome) = (0, Ok(()));
        snapshot.for_each(keyspace, .., |_, value| {
            rows += 1;
            outcome = add(value);
            if outcome.is_ok() {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })?;
        outcome.map(|()| rows)
    }
}

impl Store for Native {
    fn load(&mut self, rows: &[Rows]) -> Result<()> {
        let mut transaction = self.database.begin(&[
            &self.subscriber,
            &self.number,
            &self.access,
            &self.facility,
            &self.forwarding,
        ])?;
        for rows in rows {
            self.load_one(&mut transaction, rows)?;
        }
        Ok(transaction.commit()?)
    }

    fn run(&mut self, transaction: &Transaction) -> Result<Outcome> {
        Ok(match *transaction {
            Transaction::GetSubscriberData { s_id } => {
                let snapshot = self.database.snapshot();
                let value = snapshot.get(&self.subscriber, &s_id.to_be_bytes())?;
                Outcome::Subscriber(value.map(decode_subscriber).transpose()?)
            }
            Transaction::GetNewDestination {
                s_id,
                sf_type,
                start_time,
                end_time,
            } => {
                let snapshot = self.database.snapshot();
                let times = (start_time, end_time);
                Outcome::Destinations(self.get_new_destination(
                    &snapshot,
                    (s_id, sf_type),
                    times,
                )?)
            }
            Transaction::GetAccessData { s_id, ai_type } => {
                let snapshot = self.database.snapshot();
                let value = snapshot.get(&self.access, &key_of_type(s_id, ai_type))?;
                Outcome::Access(value.map(decode_access).transpose()?)
            }
            Transaction::UpdateSubscriberData {
                s_id,
                bit_1,
                sf_type,
                data_a,
            } => Outcome::Done(self.update_subscriber_data((s_id, bit_1), (sf_type, data_a))?),
            Transaction::UpdateLocation {
                ref number,
                vlr_location,
            } => Outcome::Done(self.update_location(number, vlr_location)?),
            Transaction::InsertCallForwarding {
                ref number,
                sf_type,
                start_time,
                end_time,
                to,
            } => {
                let forwarding = Forwarding {
                    end_time,
                    number: to,
                };
                let place = (sf_type, start_time);
                Outcome::Done(self.insert_forwarding(number, place, &forwarding)?)
            }
            Transaction::DeleteCallForwarding {
                ref number,
                sf_type,
                start_time,
            } => Outcome::Done(self.delete_forwarding(number, sf_type, start_time)?),
        })
    }

    fn sums(&mut self) -> Result<Sums> {
        let snapshot = self.database.snapshot();
        let mut sums = Sums::default();
        sums.subscribers = self.sum(&snapshot, &self.subscriber, |value| {
            let subscriber = decode_subscriber(value)?;
            sums.vlr_locations += i64::from(subscriber.vlr_location);
            sums.bits_1 += i64::from(subscriber.bits[0]);
            Ok(())
        })?;
        sums.access_infos = self.sum(&snapshot, &self.access, |_| Ok(()))?;
        sums.facilities = self.sum(&snapshot, &self.facility, |value| {
            let facility: [u8; FACILITY_BYTES] = row(value, "special_facility")?;
            sums.data_a += i64::from(facility[DATA_A_AT]);
            Ok(())
        })?;
        sums.forwardings = self.sum(&snapshot, &self.forwarding, |value| {
            sums.end_times += i64::from(decode_forwarding(value)?.end_time);
            Ok(())
        })?;
        Ok(sums)
    }
}
