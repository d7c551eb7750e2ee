//! The obviously correct engine: all rows in a vector by subscriber.
use super::mix::Transaction;
use super::population::{Forwarding, Number, Rows, START_TIMES, population, text};
use super::store::{Destinations, Outcome, Store, Sums};
use anyhow::{Context, Result};

#[derive(Default)]
pub struct Model {
    rows: Vec<Rows>,
}

fn place(start_time: u8) -> usize {
    usize::from(start_time / 8)
}

impl Model {
    pub fn loaded(subscribers: u32, seed: u64) -> Self {
        Self {
            rows: population(subscribers, seed).collect(),
        }
    }

    fn of(&mut self, s_id: u32) -> Result<&mut Rows> {
        let place = (s_id as usize).wrapping_sub(1);
        self.rows.get_mut(place).context("no such subscriber")
    }

    fn by_number(&mut self, number: &Number) -> Result<&mut Rows> {
        self.of(text(number).parse()?)
    }
}

impl Store for Model {
    fn load(&mut self, rows: &[Rows]) -> Result<()> {
        self.rows.extend_from_slice(rows);
        Ok(())
    }

    fn run(&mut self, transaction: &Transaction) -> Result<Outcome> {
        Ok(match *transaction {
            Transaction::GetSubscriberData { s_id } => {
                Outcome::Subscriber(Some(self.of(s_id)?.subscriber))
            }
            Transaction::GetNewDestination {
                s_id,
                sf_type,
                start_time,
                end_time,
            } => {
                let mut found = Destinations::default();
                let facility = &self.of(s_id)?.facilities[usize::from(sf_type - 1)];
                if let Some((facility, forwardings)) = facility
                    && facility.is_active
                {
                    for forwarding in forwardings[..=place(start_time)].iter().flatten() {
                        if end_time < forwarding.end_time {
                            found.push(forwarding.number)?;
                        }
                    }
                }
                Outcome::Destinations(found)
            }
            Transaction::GetAccessData { s_id, ai_type } => {
                Outcome::Access(self.of(s_id)?.access[usize::from(ai_type - 1)])
            }
            Transaction::UpdateSubscriberData {
                s_id,
                bit_1,
                sf_type,
                data_a,
            } => {
                let rows = self.of(s_id)?;
                match &mut rows.facilities[usize::from(sf_type - 1)] {
                    Some((facility, _)) => {
                        facility.data_a = data_a;
                        rows.subscriber.bits[0] = bit_1;
                        Outcome::Done(true)
                    }
                    None => Outcome::Done(false),
                }
            }
            Transaction::UpdateLocation {
                number,
                vlr_location,
            } => {
                self.by_number(&number)?.subscriber.vlr_location = vlr_location;
                Outcome::Done(true)
            }
            Transaction::InsertCallForwarding {
                number,
                sf_type,
                start_time,
                end_time,
                to,
            } => {
                let rows = self.by_number(&number)?;
                match &mut rows.facilities[usize::from(sf_type - 1)] {
                    Some((_, forwardings)) if forwardings[place(start_time)].is_none() => {
                        forwardings[place(start_time)] = Some(Forwarding {
                            end_time,
                            number: to,
                        });
                        Outcome::Done(true)
                    }
                    _ => Outcome::Done(false),
                }
            }
            Transaction::DeleteCallForwarding {
                number,
                sf_type,
                start_time,
            } => {
                let rows = self.by_number(&number)?;
                let facility = &mut rows.facilities[usize::from(sf_type - 1)];
                let taken = facility
                    .as_mut()
                    .and_then(|(_, forwardings)| forwardings[place(start_time)].take());
                Outcome::Done(taken.is_some())
            }
        })
    }

    fn sums(&mut self) -> Result<Sums> {
        let mut sums = Sums::default();
        debug_assert_eq!(START_TIMES.map(place), [0, 1, 2]);
        for rows in &self.rows {
            sums.subscribers += 1;
            sums.vlr_locations += i64::from(rows.subscriber.vlr_location);
            sums.bits_1 += i64::from(rows.subscriber.bits[0]);
            sums.access_infos += rows.access.iter().flatten().count() as i64;
            for (facility, forwardings) in rows.facilities.iter().flatten() {
                sums.facilities += 1;
                sums.data_a += i64::from(facility.data_a);
                for forwarding in forwardings.iter().flatten() {
                    sums.forwardings += 1;
                    sums.end_times += i64::from(forwarding.end_time);
                }
            }
        }
        Ok(sums)
    }
}
