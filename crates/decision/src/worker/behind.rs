//! Who goes back to the gateway: those who wait unbound and cannot be in time here, while another node may still be.
//!
//! The gateway says of each query whether another node could answer it at all; where there is none, nothing here happens.
//! A query goes back at most once, so two nodes that have both fallen behind do not pass it to and fro.

use super::api::Action;
use super::bind::{admits, slack};
use super::machine::Worker;
use super::queue::{Came, Waiting};
use crate::estimate::Moments;
use crate::query::{Class, Query};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use modelless_types::{DeviceIx, Micros, QueryKey, Refusal, Time, VariantId};

/// So often at most it is asked again without an event whether those who wait can be in time.
const LOOK: Micros = Micros::from_millis(1);

/// So often at least while somebody waits who may go: a wake that does not come is how this machine notices that it stood still.
const LOOK_MOST: Micros = Micros::from_millis(10);
/// What ended while this machine stood still is told within so long after.
const SETTLES: Micros = Micros::from_millis(10);
/// Whoever is late by chance is not so because of a timer that wakes some milliseconds late on a busy machine, but may be after this.
const STANDSTILL: Micros = Micros::from_millis(100);
/// A timer may wake so late though all is well.
const WAKES_LATE: Micros = Micros::from_millis(2);

/// Who would be in time on a device.
struct Outlook {
    in_time: BTreeSet<QueryKey>,
    /// By how much the one with the least to spare is.
    spare: f64,
}

impl Worker {
    /// A query that nothing here has begun will not be answered here: another node may do better, or it hears no.
    /// Whether it is the latter.
    pub(super) fn give_up(&mut self, now: Time, waiting: &Waiting, why: Refusal) -> bool {
        let query = &waiting.query;
        if waiting.came == Came::Announced {
            self.declines(query.key, why);
            return false;
        }
        self.note_missed(now, query);
        let goes = self.config.hand_back && may_go(waiting) && (query.best_effort || query.expires > now);
        if goes {
            self.actions.push_back(Action::HandBack { key: query.key, why });
        } else {
            self.refuse(query.key, why);
        }
        !goes
    }

    /// Whether a query was here while this machine did not run for so long that whoever is late is so because of that.
    pub(super) fn stood_still(&self, now: Time, query: &Query) -> bool {
        let asked = self.look_back.into_iter().chain(self.suspect_at).min();
        query.arrived < self.stood_still_until || asked.is_some_and(|at| now - at > STANDSTILL)
    }

    /// A query leaves unanswered: where nothing in memory could have answered it, its class is owed a turn.
    pub(super) fn note_missed(&mut self, now: Time, query: &Query) {
        if !self.servable(&query.class) {
            self.rates.missed(now, &query.class);
        }
    }

    /// A gateway asks for a variant: it does not say for whom, and may have refused them because they could not wait.
    pub(super) fn note_called(&mut self, now: Time, variant: VariantId) {
        let Some(called) = self.residency.variant(variant) else { return };
        let classes = self.rates.lately(now).filter(|class| admits(class, called) && !self.servable(class));
        let classes: Vec<Class> = classes.copied().collect();
        for class in &classes {
            self.rates.missed(now, class);
        }
    }

    /// Gives back those who would be late though everything before them were answered at its quickest.
    pub(super) fn hand_back(&mut self, now: Time) {
        if !self.queue.any_returnable() || !self.config.hand_back {
            return;
        }
        let devices: Vec<DeviceIx> = self.residency.device_ids().collect();
        let mut spare = f64::INFINITY;
        if devices.iter().any(|device| self.all_in_time(now, *device, &mut spare)) {
            return self.look_again(now, spare);
        }
        let mut in_time = BTreeSet::new();
        for device in devices {
            let outlook = self.outlook(now, device);
            spare = spare.min(outlook.spare);
            in_time.extend(outlook.in_time);
        }
        let goes = |waiting: &&Waiting| {
            let query = &waiting.query;
            may_go(waiting)
                && !query.best_effort
                && !in_time.contains(&query.key)
                && !self.could_wait_for_load(now, query)
        };
        let mut going: Vec<Waiting> = self.queue.all().filter(goes).copied().collect();
        going.sort_unstable_by_key(|waiting| waiting.query.key);
        for waiting in going {
            self.queue.remove(waiting.query.key);
            let waited = now - waiting.query.arrived;
            self.give_up(now, &waiting, Refusal::TooLate { waited });
        }
        if self.queue.any_returnable() {
            self.look_again(now, spare);
        }
    }

