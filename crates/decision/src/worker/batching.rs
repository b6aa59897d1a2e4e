//! How large a batch becomes and how long it may wait for more, by the task's way of batching.
//!
//! | mode | largest | closed |
//! |---|---|---|
//! | `deadline` | what stays in time and throughput needs | just before the lane is free, or later if that pays |
//! | `aimd` | a cap that grows by one while batches keep their bound and shrinks by a tenth when one does not | at once |
//! | `fixed` | its size | when full, or when its oldest query has waited long enough |
//! | `off` | one | at once |
//!
//! **When waiting pays.** While a batch runs, binding the next one early gains nothing: until it is nearly over, what
//! comes meanwhile may be more urgent or make the batch better. On a free lane a small batch waits only if, at the rate
//! at which queries come, batches of its size could not keep up, if the next query probably comes sooner than the
//! device time that its joining saves, and if everybody in it has that much slack.

use super::flow::Flow;
use super::lanes::Lane;
use super::machine::Worker;
use super::pressed::EARLY;
use super::queue::{Came, Waiting};
use crate::estimate::Moments;
use crate::query::{Class, Query};
use crate::worker::WorkerVariant;
use alloc::collections::BTreeMap;
use modelless_types::{Batching, DeviceIx, Micros, Time, VariantId};

/// A shell's timer may be this late, and a batch must be written and handed over; so long before its lane is free a
/// batch is bound.
const LEAD: Micros = Micros(1_500);
/// The same where whoever comes meanwhile saves more device time by joining than a lane loses that runs dry: the end of
/// what runs is told at once, so a timer that wakes too late costs a handover and no more.
const SHORT_LEAD: Micros = Micros(250);
/// A batch is kept small where that costs at most this much more device time per query.
const ENOUGH: f64 = 1.05;
/// How many gaps between queries one is waited for: longer than that, with few exceptions, no gap lasts.
const PATIENCE: f64 = 3.0;
/// The weight of the last gap.
const NEW: f64 = 1.0 / 16.0;
/// Gaps that must have been seen before their rate is believed.
const EVIDENCE: u32 = 8;
/// So long after its last query a class is in demand.
const LATELY: Micros = Micros::from_secs(10);
/// At most this many classes' rates are remembered.
const CLASSES: usize = 1_024;

/// At what rate queries of each class come.
#[derive(Clone, Debug, Default)]
pub(super) struct Rates {
    of: BTreeMap<Class, Rate>,
    /// Among how many nodes classes are divided, which is told before the first of them comes.
    among: BTreeMap<Class, u32>,
}

#[derive(Clone, Copy, Debug)]
struct Rate {
    last: Time,
    /// When one last came that this node was to answer, whatever was announced to it.
    here: Option<Time>,
    /// Microseconds between two, smoothed.
    gap: f64,
    /// Gaps seen, up to what is believed.
    gaps: u32,
    /// When one last left unanswered for want of anything in memory, if nothing that may answer it was loaded since.
    unmet: Option<Time>,
    /// How it comes to gateways, as far as it has come on from there.
    flow: Flow,
}

impl Rates {
    pub(super) fn came(&mut self, now: Time, query: &Query) {
        self.counts(now, query, 1.0);
        self.claimed(now, &query.class);
    }

    /// One was announced, of which this node answers such a part.
    pub(super) fn announced(&mut self, now: Time, query: &Query, part: f64) {
        self.counts(now, query, part);
    }

    /// One that was announced is to be answered here.
    pub(super) fn claimed(&mut self, now: Time, class: &Class) {
        if let Some(rate) = self.of.get_mut(class) {
            rate.here = Some(now);
        }
    }

    fn counts(&mut self, now: Time, query: &Query, part: f64) {
        let class = query.class;
        if let Some(rate) = self.of.get_mut(&class) {
            rate.flow.came(query, part);
            let seen = Moments::exactly(now - rate.last).mean / part;
            rate.gap = if rate.gaps == 0 { seen } else { rate.gap + NEW * (seen - rate.gap) };
            rate.gaps = (rate.gaps + 1).min(EVIDENCE);
            rate.last = now;
        } else {
            if self.of.len() >= CLASSES {
                // Classes come and go with the catalogue: room is made by whichever has not been asked for the longest.
                let oldest = self.of.iter().min_by_key(|(_, rate)| rate.last).map(|(class, _)| *class);
                oldest.and_then(|class| self.of.remove(&class));
            }
            let flow = Flow::new(query, part);
            self.of.insert(class, Rate { last: now, here: None, gap: 0.0, gaps: 0, unmet: None, flow });
        }
    }

