//! The workload on an engine that understands SQL: tables and indexes of the definition, one prepared statement for each step.
//!
//! A transaction of one statement commits by itself; the others are between BEGIN and COMMIT, or ROLLBACK if they do not succeed.
use super::mix::Transaction;
use super::population::{AccessInfo, Number, Rows, START_TIMES, Subscriber, text};
use super::store::{Destinations, Outcome, Store, Sums};
use crate::sql::engine::{Row, SqlEngine, Statement, Value, integers};
use anyhow::{Context, Result, ensure};

const SCHEMA: &str = "
CREATE TABLE subscriber(
    s_id INTEGER PRIMARY KEY, sub_nbr TEXT NOT NULL,
    bit_1 INTEGER, bit_2 INTEGER, bit_3 INTEGER, bit_4 INTEGER, bit_5 INTEGER,
    bit_6 INTEGER, bit_7 INTEGER, bit_8 INTEGER, bit_9 INTEGER, bit_10 INTEGER,
    hex_1 INTEGER, hex_2 INTEGER, hex_3 INTEGER, hex_4 INTEGER, hex_5 INTEGER,
    hex_6 INTEGER, hex_7 INTEGER, hex_8 INTEGER, hex_9 INTEGER, hex_10 INTEGER,
    byte2_1 INTEGER, byte2_2 INTEGER, byte2_3 INTEGER, byte2_4 INTEGER, byte2_5 INTEGER,
    byte2_6 INTEGER, byte2_7 INTEGER, byte2_8 INTEGER, byte2_9 INTEGER, byte2_10 INTEGER,
    msc_location INTEGER, vlr_location INTEGER);
CREATE UNIQUE INDEX subscriber_number ON subscriber(sub_nbr);
CREATE TABLE access_info(
    s_id INTEGER NOT NULL, ai_type INTEGER NOT NULL,
    data1 INTEGER, data2 INTEGER, data3 TEXT, data4 TEXT,
    PRIMARY KEY(s_id, ai_type)) WITHOUT ROWID;
CREATE TABLE special_facility(
    s_id INTEGER NOT NULL, sf_type INTEGER NOT NULL,
    is_active INTEGER, error_cntrl INTEGER, data_a INTEGER, data_b TEXT,
    PRIMARY KEY(s_id, sf_type)) WITHOUT ROWID;
CREATE TABLE call_forwarding(
    s_id INTEGER NOT NULL, sf_type INTEGER NOT NULL, start_time INTEGER NOT NULL,
    end_time INTEGER, numberx TEXT,
    PRIMARY KEY(s_id, sf_type, start_time)) WITHOUT ROWID;";

const SUMS: &str = "SELECT
    (SELECT COUNT(*) FROM subscriber), (SELECT SUM(vlr_location) FROM subscriber),
    (SELECT SUM(bit_1) FROM subscriber), (SELECT COUNT(*) FROM access_info),
    (SELECT COUNT(*) FROM special_facility), (SELECT COALESCE(SUM(data_a), 0) FROM special_facility),
    (SELECT COUNT(*) FROM call_forwarding), (SELECT COALESCE(SUM(end_time), 0) FROM call_forwarding)";

/// Creates tables and indexes.
pub fn create_tables<E: SqlEngine>(engine: &E) -> Result<()> {
    engine.execute(SCHEMA).context("cannot create the tables")
}

pub struct SqlStore<'c, E: SqlEngine + 'c> {
    engine: &'c E,
    insert_subscriber: E::Statement<'c>,
    insert_access: E::Statement<'c>,
    insert_facility: E::Statement<'c>,
    insert_forwarding: E::Statement<'c>,
    begin: E::Statement<'c>,
    commit: E::Statement<'c>,
    rollback: E::Statement<'c>,
    subscriber: E::Statement<'c>,
    destination: E::Statement<'c>,
    access: E::Statement<'c>,
    update_bit: E::Statement<'c>,
    update_data: E::Statement<'c>,
    update_location: E::Statement<'c>,
    id_of_number: E::Statement<'c>,
    facility_types: E::Statement<'c>,
    add_forwarding: E::Statement<'c>,
    delete_forwarding: E::Statement<'c>,
}

fn integer(value: impl Into<i64>) -> Value<'static> {
    Value::Integer(value.into())
}

/// A column of digits or letters, all of which it must have.
fn letters<const N: usize>(row: &impl Row, column: usize) -> Result<[u8; N]> {
    let text = row.text(column)?;
    text.as_bytes()
        .try_into()
        .with_context(|| format!("column {column} has {} bytes, not {N}", text.len()))
}

fn small(row: &impl Row, column: usize) -> Result<u8> {
    Ok(row.integer(column)?.try_into()?)
}

