//! Who waits when not all can, and what the router tells whoever shares devices' time among applications.

use super::super::pick::{Choice, Verdict};
use super::super::sharing::{Said, Standing};
use super::lines::Freed;
use super::{End, Open, Router, Where};
use crate::query::Query;
use alloc::vec::Vec;
use modelless_types::{AppId, ClassId, Micros, QueryKey, Refusal, TaskId, Time};

/// Before every priority that can be asked for.
const FIRST: u8 = 0;
/// So many at most give way to one whose input is large.
const GIVE_WAY: usize = 16;

impl Router {
    /// At which level a query waits: others of a higher number may have to give way to it.
    pub(super) fn level(&self, now: Time, query: &Query, party: Option<AppId>) -> u8 {
        let first = self.sharing.waits_first(now, query.class.task, party);
        if first { FIRST } else { query.priority.level() }
    }

    /// Sees to it that one more can wait, or says why not.
    pub(super) fn make_room(
        &mut self,
        now: Time,
        query: &Query,
        party: Option<AppId>,
        level: u8,
    ) -> Result<(), Refusal> {
        if self.waiting >= self.limits.waiting {
            let gave_way = self.displace(now, level) || self.displace_of(now, query, party);
            self.falls_short(now, query.class.task);
            if !gave_way {
                return Err(Refusal::QueueFull { limit: self.limits.waiting });
            }
        }
        let full = |router: &Self| {
            router.waiting_bytes + query.bytes > router.limits.waiting_bytes && router.waiting > 0
        };
        if full(self) {
            self.make_room_for_bytes(now, query, party);
        }
        if full(self) {
            return Err(Refusal::BytesFull { limit: self.limits.waiting_bytes });
        }
        Ok(())
    }

    /// Those who would give up a place to one more of this application do so, if it then has room: nobody does in vain.
    fn make_room_for_bytes(&mut self, now: Time, query: &Query, party: Option<AppId>) {
        let needed = (self.waiting_bytes + query.bytes).0.saturating_sub(self.limits.waiting_bytes.0);
        let (mut freed, mut who) = (0, Vec::new());
        for key in self.sharing.give_way(query, party).take(GIVE_WAY) {
            if freed >= needed {
                break;
            }
            freed += self.open.get(&key).map_or(0, |open| open.query.bytes.0);
            who.push(key);
        }
        if freed >= needed {
            for key in who {
                self.give_up_place(now, key);
            }
        }
    }

    /// Room for a more important query: the least important one that waits, and of those the last to be due, gives up
    /// its place. False when nobody who waits is less important.
    fn displace(&mut self, now: Time, by: u8) -> bool {
        match self.ranks.last() {
            Some(&(level, _, key)) if level > by => {
                self.give_up_place(now, key);
                true
            }
            Some(_) | None => false,
        }
    }

    /// The same among the applications of a task that shares: whoever has the most waiting for its weight gives up a place to one that has
    /// less. Else whoever asks the most would have all the places, and the others would be refused before it is their turn.
    fn displace_of(&mut self, now: Time, query: &Query, party: Option<AppId>) -> bool {
        let Some(key) = self.sharing.give_way(query, party).next() else { return false };
        self.give_up_place(now, key);
        true
    }

    /// Whether another application of the task is before it and has somebody waiting. Without this whoever comes just when something is free
    /// would go by how often he comes, not by his weight.
    pub(super) fn gives_precedence(&mut self, now: Time, query: &Query) -> bool {
        let task = query.class.task;
        if !self.sharing.is_short(now, task) {
            return false;
        }
        let party = self.sharing.party(now, query);
        self.sharing.is_behind_others(task, party)
    }