    /// How each class comes to gateways, and when one last came from there.
    pub(super) fn flows(&self) -> impl Iterator<Item = (&Class, &Flow, Time)> {
        self.of.iter().map(|(class, rate)| (class, &rate.flow, rate.last))
    }

    /// Queries per microsecond of each class, as they come now: what has not come for a while comes seldom.
    pub(super) fn now(&self, now: Time) -> impl Iterator<Item = (&Class, f64)> {
        let known = self.of.iter().filter(|(_, rate)| rate.gaps >= EVIDENCE);
        known.map(move |(class, rate)| {
            (class, 1.0 / rate.gap.max(Moments::exactly(now - rate.last).mean).max(1.0))
        })
    }

    /// Classes of which a query came within the last while that was to be answered here.
    pub(super) fn lately(&self, now: Time) -> impl Iterator<Item = &Class> {
        let came = move |rate: &Rate| rate.here.is_some_and(|at| now - at <= LATELY);
        self.of.iter().filter(move |(_, rate)| came(rate)).map(|(class, _)| class)
    }

    /// The tightest bound of the classes that a variant may answer and of which one came within the last while.
    pub(super) fn tightest(&self, now: Time, variant: &WorkerVariant) -> Option<Micros> {
        let lately = self
            .of
            .iter()
            .filter(|(class, rate)| now - rate.last <= LATELY && super::bind::admits(class, variant));
        let bounds = lately.flat_map(|(_, rate)| rate.flow.bounds().iter().copied());
        let tightest = bounds.min_by(f64::total_cmp)?;
        Some(Moments { mean: tightest, var: 0.0 }.mean())
    }

    /// Among how many nodes a class is divided.
    pub(super) fn divided(&mut self, class: &Class, among: u32) {
        if among == 0 {
            return; // nobody says
        }
        if self.among.len() >= CLASSES && !self.among.contains_key(class) {
            // Those that nobody has asked for lately make room; were they asked for again, they would be taken to come here alone.
            self.among.retain(|known, _| self.of.contains_key(known));
        }
        if self.among.len() <= CLASSES {
            self.among.insert(*class, among);
        }
    }

    /// So many times as many of a class as come here come to gateways, in batches of which every so manieth comes here.
    pub(super) fn among(&self, class: &Class) -> f64 {
        f64::from(self.among.get(class).copied().unwrap_or(1))
    }

    /// One left unanswered, and nothing in memory could have answered it.
    pub(super) fn missed(&mut self, now: Time, class: &Class) {
        if let Some(rate) = self.of.get_mut(class) {
            rate.unmet = Some(now);
        }
    }

    /// A variant was loaded: the classes that it may answer get their turn.
    pub(super) fn loaded(&mut self, variant: &WorkerVariant) {
        for (_, rate) in self.of.iter_mut().filter(|(class, _)| super::bind::admits(class, variant)) {
            rate.unmet = None;
        }
    }

    /// Classes of which one left unanswered within the last while, and which have had no turn since.
    pub(super) fn unmet(&self, now: Time) -> impl Iterator<Item = &Class> {
        let unmet = move |rate: &Rate| rate.unmet.is_some_and(|at| now - at <= LATELY);
        self.of.iter().filter(move |(_, rate)| unmet(rate)).map(|(class, _)| class)
    }

    /// Queries per microsecond of all classes that a variant may answer, as they came lately; when the last came.
    fn of(&self, variant: &WorkerVariant) -> (f64, Time) {
        let known = self.of.iter().filter(|(_, rate)| rate.gaps >= EVIDENCE);
        let admitted = known.filter(|(class, _)| super::bind::admits(class, variant));
        admitted.fold((0.0, Time::ZERO), |(per_us, last), (_, rate)| {
            (per_us + 1.0 / rate.gap.max(1.0), last.max(rate.last))
        })
    }
}

/// The largest batch of each variant under `aimd`.
#[derive(Clone, Debug, Default)]
pub(super) struct Caps(BTreeMap<(DeviceIx, VariantId), u32>);

impl Caps {
    fn of(&self, device: DeviceIx, variant: VariantId) -> u32 {
        self.0.get(&(device, variant)).copied().unwrap_or(1)
    }

    /// A batch of `size` took `took`, where its members allowed `bound`.
    fn ran(&mut self, at: (DeviceIx, VariantId), size: u32, largest: u32, took: Micros, bound: Micros) {
        let cap = self.0.entry(at).or_insert(1);
        if took > bound {
            *cap = (*cap * 9 / 10).max(1);
        } else if size >= *cap {
            *cap = (*cap + 1).min(largest.max(1));
        }
    }