fn small_from<const N: usize>(row: &impl Row, first: usize) -> Result<[u8; N]> {
    let mut values = [0; N];
    for (place, value) in values.iter_mut().enumerate() {
        *value = small(row, first + place)?;
    }
    Ok(values)
}

impl<'c, E: SqlEngine> SqlStore<'c, E> {
    /// The tables must be there.
    pub fn new(engine: &'c E) -> Result<Self> {
        let parameters = |count: usize| {
            let marks: Vec<String> = (1..=count).map(|place| format!("?{place}")).collect();
            marks.join(", ")
        };
        let insert = |table: &str, columns: usize| {
            engine.prepare(&format!(
                "INSERT INTO {table} VALUES({})",
                parameters(columns)
            ))
        };
        Ok(Self {
            engine,
            insert_subscriber: insert("subscriber", 34)?,
            insert_access: insert("access_info", 6)?,
            insert_facility: insert("special_facility", 6)?,
            insert_forwarding: insert("call_forwarding", 5)?,
            begin: engine.prepare("BEGIN")?,
            commit: engine.prepare("COMMIT")?,
            rollback: engine.prepare("ROLLBACK")?,
            subscriber: engine.prepare("SELECT * FROM subscriber WHERE s_id = ?1")?,
            destination: engine.prepare(
                "SELECT cf.numberx FROM special_facility sf JOIN call_forwarding cf
                     ON cf.s_id = sf.s_id AND cf.sf_type = sf.sf_type
                 WHERE sf.s_id = ?1 AND sf.sf_type = ?2 AND sf.is_active = 1
                     AND cf.start_time <= ?3 AND ?4 < cf.end_time
                 ORDER BY cf.start_time",
            )?,
            access: engine.prepare(
                "SELECT data1, data2, data3, data4 FROM access_info WHERE s_id = ?1 AND ai_type = ?2",
            )?,
            update_bit: engine.prepare("UPDATE subscriber SET bit_1 = ?2 WHERE s_id = ?1")?,
            update_data: engine.prepare(
                "UPDATE special_facility SET data_a = ?3 WHERE s_id = ?1 AND sf_type = ?2",
            )?,
            update_location: engine
                .prepare("UPDATE subscriber SET vlr_location = ?2 WHERE sub_nbr = ?1")?,
            id_of_number: engine.prepare("SELECT s_id FROM subscriber WHERE sub_nbr = ?1")?,
            facility_types: engine
                .prepare("SELECT sf_type FROM special_facility WHERE s_id = ?1")?,
            add_forwarding: engine.prepare(
                "INSERT INTO call_forwarding VALUES(?1, ?2, ?3, ?4, ?5) ON CONFLICT DO NOTHING",
            )?,
            delete_forwarding: engine.prepare(
                "DELETE FROM call_forwarding WHERE s_id = ?1 AND sf_type = ?2 AND start_time = ?3",
            )?,
        })
    }

    /// A transaction of several statements: it stays if it succeeds, and leaves nothing otherwise.
    fn transaction(&mut self, steps: impl FnOnce(&mut Self) -> Result<bool>) -> Result<Outcome> {
        self.begin.run(&[])?;
        let outcome = steps(self);
        let end = match outcome {
            Ok(true) => &mut self.commit,
            Ok(false) | Err(_) => &mut self.rollback,
        };
        let ended = end.run(&[]);
        let done = outcome?;
        ended?;
        Ok(Outcome::Done(done))
    }

    fn id_of(&mut self, number: &Number) -> Result<i64> {
        let mut id = None;
        self.id_of_number
            .query(&[Value::Text(text(number))], |row| {
                id = Some(row.integer(0)?);
                Ok(())
            })?;
        id.context("no subscriber has the number")
    }

    fn get_subscriber(&mut self, s_id: u32) -> Result<Outcome> {
        let mut found = None;
        self.subscriber.query(&[integer(s_id)], |row| {
            ensure!(row.integer(0)? == i64::from(s_id), "another subscriber");
            found = Some(Subscriber {
                number: letters(row, 1)?,
                bits: small_from(row, 2)?,
                hexes: small_from(row, 12)?,
                bytes: small_from(row, 22)?,
                msc_location: row.integer(32)?.try_into()?,
                vlr_location: row.integer(33)?.try_into()?,
            });
            Ok(())
        })?;
        Ok(Outcome::Subscriber(found))
    }

