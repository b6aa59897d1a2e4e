//! The choice of variant and batch for a lane whose prepared slot is free.
//!
//! The query with the earliest deadline leads, but for turns (`turns`) and pressed devices (`pressed`). Its variants, those that the device can afford for all that is asked (`level`), are tried in the order it prefers, each with the batch that
//! can be drawn for it in time; the first of those is taken with which the fewest others would not be in time
//! (`ahead`). So a backlog, or what is about to come, makes answers cheaper, down to each query's floor and never below,
//! before anything is shed, and an overload that stays keeps the variant with the highest throughput.

use super::ahead::{Ahead, Whom};
use super::api::WorkerVariant;
use super::lanes::Lane;
use super::level::Level;
use super::machine::Worker;
use super::pressed::Pressed;
use super::queue::{Came, Waiting};
use super::reason::Reason;
use crate::estimate::Moments;
use crate::query::Class;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::cell::{Cell, OnceCell, RefCell};
use core::cmp::Ordering;
use modelless_types::{
    Batching, DeviceIx, Prefer, PricePerHour, Priority, QueryKey, TaskId, Time, VariantId,
};

/// A batch that could be bound.
pub(super) struct Binding {
    pub(super) variant: VariantId,
    pub(super) members: Vec<QueryKey>,
    pub(super) reasons: Vec<Reason>,
    pub(super) expected: Moments,
    /// What waits behind it can be in time.
    pub(super) drains: bool,
    /// It was played, and nobody is missed, not even of those to come.
    pub(super) nobody_missed: bool,
    pub(super) batching: Batching,
    /// Behind another, although nothing is surely in time.
    pub(super) chance: bool,
    /// Too early to bind it.
    pub(super) until: Option<Time>,
}

/// What to do with a lane's free slot.
pub(super) enum Bound {
    Batch(Binding),
    /// These can no longer be in time anywhere here, or give way to others like them.
    Late(Vec<QueryKey>),
    /// This one could be, but somebody more important could not then.
    GivesPlace(QueryKey),
    /// This one could be, but too many of its like came late.
    TooUnsure(QueryKey),
    /// Nothing before this moment; `None`: not before something happens.
    Later(Option<Time>),
}