    pub(super) fn keep(&mut self, known: impl Fn(VariantId) -> bool) {
        self.0.retain(|(_, variant), _| known(*variant));
    }
}

impl Worker {
    /// How batches of a variant are made.
    pub(super) fn batching(&self, variant: &WorkerVariant) -> Batching {
        variant.batching.unwrap_or(self.config.batching)
    }

    /// The most members of a batch, before deadlines are looked at.
    pub(super) fn largest(&self, device: DeviceIx, variant: &WorkerVariant) -> usize {
        let most = variant.max_batch.max(1);
        if self.residency.on_trial(device, variant.id) {
            return 1;
        }
        let most = match self.batching(variant) {
            Batching::Deadline => most,
            Batching::Aimd => most.min(self.caps.of(device, variant.id)),
            Batching::Fixed { size, .. } => most.min(size.max(1)),
            Batching::Off => 1,
        };
        most as usize
    }

    /// What a batch that ended teaches `aimd`.
    pub(super) fn adapt(&mut self, device: DeviceIx, batch: &super::lanes::Batch, took: Micros) {
        let Some(variant) = self.residency.variant(batch.variant) else { return };
        // What stands aside has no bound that would tell anything.
        let spare = batch.members.iter().any(|member| member.waiting.query.priority.is_spare());
        if self.batching(variant) != Batching::Aimd || spare {
            return;
        }
        let bounds = batch.members.iter().map(|m| m.waiting.query.deadline - m.waiting.query.arrived);
        let (Some(bound), Ok(size)) = (bounds.min(), u32::try_from(batch.members.len())) else { return };
        self.caps.ran((device, batch.variant), size, variant.max_batch, took, bound);
    }

    /// How few of `waiting` can share a batch without wasting the device: the smallest batch whose device time per
    /// query is that of the best, or with time to `spare` nearly so, or an equal share for each lane that is free.
    pub(super) fn enough(
        &self,
        device: DeviceIx,
        variant: &WorkerVariant,
        waiting: usize,
        spare: bool,
    ) -> usize {
        let takes = self.residency.takes(variant);
        let per_query = |n: usize| {
            let n = u32::try_from(n).unwrap_or(u32::MAX);
            takes(n).mean / f64::from(n)
        };
        let best = (1..=waiting).map(per_query).fold(f64::INFINITY, f64::min);
        let best = if spare { best * ENOUGH } else { best };
        let enough = (1..waiting).find(|n| per_query(*n) <= best).unwrap_or(waiting);
        let lanes = self.lanes.iter().filter(|lane| lane.device == device);
        let free = lanes.filter(|lane| lane.running.is_none() && lane.next.is_none()).count();
        enough.min(waiting.div_ceil(free.max(1)))
    }

    /// Until when it is too early to bind anything to a lane, whatever would be drawn for it: saves drawing at every
    /// arrival while the lane is busy for long.
    pub(super) fn surely_too_early(
        &self,
        now: Time,
        lane: &Lane,
        serving: &[&WorkerVariant],
    ) -> Option<Time> {
        let by_deadline = |v: &&WorkerVariant| self.batching(v) == Batching::Deadline;
        let lane_is_free = lane.running.is_none() || serving.iter().any(|v| self.apart(v));
        if lane_is_free || self.queue.len() == 0 || !serving.iter().all(by_deadline) {
            return None;
        }
        let writing = serving.iter().map(|v| v.run.writing(v.max_batch as usize).mean).fold(0.0, f64::max);
        let left = Moments { mean: (lane.remaining(now).mean - writing).max(0.0), var: 0.0 };
        let early = if self.is_pressed(now, lane.device) { EARLY } else { Micros::ZERO };
        let lead = LEAD + early + if self.queue.announced() > 0 { self.claims_take() } else { Micros::ZERO };
        Some(Time((now + left.mean()).0.saturating_sub(lead.0))).filter(|at| *at > now)
    }

    /// Until when it is too early to bind a batch of `members` to a lane; `None` when it is not.
    pub(super) fn wait_until(
        &self,
        now: Time,
        lane: &Lane,
        variant: &WorkerVariant,
        members: &[&Waiting],
    ) -> Option<Time> {
        if members.iter().any(|w| w.alone) {
            return None;
        }
        let later = match self.batching(variant) {
            Batching::Aimd | Batching::Off => None,
            Batching::Fixed { wait, .. } => {
                let full = members.len() >= self.largest(lane.device, variant);
                let oldest = members.iter().map(|w| w.query.arrived).min();
                oldest.filter(|_| !full).map(|arrived| arrived + wait)
            }
            Batching::Deadline => match self.before(lane, variant) {
                Some(before) => {
                    let left = before.remaining(now).mean - variant.run.writing(members.len()).mean;
                    let free = now + Moments { mean: left.max(0.0), var: 0.0 }.mean();
                    // Who is claimed must be here by then.
                    let claims = members.iter().any(|w| w.came == Came::Announced);
                    let way = if claims { self.claims_take() } else { Micros::ZERO };
                    Some(Time(free.0.saturating_sub((self.lead(variant, members.len()) + way).0)))
                }
                None => self.worth_waiting(lane, variant, members),
            },
        };
        later.filter(|at| *at > now)
    }