    /// Asked for a wake, and not woken: this machine did not run. Whoever was to be told how late they are would be told of that.
    pub(super) fn notice_standstill(&mut self, now: Time) {
        let asked = self.look_back.take().into_iter().chain(self.suspect_at.take()).min();
        let late = asked.map_or(Micros::ZERO, |at| (now - at).saturating_sub(WAKES_LATE));
        self.lanes.iter_mut().for_each(|lane| lane.stood_still(late));
        if late > STANDSTILL {
            self.stood_still_until = now;
        }
        if late > Micros::ZERO {
            self.suspect_from = now + SETTLES;
        }
    }

    /// While what runs is held up nothing may happen, and then nobody would be told in time. So it is asked again when all
    /// lanes of a device have run longer than they should, and after that whenever half of what can be spared has passed, and now
    /// and then in any case. A device that none of those who wait can use says nothing of them.
    fn look_again(&mut self, now: Time, spare: f64) {
        let half = Moments { mean: spare.clamp(0.0, 1e9) / 2.0, var: 0.0 }.mean();
        let serves = |device: &DeviceIx| {
            self.queue.classes().any(|(class, _)| self.per_query(*device, class).is_some())
        };
        let due = |device: DeviceIx| {
            let lanes = self.lanes.iter().filter(|lane| lane.device == device);
            lanes.filter_map(|lane| lane.due(now)).max().unwrap_or(Micros::ZERO)
        };
        let first = self.residency.device_ids().filter(serves).map(due).min();
        self.look_back = Some(now + half.max(first.unwrap_or(Micros::ZERO)).clamp(LOOK, LOOK_MOST));
    }

    /// The quick answer: whether all who wait, together, end before the first of them is due.
    fn all_in_time(&self, now: Time, device: DeviceIx, spare: &mut f64) -> bool {
        let Some((first, _)) = self.queue.first_expiry() else { return true };
        let lanes = self.lanes_there(device);
        let mut at = self.free(now, device);
        for (class, waiting) in self.queue.classes() {
            let Some(each) = self.per_query(device, class) else { return false };
            let waiting = f64::from(u32::try_from(waiting).unwrap_or(u32::MAX)) * self.falls_here(class);
            at += each.times(waiting / lanes);
        }
        let left = Moments::exactly(first - now).mean - at.mean;
        *spare = left.max(0.0);
        left >= 0.0
    }

    /// Who of those that wait is in time on a device, earliest deadline first. Whoever is not takes no time of it.
    fn outlook(&self, now: Time, device: DeviceIx) -> Outlook {
        let classes = self.queue.classes().map(|(class, _)| *class);
        let rates: BTreeMap<Class, Moments> =
            classes.filter_map(|class| Some((class, self.per_query(device, &class)?))).collect();
        let (lanes, mut at) = (self.lanes_there(device), self.free(now, device));
        let (mut in_time, mut spare) = (BTreeSet::new(), f64::INFINITY);
        for waiting in self.queue.merged(|class| rates.contains_key(class)) {
            let Some(each) = rates.get(&waiting.query.class) else { continue };
            let after = at + each.times(self.part_here(waiting) / lanes);
            let left = slack(now, waiting) - after.mean;
            if left >= 0.0 {
                at = after;
                spare = spare.min(left);
                in_time.insert(waiting.query.key);
            }
        }
        Outlook { in_time, spare }
    }

    fn lanes_there(&self, device: DeviceIx) -> f64 {
        let lanes = self.lanes.iter().filter(|lane| lane.device == device).count();
        f64::from(u32::try_from(lanes).unwrap_or(u32::MAX).max(1))
    }

    fn free(&self, now: Time, device: DeviceIx) -> Moments {
        let lanes = self.lanes.iter().filter(|lane| lane.device == device);
        let free = lanes.map(|lane| lane.until_free_if_held_up(now) + self.held_up_for(now, lane));
        free.min_by(|a, b| a.mean.total_cmp(&b.mean)).unwrap_or(Moments::ZERO)
    }
}

/// Whether a query may go back at all. What is suspected of having ended a process is not passed on.
fn may_go(waiting: &Waiting) -> bool {
    waiting.query.returnable && !waiting.alone && !waiting.missed
}
