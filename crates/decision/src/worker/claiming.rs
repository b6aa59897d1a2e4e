//! Asking for announced queries, and batches that wait to hear which of them they get.
//!
//! A batch with members that were only announced is bound like any other. But before anything of it is prepared its gateways are asked for those members, and each
//! says yes, by sending the query with its input, or no, since another node was first or nobody waits any longer. With those who came the batch
//! goes on, however few they are; with none it is forgotten, and its lane binds anew. The gateway decides, once for each query, so nothing runs
//! twice.
//!
//! How long that takes is learnt, and batches are bound so much earlier, so that a lane which is busy never waits for it. A gateway that says nothing is
//! not waited for any longer than [`Claiming::patience`]; what comes from it after that is a query like any that is sent.

use super::api::{Action, Failure, WorkerVariant};
use super::lanes::Member;
use super::machine::Worker;
use super::queue::Came;
use crate::estimate::Moments;
use crate::query::Query;
use alloc::vec::Vec;
use modelless_types::{Micros, PricePerHour, QueryKey, Time};

/// The weight of the last claim in what is known of how long they take.
const NEW: f64 = 1.0 / 8.0;
/// Taken for granted before the first.
const USUAL: f64 = 500.0;
/// No batch is bound earlier than this because of claims, in microseconds: what takes longer is left to nearer nodes.
const MOST: f64 = 20e3;
/// So many times as long as claims take on the average they may take.
const PATIENCE: u64 = 4;
/// And so long beyond.
const GRACE: Micros = Micros::from_millis(5);

/// How long claims take, until the last that was asked for is here, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claiming(f64);

impl Default for Claiming {
    fn default() -> Self {
        Self(USUAL)
    }
}

impl Claiming {
    #[must_use]
    fn took(self, time: Micros) -> Self {
        let time = Moments::exactly(time).mean.min(MOST);
        Self(self.0 + NEW * (time - self.0))
    }

    fn way(self) -> Micros {
        Moments { mean: self.0, var: 0.0 }.mean()
    }

    fn patience(self) -> Micros {
        Micros(self.way().0.saturating_mul(PATIENCE)) + GRACE
    }
}

impl Worker {
    /// How long it takes from asking for queries until they are here.
    pub(super) fn claims_take(&self) -> Micros {
        self.claiming.way()
    }

    /// Asks for the members of a batch that were only announced.
    pub(super) fn claim(&mut self, queries: Vec<QueryKey>) {
        let lanes = u16::try_from(self.lanes.len()).unwrap_or(u16::MAX);
        self.actions.push_back(Action::Claim { queries, lanes });
    }

    /// A query came. Whether a batch waited for it.
    pub(super) fn granted(&mut self, now: Time, query: &Query) -> bool {
        let asking =
            self.lanes.iter_mut().filter_map(|lane| lane.next.as_mut().filter(|b| b.claims.is_some()));
        let mut members = asking.flat_map(|batch| batch.members.iter_mut());
        let Some(member) =
            members.find(|member| member.is_asked_for() && member.waiting.query.key == query.key)
        else {
            return false;
        };
        member.waiting.query = *query;
        member.waiting.came = Came::Claimed;
        self.rates.claimed(now, &query.class);
        self.note_width(now, query);
        true
    }

    /// The batch that follows on a lane goes on as soon as it is known of all its members whether they come.
    pub(super) fn settle_claims(&mut self, now: Time, at: usize) {
        let Some(since) = self.lanes[at].next.as_ref().and_then(|next| next.claims) else { return };
        let (device, ix) = (self.lanes[at].device, self.lanes[at].ix);
        let (price, patience) = (self.price(device), self.claiming.patience());
        let Some(batch) = self.lanes[at].next.as_mut() else { return };
        let known = !batch.members.iter().any(Member::is_asked_for);
        if !known && now - since < patience {
            return;
        }
        // Where patience ran out they take at least as long, and the next are given more.
        self.claiming = self.claiming.took(now - since);
        batch.members.retain(|member| !member.gone && member.waiting.came != Came::Announced);
        let Some(variant) = self.residency.variant(batch.variant) else {
            // It left the catalogue meanwhile, and what a batch of it takes is not known any more.
            let Some(batch) = self.lanes[at].next.take() else { return };
            self.residency.released(now, device, batch.variant, &mut self.actions);
            return self.rerun(
                now,
                device,
                &batch,
                Failure::NotStarted,
                "its variant was gone before it ran",
            );
        };
        // With fewer each costs more. Who does not pay as much waits on: it is this node's now.
        for member in beyond_ceiling(variant, price, &mut batch.members) {
            self.queue.push(member.waiting);
        }
        if batch.members.is_empty() {
            let variant = batch.variant;
            self.lanes[at].next = None;
            return self.residency.released(now, device, variant, &mut self.actions);
        }
        batch.claims = None;
        let size = u32::try_from(batch.members.len()).unwrap_or(u32::MAX);
        batch.expected = self.residency.estimate(variant, size);
        batch.running = variant.run.running(size);
        self.actions.push_back(batch.prepare(device, ix));
    }

    /// When the first batch that waits to hear of its members goes on without those of whom nothing is heard.
    pub(super) fn next_claim_over(&self) -> Option<Time> {
        let since = self.lanes.iter().filter_map(|lane| lane.next.as_ref()?.claims).min();
        since.map(|since| since + self.claiming.patience())
    }
}

/// Takes out those whose ceiling the batch would break, until it holds for those who stay.
fn beyond_ceiling(variant: &WorkerVariant, price: PricePerHour, members: &mut Vec<Member>) -> Vec<Member> {
    let mut beyond = Vec::new();
    while !members.is_empty() {
        let cost = variant.run.cost(u32::try_from(members.len()).unwrap_or(u32::MAX), price);
        let dear = |member: &mut Member| {
            let query = &member.waiting.query;
            !query.best_effort && query.max_cost.is_some_and(|ceiling| cost > ceiling)
        };
        let before = beyond.len();
        beyond.extend(members.extract_if(.., dear));
        if beyond.len() == before {
            break;
        }
    }
    beyond
}