    fn load_one(&mut self, rows: &Rows) -> Result<()> {
        let (s_id, subscriber) = (integer(rows.s_id), &rows.subscriber);
        let mut values = vec![s_id, Value::Text(text(&subscriber.number))];
        for small in [&subscriber.bits, &subscriber.hexes, &subscriber.bytes] {
            values.extend(small.iter().map(|&value| integer(value)));
        }
        values.push(integer(subscriber.msc_location));
        values.push(integer(subscriber.vlr_location));
        self.insert_subscriber.run(&values)?;
        for (place, access) in rows.access.iter().enumerate() {
            let Some(access) = access else { continue };
            self.insert_access.run(&[
                s_id,
                integer(place as u8 + 1),
                integer(access.data1),
                integer(access.data2),
                Value::Text(text(&access.data3)),
                Value::Text(text(&access.data4)),
            ])?;
        }
        for (place, facility) in rows.facilities.iter().enumerate() {
            let Some((facility, forwardings)) = facility else {
                continue;
            };
            let sf_type = integer(place as u8 + 1);
            self.insert_facility.run(&[
                s_id,
                sf_type,
                integer(facility.is_active),
                integer(facility.error_control),
                integer(facility.data_a),
                Value::Text(text(&facility.data_b)),
            ])?;
            for (start_time, forwarding) in START_TIMES.into_iter().zip(forwardings) {
                let Some(forwarding) = forwarding else {
                    continue;
                };
                self.insert_forwarding.run(&[
                    s_id,
                    sf_type,
                    integer(start_time),
                    integer(forwarding.end_time),
                    Value::Text(text(&forwarding.number)),
                ])?;
            }
        }
        Ok(())
    }
}

impl<E: SqlEngine> Store for SqlStore<'_, E> {
    fn load(&mut self, rows: &[Rows]) -> Result<()> {
        self.begin.run(&[])?;
        for rows in rows {
            self.load_one(rows)?;
        }
        self.commit.run(&[])?;
        Ok(())
    }

    fn run(&mut self, transaction: &Transaction) -> Result<Outcome> {
        match *transaction {
            Transaction::GetSubscriberData { s_id } => self.get_subscriber(s_id),
            Transaction::GetNewDestination {
                s_id,
                sf_type,
                start_time,
                end_time,
            } => {
                let mut found = Destinations::default();
                let parameters = [
                    integer(s_id),
                    integer(sf_type),
                    integer(start_time),
                    integer(end_time),
                ];
                self.destination
                    .query(&parameters, |row| found.push(letters(row, 0)?))?;
                Ok(Outcome::Destinations(found))
            }
            Transaction::GetAccessData { s_id, ai_type } => {
                let mut found = None;
                self.access
                    .query(&[integer(s_id), integer(ai_type)], |row| {
                        found = Some(AccessInfo {
                            data1: small(row, 0)?,
                            data2: small(row, 1)?,
                            data3: letters(row, 2)?,
                            data4: letters(row, 3)?,
                        });
                        Ok(())
                    })?;
                Ok(Outcome::Access(found))
            }
            Transaction::UpdateSubscriberData {
                s_id,
                bit_1,
                sf_type,
                data_a,
            } => self.transaction(|this| {
                let subscribers = this.update_bit.run(&[integer(s_id), integer(bit_1)])?;
                ensure!(subscribers == 1, "{subscribers} subscribers were updated");
                let changed =
                    this.update_data
                        .run(&[integer(s_id), integer(sf_type), integer(data_a)])?;
                Ok(changed == 1)
            }),
            Transaction::UpdateLocation {
                number,
                vlr_location,
            } => {
                let parameters = [Value::Text(text(&number)), integer(vlr_location)];
                let changed = self.update_location.run(&parameters)?;
                Ok(Outcome::Done(changed == 1))
            }
            Transaction::InsertCallForwarding {
                number,
                sf_type,
                start_time,
                end_time,
                to,
            } => self.transaction(|this| {
                let s_id = this.id_of(&number)?;
                let mut has_type = false;
                this.facility_types.query(&[integer(s_id)], |row| {
                    has_type |= row.integer(0)? == i64::from(sf_type);
                    Ok(())
                })?;
                if !has_type {
                    return Ok(false);
                }
                let changed = this.add_forwarding.run(&[
                    integer(s_id),
                    integer(sf_type),
                    integer(start_time),
                    integer(end_time),
                    Value::Text(text(&to)),
                ])?;
                Ok(changed == 1)
            }),
            Transaction::DeleteCallForwarding {
                number,
                sf_type,
                start_time,
            } => self.transaction(|this| {
                let s_id = this.id_of(&number)?;
                let changed = this.delete_forwarding.run(&[
                    integer(s_id),
                    integer(sf_type),
                    integer(start_time),
                ])?;
                Ok(changed == 1)
            }),
        }
    }

    fn sums(&mut self) -> Result<Sums> {
        let found = integers(self.engine, SUMS, 8)?;
        let &[
            subscribers,
            vlr_locations,
            bits_1,
            access_infos,
            facilities,
            data_a,
            forwardings,
            end_times,
        ] = found.as_slice()
        else {
            anyhow::bail!("the sums have {} columns", found.len());
        };
        Ok(Sums {
            subscribers,
            vlr_locations,
            bits_1,
            access_infos,
            facilities,
            data_a,
            forwardings,
            end_times,
        })
    }
}