impl Worker {
    pub(super) fn bind_for(&self, now: Time, lane: &Lane) -> Bound {
        let serving = self.serving_on(lane);
        if serving.is_empty() {
            return Bound::Later(None);
        }
        if let Some(until) = self.surely_too_early(now, lane, &serving) {
            return Bound::Later(Some(until));
        }
        let price = self.price(lane.device);
        let rates = self.rates(now, lane.device, &serving);
        if let Some(key) = self.sheds(now, lane, &rates) {
            return Bound::GivesPlace(key);
        }
        let (ahead, ample) = (OnceCell::new(), OnceCell::new());
        let mut later: Option<Time> = None;
        let mut late: Vec<QueryKey> = Vec::new();
        let mut deferred: BTreeSet<TaskId> = BTreeSet::new();
        let first = self.goes_first(now, lane);
        let others = self.others_turn(now, lane, &serving, &ample);
        let is_first = |waiting: &&Waiting| match &others {
            Some(others) => others.has(waiting),
            None => self.is_first(lane.device, waiting, first),
        };
        let heads = self.queue.merged(|class| rates.contains_key(class)).filter(is_first);
        let then = self.queue.merged(|class| rates.contains_key(class)).filter(|waiting| !is_first(waiting));
        let goes_before = |head: &Waiting| others.as_ref().is_some_and(|others| others.has(head));
        let mut turn_kept = false;
        for head in heads.chain(then) {
            if turn_kept && !goes_before(head) {
                break; // it is somebody's turn who is bound a little later
            }
            if deferred.contains(&head.query.class.task) {
                continue;
            }
            let draw = Draw {
                worker: self,
                now,
                lane,
                device: lane.device,
                price,
                serving: &serving,
                ahead: &ahead,
                ample: &ample,
                level: self.levels.get(&lane.device),
                limited: Cell::new(true),
                head,
                others: RefCell::default(),
            };
            if !draw.in_time_alone() {
                // Skipped while another lane or a server is free sooner, or a load could still bring an answer in time.
                if draw.in_time_elsewhere()
                    || draw.in_time_apart()
                    || self.could_wait_for_load(now, &head.query)
                {
                    continue;
                }
                late.push(head.query.key);
                continue;
            }
            if !late.is_empty() {
                break;
            }
            if let Some(until) = self.leaves_to_quicker(now, lane, head) {
                later = Some(later.map_or(until, |known| known.min(until)));
                continue;
            }
            let pressed = match draw.pressed() {
                Some(Pressed::GivesWay) => return Bound::Late(alloc::vec![head.query.key]),
                Some(Pressed::Elsewhere) => continue,
                Some(Pressed::Goes(binding)) => Some(binding),
                None => None,
            };
            let is_pressed = pressed.is_some();
            // With none, only its price ceiling is in the way: more of its kind may yet come and share the batch.
            match pressed.or_else(|| draw.best()).or_else(|| draw.last_chance()) {
                Some(Binding { until: Some(until), variant, .. }) => {
                    let apart = self.residency.variant(variant).is_some_and(|v| self.apart(v));
                    turn_kept |= goes_before(head) && lane.running.is_some() && !apart;
                    later = Some(later.map_or(until, |known| known.min(until)));
                    if first.is_some() && is_pressed {
                        break; // a whole batch of what is cheap may only grow; what is dear does not go before it
                    }
                    deferred.insert(head.query.class.task);
                }
                // Where there is ample time for turns nobody is refused so that others gain.
                Some(binding) if !is_pressed && others.is_none() && draw.gives_way(&binding) => {
                    return Bound::Late(alloc::vec![head.query.key]);
                }
                Some(binding) if draw.is_too_unsure(&binding) && draw.has_another_place(&binding) => {}
                Some(binding) if draw.is_too_unsure(&binding) => {
                    return Bound::TooUnsure(head.query.key);
                }
                Some(binding) => return Bound::Batch(binding),
                None => {}
            }
        }
        if !late.is_empty() {
            return Bound::Late(late);
        }
        Bound::Later(later)
    }

    /// What could run on a lane now.
    pub(super) fn serving_on(&self, lane: &Lane) -> Vec<&WorkerVariant> {
        let free = |v: &&WorkerVariant| !self.residency.tried(lane.device, v.id) && !self.held_up(lane, v);
        self.residency.serving(lane.device).filter(free).collect()
    }

    /// Device time per query, at its fastest, of each class that waits here or at the gateways and can be served.
    fn rates(&self, now: Time, device: DeviceIx, serving: &[&WorkerVariant]) -> BTreeMap<Class, Moments> {
        let waiting = self.queue.classes().map(|(class, _)| *class);
        let classes = waiting.chain(self.queue.demand(now).map(|(class, _)| *class));
        let served = classes.filter(|class| serving.iter().any(|v| admits(class, v)));
        served.filter_map(|class| Some((class, self.per_query(device, &class)?))).collect()
    }

    /// How long until a batch bound to a lane now could run.
    pub(super) fn start(&self, now: Time, lane: &Lane) -> Moments {
        if lane.running.is_some() { lane.remaining(now) } else { self.handover.moments() }
    }

    /// How long until some lane of a device could start a batch bound now.
    pub(super) fn soonest(&self, now: Time, device: DeviceIx) -> Moments {
        let lanes = self.lanes.iter().filter(|lane| lane.device == device);
        let free = lanes.map(|lane| lane.until_free(now));
        free.min_by(|a, b| a.mean.total_cmp(&b.mean)).unwrap_or(Moments::ZERO)
    }