    /// It waits with them, and whoever of all of them can goes to the node that it could have gone to. Where none of them can, it goes.
    pub(super) fn stands_behind(&mut self, now: Time, class: ClassId, query: Query, choice: Choice) {
        if self.waiting >= self.limits.waiting {
            return self.settle(now, class, query, Verdict::Send(choice));
        }
        let until = self.until_too_late(class, &query, choice.node);
        let key = query.key;
        self.wait(now, class, query, until);
        let freed = Freed::At(choice.node);
        self.serve_waiting(now, freed);
        let waits = |open: &Open| matches!(open.at, Where::Waiting { .. });
        if self.open.get(&key).is_some_and(waits) && self.load.has_credit(now, choice.node, query.bytes) {
            self.goes(now, class, query, freed);
        }
    }

    fn give_up_place(&mut self, now: Time, key: QueryKey) {
        self.withdraw(key, None);
        if let Some(open) = self.take(key) {
            self.falls_short(now, open.query.class.task);
        }
        self.refuse(key, Refusal::QueueFull { limit: self.limits.waiting });
    }

    /// Somebody of a task was refused for want of time or room.
    pub(super) fn falls_short(&mut self, now: Time, task: TaskId) {
        self.sharing.falls_short(now, task, self.snapshot.node_count());
    }

    /// A query is refused for this reason.
    pub(super) fn refused_for(&mut self, now: Time, query: &Query, why: &Refusal) {
        if End::refused(why) == End::Short && !query.priority.is_spare() {
            self.falls_short(now, query.class.task);
        }
    }

    /// A query ended at its node, or is past the point at which that can still be kept from it.
    pub(super) fn ended(&mut self, now: Time, open: &Open, end: End) {
        let Where::Sent { charged, .. } = open.at else { return };
        let task = open.query.class.task;
        let device = match end {
            End::Answered { device } => Some(device),
            End::Short => Some(Micros::ZERO),
            End::Unknown => None,
        };
        if open.query.priority.is_spare() {
            return;
        }
        self.sharing.took(now, task, charged, device);
        let late = matches!(end, End::Answered { .. }) && now > open.query.expires;
        if end == End::Short || late {
            self.falls_short(now, task);
        }
    }

    /// What a node gives back or has lost has cost its application nothing.
    pub(super) fn not_run(&mut self, now: Time, open: &Open) {
        if let Where::Sent { charged: charged @ Some(_), .. } = open.at {
            self.sharing.took(now, open.query.class.task, charged, Some(Micros::ZERO));
        }
    }

    /// How the application of a query stands, if not all of its task can be answered in time.
    pub(super) fn standing(&self, now: Time, query: &Query) -> Option<Standing> {
        self.sharing.standing_of(now, query.class.task, query.app)
    }

    /// How all applications of tasks stand of which not all can be answered in time. Those that are not told apart have number 0.
    pub fn standings(&self, now: Time) -> Vec<(TaskId, AppId, Standing)> {
        self.sharing.standings(now)
    }

    /// Others share now, or in other parts: all who wait stand in line anew.
    pub(super) fn share_anew(&mut self, now: Time, said: &[Said]) {
        self.lines.clear();
        self.sharing.say(said);
        let keys: Vec<QueryKey> = self.open.keys().copied().collect();
        for key in keys {
            let Some(Open { query, at }) = self.open.get(&key).cloned() else { continue };
            let (Where::Waiting { level: before, .. } | Where::Announced { level: before, .. }) = at else {
                continue;
            };
            let party = self.sharing.party(now, &query);
            let level = self.level(now, &query, party);
            self.ranks.remove(&(before, query.deadline, key));
            self.ranks.insert((level, query.deadline, key));
            let at = match at {
                Where::Waiting { class, until, .. } => {
                    let place = self.stands_in_line(class, &query, party);
                    Where::Waiting { class, until, place, level }
                }
                Where::Announced { until, .. } => {
                    self.sharing.waits(&query, party);
                    Where::Announced { until, party, level }
                }
                Where::Sent { .. } => at,
            };
            self.open.insert(key, Open { query, at });
        }
        self.serve_waiting(now, Freed::Anywhere);
    }
}
