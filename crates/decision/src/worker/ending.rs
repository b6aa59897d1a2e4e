//! What becomes of the members of a batch that ended, and of those whose time is up.

use super::api::{Action, BatchId, Failure, Outcome};
use super::bind::admits;
use super::lanes::Batch;
use super::machine::Worker;
use super::queue::{Came, Waiting};
use crate::query::Query;
use alloc::string::String;
use alloc::vec::Vec;
use modelless_types::{DeviceIx, Nearest, Refusal, Time};

impl Worker {
    pub(super) fn done(&mut self, now: Time, id: BatchId, outcome: Outcome) {
        let starved = matches!(outcome, Outcome::Failed { failure: Failure::Memory, .. });
        let shared = starved && self.note_starved(now, id);
        let Some(lane) = self.all_lanes_mut().find(|lane| lane.holds(id)) else { return };
        let died = matches!(outcome, Outcome::Failed { failure, .. } if failure.died());
        let device = lane.device;
        let Some((batch, took)) = lane.ended(now, id, died) else { return };
        if died {
            self.scarce.remove(&batch.runner);
        }
        if let Some(spent) = &took {
            self.rest_from_spare(now, device, &batch, spent.took);
        }
        self.suspects.retain(|suspect| !suspect.is_empty());
        self.ways.retain(|way| !way.is_empty());
        match outcome {
            Outcome::Ran => {
                if let Some(spent) = took {
                    self.learn(now, device, &batch, spent);
                    self.adapt(device, &batch, spent.took);
                }
                self.learn_ended(now, &batch);
                // Those who are run again alone come first, and any of them may be who takes it all.
                let began = batch.started;
                let anew = |since: &Time| began.is_some_and(|began| began >= *since);
                if !batch.members.iter().any(|member| member.waiting.alone)
                    && self.scarce.get(&batch.runner).is_some_and(anew)
                {
                    self.scarce.remove(&batch.runner);
                }
                self.residency.ran_well(device, batch.variant);
                self.vouch(now, batch.variant);
                let alive = batch.members.iter().filter(|m| !m.gone).map(|m| m.waiting.query.key).collect();
                self.actions.push_back(Action::Deliver { batch: id, queries: alive });
            }
            Outcome::Revoked => {
                self.actions.push_back(Action::Deliver { batch: id, queries: Vec::new() });
                self.rerun(now, device, &batch, Failure::NotStarted, "it was taken back before it ran");
            }
            Outcome::Failed { failure, why } => {
                if failure == Failure::NotStarted {
                    self.residency.lost(now, device, batch.variant, &why, &mut self.actions);
                }
                if failure == Failure::Unreachable {
                    self.residency.unreached(now, device, batch.variant, &why, &mut self.actions);
                }
                self.actions.push_back(Action::Deliver { batch: id, queries: Vec::new() });
                // Handed over behind one that took the process with it: it never ran, so it is not to blame.
                let innocent = failure.died() && took.is_none();
                if failure == Failure::Hung && !innocent {
                    self.residency.hung(device, batch.variant);
                }
                let failure = if innocent { Failure::NotStarted } else { failure };
                // By itself it is the model's own error, whatever it wanted.
                let failure = if starved && !shared { Failure::Model } else { failure };
                self.rerun(now, device, &batch, failure, &why);
            }
        }
        self.residency.released(now, device, batch.variant, &mut self.actions);
    }

    /// Notes that a lane's batch found no memory. Whether another lane runs a batch of the same process, or found none either since
    /// this one began, or memory ran out there before and nobody was answered since: then any of them may have taken what the others lacked, or the library may
    /// not have given it back.
    fn note_starved(&mut self, now: Time, id: BatchId) -> bool {
        let Some(lane) = self.all_lanes().find(|lane| lane.holds(id)) else { return false };
        let Some((runner, since)) = lane.runs_since(id) else { return false };
        let ix = lane.ix;
        let others = self.all_lanes().filter(|other| !other.holds(id));
        let beside = others.filter_map(|other| other.running.as_ref()).any(|other| other.runner == runner);
        let before = self.starved.insert(runner, (ix, now));
        let still = self.scarce.insert(runner, now).is_some();
        still || beside || before.is_some_and(|(other, at)| other != ix && at >= since)
    }

    /// Each member of a failed batch is run again alone, once: after an error of the model among the others, unless
    /// it was alone and so has its answer; after a crash in quarantine. Where a server did not answer, they are placed
    /// anew. Who found no memory alone on its lane, but beside another lane of its process, is run in quarantine: there
    /// it has a process of its own, which may hold as much.
    pub(super) fn rerun(&mut self, now: Time, device: DeviceIx, batch: &Batch, failure: Failure, why: &str) {
        let single = batch.members.len() == 1;
        for member in batch.members.iter().filter(|m| !m.gone && !m.is_asked_for()) {
            let query = member.waiting.query;
            if failure.died() {
                self.suspect(now, device, batch.variant, batch.runner, member.waiting);
            } else if failure == Failure::Memory && single {
                self.try_apart(now, device, batch.variant, member.waiting, why);
            } else if failure == Failure::Model && single {
                self.refuse(query.key, Refusal::ModelError { why: String::from(why) });
            } else if failure == Failure::Unreachable && member.waiting.missed {
                // Some other server, or the same one again: it has cost enough.
                self.refuse(query.key, Refusal::VariantFailed { why: String::from(why) });
            } else if query.expires <= now {
                self.refuse(query.key, Refusal::TooLate { waited: now - query.arrived });
            } else {
                let alone = matches!(failure, Failure::Model | Failure::Memory) || member.waiting.alone;
                let missed = failure == Failure::Unreachable || member.waiting.missed;
                let waiting = Waiting { alone, missed, ..member.waiting };
                match self.place(now, &waiting) {
                    Ok(resident) => {
                        self.push(Waiting { loaded: waiting.loaded || !resident, ..waiting });
                    }
                    Err(refusal) => {
                        self.note_missed(now, &query);
                        self.refuse(query.key, refusal);
                    }
                }
            }
        }
    }

    /// Whoever is bound to follow a batch and whose time is up hears so now, not when the device is free.
    pub(super) fn expire_bound(&mut self, now: Time) {
        let late: Vec<Waiting> = self.all_lanes_mut().flat_map(|lane| lane.expire(now)).collect();
        for waiting in late {
            let query = waiting.query;
            if waiting.came == Came::Announced {
                self.declines(query.key, Refusal::TooLate { waited: now - query.arrived });
                continue;
            }
            self.learn_missed(now, &query);
            self.refuse(query.key, Refusal::TooLate { waited: now - query.arrived });
        }
        self.expire_quarantine(now);
    }

    /// Why a query that waited out its time was not answered.
    pub(super) fn expired(&self, now: Time, query: &Query) -> Refusal {
        let waited = now - query.arrived;
        let dearest = self.residency.device_ids().flat_map(|device| {
            let serving = self.residency.serving(device).filter(|v| admits(&query.class, v));
            serving.map(move |v| v.run.cost(1, self.price(device)))
        });
        match (query.max_cost, dearest.min()) {
            (Some(ceiling), Some(alone)) if alone > ceiling => {
                let nearest = Nearest { max_cost: Some(alone), ..Nearest::default() };
                Refusal::CostUnreachable { nearest }
            }
            _ => Refusal::TooLate { waited },
        }
    }
}