    /// Device time per query of a class at its fastest, batched; `None` when nothing resident may answer it.
    pub(super) fn per_query(&self, device: DeviceIx, class: &Class) -> Option<Moments> {
        let serving = self.residency.serving(device).filter(|v| admits(class, v));
        let serving = serving.filter(|v| !self.held_up_everywhere(device, v));
        serving.map(|v| self.residency.batched(v)).min_by(|a, b| a.mean.total_cmp(&b.mean))
    }
}

/// Whether a class may be answered by a variant.
pub(super) fn admits(class: &Class, variant: &WorkerVariant) -> bool {
    class.task == variant.task && class.admits.contains(variant.ordinal)
}

/// The time a query leaves for work, from now.
pub(super) fn slack(now: Time, waiting: &Waiting) -> f64 {
    if waiting.query.best_effort { f64::INFINITY } else { Moments::exactly(waiting.query.expires - now).mean }
}

/// A batch that takes at most so many times as much for each gains nothing: profiles scatter by as much.
const EVEN: f64 = 1.03;
/// So many are tried to be given up together.
const WITHOUT: [usize; 5] = [1, 4, 16, 32, 64];

pub(super) struct Draw<'a> {
    pub(super) worker: &'a Worker,
    pub(super) now: Time,
    pub(super) lane: &'a Lane,
    pub(super) device: DeviceIx,
    price: PricePerHour,
    pub(super) serving: &'a [&'a WorkerVariant],
    /// Made when it is asked for the first time.
    ahead: &'a OnceCell<Ahead>,
    /// The same: see `turns`.
    pub(super) ample: &'a OnceCell<bool>,
    /// What may answer whom for now.
    pub(super) level: Option<&'a Level>,
    /// Whether that is heeded.
    limited: Cell<bool>,
    pub(super) head: &'a Waiting,
    /// See [`Draw::others`].
    others: RefCell<Others<'a>>,
}

/// Those of the queue that were looked at, and those that follow.
#[derive(Default)]
struct Others<'a> {
    seen: Vec<&'a Waiting>,
    rest: Option<Box<dyn Iterator<Item = &'a Waiting> + 'a>>,
}