    /// How long before its lane is free a batch of so many is bound.
    fn lead(&self, variant: &WorkerVariant, members: usize) -> Micros {
        let (per_us, _) = self.rates.of(variant);
        let Ok(size) = u32::try_from(members) else { return LEAD };
        let room = f64::from(variant.max_batch.saturating_sub(size));
        let come = (per_us * Moments::exactly(LEAD.saturating_sub(SHORT_LEAD)).mean).min(room);
        let time = |batch| variant.run.estimate(batch).mean;
        let saved = come * (time(1) + time(size) - time(size + 1));
        if saved > self.handover.moments().mean { SHORT_LEAD } else { LEAD }
    }

    /// Whether a free lane gains by waiting for one more; see the words above.
    fn worth_waiting(&self, lane: &Lane, variant: &WorkerVariant, members: &[&Waiting]) -> Option<Time> {
        let size = u32::try_from(members.len()).ok()?;
        // Of those who gathered it may be small only because others get their turn.
        let is_turn = self.config.foresight.turns && members.iter().any(|w| w.loaded);
        if size >= variant.max_batch || is_turn {
            return None;
        }
        let (per_us, last) = self.rates.of(variant);
        let (one, this, more) =
            (variant.run.estimate(1), variant.run.estimate(size), variant.run.estimate(size + 1));
        let lanes = self.lanes.iter().filter(|l| l.device == lane.device).count();
        let load = per_us * this.mean / f64::from(size) / f64::from(u32::try_from(lanes).ok()?);
        let saved = one.mean + this.mean - more.mean;
        if load < 1.0 || saved * per_us <= 1.0 {
            return None;
        }
        let patience = Moments { mean: PATIENCE / per_us, var: 0.0 }.mean();
        let hurried = members.iter().filter(|w| !w.query.best_effort).map(|w| w.query.expires).min();
        let hurried = hurried.map(|at| Time(at.0.saturating_sub((more.p99() + LEAD).0)));
        Some((last + patience).min(hurried.unwrap_or(Time::FAR)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::flow::tests::query;
    use alloc::vec::Vec;
    use modelless_types::{TaskId, VariantSet};

    const HERE: (DeviceIx, VariantId) = (DeviceIx(0), VariantId(1));

    #[test]
    fn a_class_that_came_lately_is_remembered_however_many_came_before_it() {
        let mut rates = Rates::default();
        let class = |n: u32| Class { task: TaskId(n), admits: VariantSet::default() };
        for n in 0..2_000 {
            for again in 0..=u64::from(EVIDENCE) {
                rates.came(Time(u64::from(n) * 1_000 + again * 10), &query(class(n), Time::ZERO));
            }
        }
        let now = Time(2_000_000);
        let known: Vec<u32> = rates.now(now).map(|(class, _)| class.task.0).collect();
        assert_eq!(known, (2_000 - 1_024..2_000).collect::<Vec<_>>());
    }

    #[test]
    fn a_cap_grows_by_one_until_its_bound_is_broken_then_shrinks_by_a_tenth() {
        let mut caps = Caps::default();
        let (quick, bound) = (Micros(10), Micros(100));
        for size in 1..=20 {
            assert_eq!(caps.of(HERE.0, HERE.1), size);
            caps.ran(HERE, size, 64, quick, bound);
        }
        assert_eq!(caps.of(HERE.0, HERE.1), 21);
        caps.ran(HERE, 21, 64, Micros(101), bound);
        assert_eq!(caps.of(HERE.0, HERE.1), 18);
        caps.ran(HERE, 3, 64, quick, bound);
        assert_eq!(caps.of(HERE.0, HERE.1), 18, "a small batch does not show that a larger one would do");
        caps.ran(HERE, 18, 18, quick, bound);
        assert_eq!(caps.of(HERE.0, HERE.1), 18, "no larger than the variant takes");
        caps.keep(|_| false);
        assert_eq!(caps.of(HERE.0, HERE.1), 1);
    }
}