impl<'a> Draw<'a> {
    /// Who may go with the head, whatever runs: earliest deadline first, of each class more than any batch takes. No further ones are looked at
    /// than are asked for: each is some way off in memory.
    pub(super) fn others(&self) -> impl Iterator<Item = &'a Waiting> {
        (0..).map_while(|at| self.other(at))
    }

    fn other(&self, at: usize) -> Option<&'a Waiting> {
        let mut others = self.others.borrow_mut();
        let Others { seen, rest } = &mut *others;
        if at < seen.len() {
            return Some(seen[at]);
        }
        let rest = rest.get_or_insert_with(|| {
            let largest = self.serving.iter().map(|v| self.worker.largest(self.device, v)).max().unwrap_or(1);
            let with = |class: &Class| self.admitted().any(|v| admits(class, v));
            let others = self.worker.queue.first(&with, largest.saturating_mul(2));
            let key = self.head.query.key;
            Box::new(others.filter(move |w| w.query.key != key && !w.alone))
        });
        let next = rest.next()?;
        seen.push(next);
        Some(next)
    }

    fn ahead(&self) -> &Ahead {
        self.ahead.get_or_init(|| Ahead::new(self.worker, self.now, self.lane, self.serving))
    }

    /// Whether the head more likely than not is in time if it goes alone, here.
    fn in_time_alone(&self) -> bool {
        let slack = slack(self.now, self.head);
        self.admitted().any(|v| self.worker.in_time_alone(self.now, self.device, v, self.start(v), slack))
    }

    /// The same when some lane can start it, with what is held up on this one, too.
    pub(super) fn in_time_elsewhere(&self) -> bool {
        let (worker, slack) = (self.worker, slack(self.now, self.head));
        let start = worker.soonest(self.now, self.device);
        let may = |v: &&WorkerVariant| {
            admits(&self.head.query.class, v)
                && !worker.residency.tried(self.device, v.id)
                && !worker.held_up_everywhere(self.device, v)
        };
        let mut others = worker.residency.serving(self.device).filter(may);
        others.any(|v| worker.in_time_alone(self.now, self.device, v, start, slack))
    }

    /// The same on a server, whose ways may be full now.
    pub(super) fn in_time_apart(&self) -> bool {
        self.worker.in_time_apart(self.now, self.device, self.head, slack(self.now, self.head))
    }

    /// How long until a batch of a variant could start.
    pub(super) fn start(&self, variant: &WorkerVariant) -> Moments {
        let start = self.worker.start_of(self.now, self.lane, variant);
        if self.head.came != Came::Announced {
            return start;
        }
        // It has to be asked for first.
        Moments { mean: start.mean.max(Moments::exactly(self.worker.claims_take()).mean), ..start }
    }

    /// The head alone with the fastest, where nothing is in time for certain: a probable answer is worth more than a
    /// sure refusal.
    fn last_chance(&self) -> Option<Binding> {
        let slack = slack(self.now, self.head);
        let sure = |v: &WorkerVariant| (self.start(v) + v.run.estimate(1)).within(slack);
        let mean = |v: &WorkerVariant| v.run.estimate(1).mean;
        if self.admitted().any(|v| sure(v)) {
            return None; // its price ceiling is in the way
        }
        let quickest = self.admitted().min_by(|a, b| mean(a).total_cmp(&mean(b)))?;
        Some(self.bind(quickest, Reason::InTime, &self.draw(quickest, 1)?))
    }

    pub(super) fn admitted(&self) -> impl Iterator<Item = &&WorkerVariant> {
        self.serving.iter().filter(|v| admits(&self.head.query.class, v))
    }

    fn best(&self) -> Option<Binding> {
        let class = &self.head.query.class;
        let all: Vec<&WorkerVariant> = self.admitted().copied().collect();
        let allowed: Vec<&WorkerVariant> = all.iter().copied().filter(|v| self.allows(class, v)).collect();
        let limited = allowed.len() < all.len();
        self.best_of(allowed).or_else(|| {
            // Rates say nothing of one who has little time or money left, nor of what is held up: rather what the device cannot afford
            // for all, for whoever may have it, than nothing.
            self.limited.set(false);
            if limited { self.best_of(all) } else { None }
        })
    }

    pub(super) fn allows(&self, class: &Class, variant: &WorkerVariant) -> bool {
        !self.limited.get() || self.level.is_none_or(|level| level.allows(class, variant.id))
    }

    fn best_of(&self, mut order: Vec<&WorkerVariant>) -> Option<Binding> {
        // Whether what it would prefer is beyond what the device can afford.
        let admitted = self.admitted().count();
        let liked = || self.admitted().min_by(|a, b| self.preferred(a, b)).map(|v| v.id);
        order.sort_by(|a, b| self.preferred(a, b));
        let beyond = order.len() < admitted && liked() != order.first().map(|v| v.id);
        // The first by preference of those with which the fewest are missed. After the first the one that takes the least of the
        // device is looked at: if not all can be answered it is likely to be that, and the others need not be played to the end.
        let mut turns: Vec<usize> = (0..order.len()).collect();
        let each = |at: &usize| self.worker.residency.batched(order[*at]).mean;
        if let Some(widest) = (1..order.len()).min_by(|a, b| each(a).total_cmp(&each(b))) {
            turns[1..=widest].rotate_right(1);
        }
        let mut chosen: Option<(u32, usize, Vec<&Waiting>, &WorkerVariant, Reason)> = None;
        let mut short = false;
        for turn in 0..turns.len() {
            if turn == 2 && chosen.as_ref().is_some_and(|(missed, ..)| *missed > 0) {
                // Not all can be answered: the next that takes little of the device may do as well, and where it does worse so do all that take more.
                short = true;
                turns[2..].sort_by(|a, b| each(a).total_cmp(&each(b)));
            }
            let rank = turns[turn];
            let variant = order[rank];
            let lead = match (admitted, rank) {
                (1, _) => Reason::Only,
                (_, 0) if beyond => Reason::Affordable,
                (_, 0) => Reason::Preferred(self.head.query.prefer),
                _ => Reason::InTime,
            };
            let Some(members) = self.fill(variant) else { continue };
            let missed = match self.worker.batching(variant) {
                Batching::Deadline => {
                    let known = chosen.as_ref().map_or(u32::MAX, |(known, ..)| known.saturating_add(1));
                    self.ahead().missed(variant.id, members.len(), Whom::AndToCome, known)
                }
                Batching::Aimd | Batching::Fixed { .. } | Batching::Off => {
                    u32::from(!self.in_time(variant, members.len()))
                }
            };
            if short && chosen.as_ref().is_some_and(|(known, ..)| missed > *known) {
                break;
            }
            if chosen.as_ref().is_none_or(|(known, at, ..)| (missed, rank) < (*known, *at)) {
                chosen = Some((missed, rank, members, variant, lead));
            }
            // What follows is preferred less; after the second turn it may not be.
            if missed == 0 && !short && (turn != 1 || rank == 1) {
                break;
            }
        }
        let (mut missed, _, mut members, variant, lead) = chosen?;
        if self.worker.batching(variant) == Batching::Deadline {
            self.shorter(variant, &mut members, &mut missed);
        }
        let members = self.smaller(variant, &members, missed).unwrap_or(members);
        let by_deadline = self.worker.batching(variant) == Batching::Deadline;
        // Whether a queue grows is told by what is foreseen, not by how cautious one is about that.
        let drains = missed == 0 || !by_deadline || self.ahead().drains(variant.id, members.len());
        Some(Binding { drains, nobody_missed: missed == 0, ..self.bind(variant, lead, &members) })
    }

    /// The first query of a batch decides what it prefers.
    pub(super) fn preferred(&self, a: &WorkerVariant, b: &WorkerVariant) -> Ordering {
        let alone = |v: &WorkerVariant| self.worker.residency.estimate(v, 1).p99_f64();
        let quicker = || alone(a).total_cmp(&alone(b));
        match self.head.query.prefer {
            Prefer::Accuracy => b.accuracy.cmp(&a.accuracy).then_with(quicker),
            Prefer::Cost => {
                let batch = u32::try_from(self.worker.queue.len()).unwrap_or(u32::MAX).max(1);
                let cost = |v: &WorkerVariant| v.run.cost(batch.min(v.max_batch), self.price);
                cost(a).cmp(&cost(b)).then_with(quicker)
            }
            Prefer::Latency => quicker().then(b.accuracy.cmp(&a.accuracy)),
        }
    }

    /// Draws a batch for a variant: the head, and whoever else it may answer, while all stay in time, or as many as
    /// the task's way of batching says. `None` if the head does not get into it.
    fn fill(&self, variant: &WorkerVariant) -> Option<Vec<&'a Waiting>> {
        let largest = if self.head.alone { 1 } else { self.worker.largest(self.device, variant) };
        let largest = self.in_turn(variant, largest);
        let alone = self.start(variant) + self.worker.residency.estimate(variant, 1);
        let by_deadline = self.worker.batching(variant) == Batching::Deadline;
        if by_deadline && !alone.within(slack(self.now, self.head)) {
            return None;
        }
        self.draw(variant, largest)
    }

    /// Halves a batch that gains nothing by its size for as long as no more are missed so: a long one keeps its own first waiting for its last, and holds
    /// its lane up for whoever comes with a tight bound. Never one that gains: after it everything is taken to be done as quickly as can be, so that a small one seems to cost
    /// nothing, and the next one would not either.
    fn shorter(&self, variant: &WorkerVariant, members: &mut Vec<&'a Waiting>, missed: &mut u32) {
        let takes = self.worker.residency.takes(variant);
        let each = |n: usize| {
            let n = u32::try_from(n).unwrap_or(u32::MAX);
            takes(n).mean / f64::from(n)
        };
        let most = each(members.len()) * EVEN;
        while *missed > 0 && members.len() > 1 && each(members.len() / 2) <= most {
            let Some(fewer) = self.draw(variant, members.len() / 2) else { return };
            let most = missed.saturating_add(1);
            let would = self.ahead().missed(variant.id, fewer.len(), Whom::AndToCome, most);
            if would > *missed {
                return;
            }
            (*members, *missed) = (fewer, would);
        }
    }

    /// The same batch with fewer members, where that wastes nothing. With time to `spare` it may waste a little, if
    /// what is left out drains all the same.
    fn smaller(
        &self,
        variant: &WorkerVariant,
        members: &[&'a Waiting],
        missed: u32,
    ) -> Option<Vec<&'a Waiting>> {
        let drawn = members.len();
        if drawn < 2 || self.worker.batching(variant) != Batching::Deadline {
            return None;
        }
        // When the largest batch there can be is waiting, throughput is what is short.
        let spare = missed == 0 && drawn < self.worker.largest(self.device, variant);
        let enough = self.worker.enough(self.device, variant, drawn, spare);
        let smaller = if enough < drawn { self.draw(variant, enough) } else { None };
        smaller.filter(|smaller| {
            !spare || self.ahead().missed(variant.id, smaller.len(), Whom::AndToCome, 1) == 0
        })
    }

    /// To be as sure of a batch as of one alone would keep batches small, and small batches miss more.
    pub(super) fn draw(&self, variant: &WorkerVariant, largest: usize) -> Option<Vec<&'a Waiting>> {
        self.draw_as_sure(variant, largest, Moments::mostly_within)
    }

    /// The same, where a batch of several may be bound only if it is so sure to be in time.
    pub(super) fn draw_as_sure(
        &self,
        variant: &WorkerVariant,
        largest: usize,
        in_time: fn(Moments, f64) -> bool,
    ) -> Option<Vec<&'a Waiting>> {
        if !self.payable(variant) {
            return None;
        }
        let sure = self.worker.batching(variant) == Batching::Deadline && largest > 1;
        let takes = self.worker.residency.takes(variant);
        let start = self.start(variant);
        let fits = |batch: usize, slack: f64| {
            let ends = start + takes(u32::try_from(batch).unwrap_or(u32::MAX));
            if batch == 1 { ends.within(slack) } else { in_time(ends, slack) }
        };
        let mut members: Vec<&Waiting> = Vec::with_capacity(largest.min(self.worker.queue.len()).max(1));
        let mut tightest = f64::INFINITY;
        // Most of those who wait in a row are of one class.
        let mut last: Option<(Class, bool)> = None;
        let mut may = |class: &Class| match last {
            Some((known, may)) if known == *class => may,
            _ => {
                let may = admits(class, variant) && self.allows(class, variant);
                last = Some((*class, may));
                may
            }
        };
        let others = self.others().filter(|w| may(&w.query.class));
        for waiting in core::iter::once(self.head).chain(others) {
            if members.len() >= largest {
                break;
            }
            let slack = slack(self.now, waiting).min(tightest);
            if sure && !fits(members.len() + 1, slack) {
                if members.is_empty() {
                    return None;
                }
                if slack < tightest {
                    continue; // this one alone is too tight; it gets its turn with something faster
                }
                break;
            }
            tightest = slack;
            members.push(waiting);
        }
        self.affordable(variant, &mut members);
        (members.first()?.query.key == self.head.query.key).then_some(members)
    }

    /// Whether the head is in time in a batch of so many.
    fn in_time(&self, variant: &WorkerVariant, members: usize) -> bool {
        let batch = u32::try_from(members).unwrap_or(u32::MAX);
        let takes = self.worker.residency.estimate(variant, batch);
        (self.start(variant) + takes).within(slack(self.now, self.head))
    }

    pub(super) fn bind(&self, variant: &WorkerVariant, lead: Reason, members: &[&Waiting]) -> Binding {
        let batch = u32::try_from(members.len()).unwrap_or(u32::MAX);
        let reason = |(at, w): (usize, &&Waiting)| match (w.alone, w.loaded, at) {
            (true, ..) => Reason::Rerun,
            (_, true, _) => Reason::Loaded,
            (_, _, 0) => lead,
            _ => Reason::Joined,
        };
        Binding {
            variant: variant.id,
            members: members.iter().map(|w| w.query.key).collect(),
            reasons: members.iter().enumerate().map(reason).collect(),
            expected: self.worker.residency.estimate(variant, batch),
            drains: true,
            nobody_missed: false,
            chance: members.len() == 1 && self.is_chance(variant),
            batching: self.worker.batching(variant),
            until: self.worker.wait_until(self.now, self.lane, variant, members),
        }
    }

    /// Whether any batch of a variant could be cheap enough for the head: saves drawing one that cannot.
    fn payable(&self, variant: &WorkerVariant) -> bool {
        let query = &self.head.query;
        let Some(ceiling) = query.max_cost.filter(|_| !query.best_effort) else { return true };
        let cost = |batch| variant.run.cost(batch, self.price);
        let least = cost(1).min(cost(variant.max_batch.max(1))).min(cost(variant.run.largest_measured()));
        least <= ceiling
    }

    /// Whether more of those who wait are in time if the head is given up, and perhaps some who follow it.
    fn gives_way(&self, binding: &Binding) -> bool {
        let head = self.head;
        // What is reserved gives way to nobody, and others as among themselves.
        let equals = head.query.priority != Priority::RESERVED && !self.worker.queue.mixed_beside_reserved();
        let may = !head.alone && !head.query.best_effort && equals && !self.in_time_apart();
        if !may || !self.worker.config.foresight.gives_way || binding.batching != Batching::Deadline {
            return false;
        }
        if binding.nobody_missed || (self.lane.running.is_none() && self.is_behind_gateways()) {
            return false;
        }
        let missed = self.ahead().missed(binding.variant, binding.members.len(), Whom::There, u32::MAX);
        if missed == 0 {
            return false;
        }
        let due = slack(self.now, head);
        let fewer = |heads: &usize| self.ahead().missed_without(*heads, due, missed) < missed;
        WITHOUT.iter().any(fewer)
    }

    /// Whether somebody who waits at a gateway is due before the head: on a free lane nothing could begin in its place before that one is here.
    fn is_behind_gateways(&self) -> bool {
        let expires = self.head.query.expires;
        let served = |class: &Class| self.serving.iter().any(|v| admits(class, v));
        self.worker.queue.demand(self.now).any(|(class, demand)| demand.first < expires && served(class))
    }

    /// Takes out those whose ceiling the batch would break; a smaller batch costs each more, so again until it holds.
    fn affordable(&self, variant: &WorkerVariant, members: &mut Vec<&Waiting>) {
        let ceiling = |w: &&Waiting| w.query.max_cost.filter(|_| !w.query.best_effort);
        while members.iter().any(|w| ceiling(w).is_some()) {
            let batch = u32::try_from(members.len()).unwrap_or(u32::MAX);
            let cost = variant.run.cost(batch, self.price);
            let before = members.len();
            members.retain(|w| ceiling(w).is_none_or(|ceiling| cost <= ceiling));
            if members.len() == before {
                return;
            }
        }
    }
}
