//! What would become of those who wait, if some batch ran first: the choice of variant and of who gives way asks this.
//!
//! It plays on from a choice, in expectation: whoever waits here, who is said to wait at gateways, and who will probably
//! come while a batch runs, each with a deadline. After the choice that is asked about everything is answered as quickly
//! as it can be: earliest deadline first, by the variant that takes the least of the device, in batches that are nearly as
//! full as pays; a head that could only go in a small one gives way where others wait. What is counted is how many would
//! not be in time. So an accurate variant is chosen while that costs nobody an answer, a cheap one as soon as it would,
//! and the one with the most throughput when not all can be answered anyway.
//!
//! Who is in time with less than a reserve to spare counts a little as well: a queue that lives at the brink, where each is
//! answered at the last moment, misses by every chance.
//!
//! Those who will probably come within the longest bound count when a variant is chosen: what a slow batch leaves undone is felt only
//! by them. Nobody gives way to them, though: they may never come.

use super::api::WorkerVariant;
use super::bind::{admits, slack};
use super::flow::{Flow, alike};
use super::lanes::Lane;
use super::level::Level;
use super::machine::Worker;
use super::queue::Waiting;
use super::residency::Residency;
use crate::estimate::Moments;
use crate::query::Class;
use alloc::vec::Vec;
use core::cell::Cell;
use modelless_types::{Micros, Time, VariantId};
use play::Play;

mod play;

/// Batches that are played on, besides one for each lane.
const STEPS: usize = 12;
/// Those of a class who wait are looked at in at most so many groups, each as due as its first.
const GROUPS: usize = 32;
/// The same of those who wait at gateways, and of those who are to come.
const COARSE: usize = 8;
/// A batch is nearly as full as pays from this share on.
const NEARLY: (u32, u32) = (3, 4);
/// One who is not answered in time counts as much as so many who are with little to spare.
const MISSED: u32 = 8;
/// No further than so many of the longest batches: who comes later is for a later choice.
const FAR: f64 = 4.0;
/// Of what has not come for so long it is not known whether any will come.
pub(super) const LATELY: Micros = Micros::from_secs(2);
/// More than so many to come make no difference any more.
const MOST: u32 = 1_000_000;
/// Standard deviations from the mean to the 90th percentile.
const Z90: f64 = 1.281_551_6;

/// People who are due about the same time. Times are microseconds from now.
#[derive(Clone, Copy, Debug)]
struct Group {
    /// Before this they are not there.
    from: f64,
    due: f64,
    /// Who is answered later than so long before it is due counts a little.
    spare: f64,
    count: u32,
}

/// Those who are there and whom the same variants may answer, by rising deadline; or those of them to come, who are taken to have
/// one bound, so that who comes first is due first.
#[derive(Clone, Debug)]
struct Kind {
    /// Which variants may answer them, those first that take the least of the device.
    gears: Vec<usize>,
    /// The same, for each variant whether.
    may: Vec<bool>,
    /// The microseconds that the first of them takes for each.
    each: f64,
    /// What one takes of them more or less surely, at the least.
    quickest: f64,
    /// Where as many wait as go into any batch, a head that has less time than this gives way.
    least: f64,
    groups: Vec<Group>,
    /// How many of them are there from the first moment on.
    waiting: u32,
}

/// Whether a batch of `fits`, where `there` could go, is nearly as full as pays.
fn is_nearly(fits: u32, there: u32) -> bool {
    fits * NEARLY.1 >= there * NEARLY.0
}

/// Whether it takes not much more of the device for each than the best there is: a small batch costs those behind it more than it gives.
fn is_fair(each: f64, best: f64) -> bool {
    each <= 2.0 * best
}

impl Kind {
    fn new(gears: Vec<usize>, of: &[Gear]) -> Self {
        let may = (0..of.len()).map(|gear| gears.contains(&gear)).collect();
        let each = gears.first().map_or(0.0, |gear| of[*gear].each);
        let alone = gears.iter().filter_map(|gear| of[*gear].sizes.first());
        let quickest = alone.map(|(.., surely)| *surely).fold(f64::INFINITY, f64::min);
        let sizes = gears.iter().flat_map(|gear| of[*gear].sizes.iter().map(move |size| (&of[*gear], size)));
        let worth = sizes
            .filter(|(gear, (n, mean, _))| is_nearly(*n, gear.best) || is_fair(mean / f64::from(*n), each));
        let least = worth.map(|(_, (.., surely))| *surely).fold(f64::INFINITY, f64::min);
        Self { gears, may, each, quickest, least, groups: Vec::new(), waiting: 0 }
    }
}

/// A variant as far as it matters here.
#[derive(Clone, Debug)]
struct Gear {
    id: VariantId,
    /// The batch that takes the least of the device for each.
    best: u32,
    /// The microseconds it takes for each.
    each: f64,
    /// From when on it runs, where that is apart from the lanes.
    apart: Option<f64>,
    /// Sizes up to that, rising, with how long they take: on the average, and more or less surely.
    sizes: Vec<(u32, f64, f64)>,
    /// Whom it may answer.
    kinds: Vec<usize>,
}

impl Gear {
    fn new(known: &Residency, variant: &WorkerVariant, largest: usize) -> Self {
        let best = known.best_batch(variant, size(largest));
        let halves = core::iter::successors(Some(best), |n| (*n > 1).then_some(n.div_ceil(2)));
        let time = |n: u32| {
            let time = known.estimate(variant, n);
            (n, time.mean, time.mean + Z90 * libm::sqrt(time.var))
        };
        let mut sizes: Vec<(u32, f64, f64)> = halves.map(time).collect();
        sizes.reverse();
        let each = sizes.last().map_or(0.0, |(n, mean, _)| mean / f64::from(*n));
        Self { id: variant.id, best, each, apart: None, sizes, kinds: Vec::new() }
    }

    /// How long so many take: on the average.
    fn takes(&self, count: u32) -> f64 {
        let size = self.sizes.iter().find(|(n, ..)| *n >= count).or(self.sizes.last());
        size.map_or(0.0, |(_, mean, _)| *mean)
    }

    /// The most of `count` that go into one batch that is in time, and how long they take on the average.
    fn fits(&self, count: u32, left: f64) -> (u32, f64) {
        let mut fits = (0, 0.0);
        for (n, mean, surely) in &self.sizes {
            if *surely > left {
                break;
            }
            fits = (*n, *mean);
            if *n >= count {
                break;
            }
        }
        (fits.0.min(count), fits.1)
    }
}

/// Those to come whom the same variants may answer.
struct Stream {
    gears: Vec<usize>,
    come: f64,
    /// From when on, and within what: each times how many come.
    since: f64,
    bound: f64,
}

/// Where a play stands with a kind: which group is next, and what is left of it.
#[derive(Clone, Copy, Debug)]
struct At {
    group: usize,
    next: Group,
    /// No fewer than so many are there.
    waiting: u32,
}

/// Nobody is left who counts.
const NOBODY: Group = Group { from: f64::INFINITY, due: f64::INFINITY, spare: 0.0, count: 0 };

impl At {
    /// Who comes after `until` does not count.
    fn new(kind: &Kind, group: usize, until: f64) -> Self {
        let next = kind.groups.get(group).filter(|group| group.from <= until);
        Self { group, next: next.copied().unwrap_or(NOBODY), waiting: 0 }
    }

    /// Whether it is there at a time.
    fn is_there(&self, time: f64) -> bool {
        self.next.count > 0 && self.next.from <= time
    }
}

/// Those who count, by kind and as they are due.
struct People {
    kinds: Vec<Kind>,
    /// All groups as they are due.
    order: Vec<Next>,
}

/// What is played on from.
pub(super) struct Ahead {
    gears: Vec<Gear>,
    people: People,
    /// When each lane is free; the first is the one asked about.
    free: Vec<f64>,
    /// The largest batch that pays.
    largest: u32,
    /// Batches are taken to last so many times as long where variants are compared.
    caution: f64,
    /// Who is answered with less than this part of its bound to spare counts a little.
    reserve: f64,
    /// What the last play needed, for the next one.
    spare: Cell<Table>,
}

/// A group with where it stands.
#[derive(Clone, Copy, Debug)]
struct Next {
    kind: usize,
    at: usize,
    group: Group,
    /// What its kind takes for each.
    each: f64,
}

/// Where a play stands.
#[derive(Debug, Default)]
struct Table {
    at: Vec<At>,
    /// How many of each kind are there, as far as that matters.
    there: Vec<u32>,
    free: Vec<f64>,
}

impl Ahead {
    /// As things stand for a lane. `serving` is what it may choose from.
    pub(super) fn new(worker: &Worker, now: Time, lane: &Lane, serving: &[&WorkerVariant]) -> Self {
        let device = lane.device;
        let gear = |v: &&WorkerVariant| {
            let apart = worker.apart(v).then(|| worker.start_of(now, lane, v).mean);
            Gear { apart, ..Gear::new(&worker.residency, v, worker.largest(device, v)) }
        };
        let gears: Vec<Gear> = serving.iter().map(gear).collect();
        let start = worker.start(now, lane).mean;
        let others = worker.lanes.iter().filter(|l| l.device == device && l.ix != lane.ix);
        let free = core::iter::once(start).chain(others.map(|l| l.until_free(now).mean)).collect();
        let longest = gears.iter().map(|gear| gear.takes(gear.best)).fold(0.0, f64::max);
        let largest = gears.iter().map(|gear| gear.best).max().unwrap_or(1);
        let spare = Cell::default();
        let caution = worker.caution(now);
        let people = People { kinds: Vec::new(), order: Vec::new() };
        let counts = worker.levels.get(&device).map_or(1.0, Level::reserve);
        let reserve = counts * f64::from(worker.config.foresight.reserve_permille) / 1e3;
        let mut all = Self { gears, people, free, largest, caution, reserve, spare };
        for (class, _) in worker.queue.classes() {
            let Some(kind) = all.kind(class, serving) else { continue };
            let groups = worker.queue.in_groups(class, GROUPS);
            // Of those who were announced others answer their part: of all so far so many are left to this node.
            let part = worker.falls_here(class);
            let (mut seen, mut counted) = (0, 0);
            let group = |(first, count): (&Waiting, usize)| {
                let query = &first.query;
                let spare = Moments::exactly(query.deadline - query.arrived).mean * reserve;
                seen += size(count);
                let mine = whole(libm::ceil(f64::from(seen) * part)) - counted;
                counted += mine;
                Group { from: 0.0, due: slack(now, first), spare, count: mine }
            };
            kind.groups.reserve(GROUPS);
            kind.groups.extend(groups.map(group).filter(|group| group.count > 0));
        }
        let lately = |(_, _, last): &(&Class, &Flow, Time)| now - *last <= LATELY;
        let flows: Vec<_> = worker.rates.flows().filter(lately).collect();
        for (class, demand) in worker.queue.demand(now) {
            let Some(kind) = all.kind(class, serving) else { continue };
            let known = flows.iter().find(|(one, ..)| *one == class);
            let bounds = known.map_or(&[][..], |(_, flow, _)| flow.bounds());
            let first = Moments::exactly(demand.first - now).mean;
            let last = bounds.iter().copied().fold(first, f64::max);
            for (at, count) in parts(demand.waiting) {
                let due = first + (last - first) * at;
                kind.groups.push(Group { from: 0.0, due, spare: last * reserve, count });
            }
        }
        for kind in &mut all.people.kinds {
            kind.groups.sort_by(|a, b| a.due.total_cmp(&b.due));
            // Gateways may say what they like.
            kind.waiting = kind.groups.iter().fold(0, |all, group| all.saturating_add(group.count));
        }
        if worker.config.foresight.to_come {
            let bounds = flows.iter().flat_map(|(_, flow, _)| flow.bounds()).copied();
            let until = start + longest + bounds.fold(0.0, f64::max).min(longest * FAR);
            all.come(worker, now, until, &flows, serving);
        }
        for (kind, known) in all.people.kinds.iter().enumerate() {
            known.gears.iter().for_each(|gear| all.gears[*gear].kinds.push(kind));
        }
        all.people.order = in_order(&all.people.kinds);
        all
    }

    /// Those who will probably come until some moment.
    fn come(
        &mut self,
        worker: &Worker,
        now: Time,
        until: f64,
        flows: &[(&Class, &Flow, Time)],
        serving: &[&WorkerVariant],
    ) {
        // At its credit it is not told what has come since.
        let full = worker.is_at_credit(now);
        let more = f64::from(worker.config.foresight.margin_permille) / 1e3;
        let reserve = self.reserve;
        let mut streams: Vec<Stream> = Vec::new();
        for (class, flow, told) in flows {
            let unheard = Moments::exactly(now - *told).mean;
            let (since, nothing) = if full { (-unheard, 0.0) } else { (0.0, unheard) };
            let come = flow.per_us(nothing) * (until - since) * more;
            let Some(gears) = self.gears_of(class, serving) else { continue };
            // What a long batch does to those with a tight bound would not be seen in a mean of all.
            for (share, bound) in flow.bounds_apart() {
                let come = come * share;
                let same =
                    |stream: &Stream| stream.gears == gears && alike(stream.bound / stream.come, bound);
                let known = streams.iter().position(same);
                if known.is_none() {
                    streams.push(Stream { gears: gears.clone(), come: 0.0, since: 0.0, bound: 0.0 });
                }
                let last = streams.len() - 1;
                let stream = &mut streams[known.unwrap_or(last)];
                stream.come += come;
                stream.since += come * since;
                stream.bound += come * bound;
            }
        }
        for Stream { gears, come, since, bound } in streams {
            let count = whole(come).min(MOST);
            if count == 0 {
                continue;
            }
            let (since, bound) = (since / come, bound / come);
            let group = |(at, part): (f64, u32)| {
                // Each part when its middle comes.
                let middle = at + f64::from(part) / f64::from(2 * count);
                let from = since + (until - since) * middle;
                Group { from: from.max(0.0), due: from + bound, spare: bound * reserve, count: part }
            };
            let kind = Kind::new(gears, &self.gears);
            self.people.kinds.push(Kind { groups: parts(count).map(group).collect(), ..kind });
        }
    }

    /// Which variants may answer a class, those first that take the least of the device.
    fn gears_of(&self, class: &Class, serving: &[&WorkerVariant]) -> Option<Vec<usize>> {
        let mut may: Vec<usize> = (0..serving.len()).filter(|at| admits(class, serving[*at])).collect();
        may.sort_by(|a, b| self.gears[*a].each.total_cmp(&self.gears[*b].each));
        (!may.is_empty()).then_some(may)
    }

    /// Those who are there and whom the same may answer as a class, if anything here may.
    fn kind(&mut self, class: &Class, serving: &[&WorkerVariant]) -> Option<&mut Kind> {
        let gears = self.gears_of(class, serving)?;
        let kinds = &mut self.people.kinds;
        let known = kinds.iter().position(|kind| kind.gears == gears);
        if known.is_none() {
            kinds.push(Kind::new(gears, &self.gears));
        }
        let last = kinds.len() - 1;
        kinds.get_mut(known.unwrap_or(last))
    }

    /// What it would cost if this variant ran so many first: [`MISSED`] for each who would not be in time, and one for
    /// each who would be with little to spare. From `most` on the figure says only that it is no less: nothing is played beyond.
    pub(super) fn missed(&self, variant: VariantId, members: usize, whom: Whom, most: u32) -> u32 {
        self.after(variant, members, self.play(&self.people, whom, most))
    }

    /// Whether nobody would be missed, nor have little to spare, if everything took as long as is foreseen and no longer. Asked where somebody
    /// is missed with caution: without any, the same play has told already.
    pub(super) fn drains(&self, variant: VariantId, members: usize) -> bool {
        self.caution > 1.0
            && self.after(
                variant,
                members,
                Play { scale: 1.0, ..self.play(&self.people, Whom::AndToCome, 1) },
            ) == 0
    }

    fn after(&self, variant: VariantId, members: usize, mut play: Play<'_>) -> u32 {
        let Some(gear) = self.gears.iter().position(|gear| gear.id == variant) else { return u32::MAX };
        let lane = self.free[0];
        let start = self.gears[gear].apart.unwrap_or(lane);
        // Beyond the batch that pays the rest is left for the next one: see `Draw::smaller`.
        let count = size(members).min(self.gears[gear].best);
        let end = start + self.gears[gear].takes(count) * play.scale;
        // A server's time is nobody else's.
        play.table.free[0] = if self.gears[gear].apart.is_some() { lane } else { end };
        play.take(gear, count, start, end);
        play.ends()
    }

    /// The same of those who are there already, if of those who are due then or later the first so many gave way.
    pub(super) fn missed_without(&self, heads: usize, due: f64, most: u32) -> u32 {
        let first = self.people.order.iter().find(|next| next.group.from <= 0.0);
        if first.is_some_and(|first| first.group.due < due) {
            // Somebody who waits at a gateway would be the first, and cannot give way here.
            let (left, gone) = self.people.without(heads, due);
            let cost = gone.saturating_mul(MISSED);
            return self.play(&left, Whom::There, most).ends().saturating_add(cost);
        }
        let mut play = self.play(&self.people, Whom::There, most);
        for _ in 0..heads {
            let Some(kind) = play.head(f64::INFINITY) else { break };
            play.gives_way(kind, 1);
        }
        play.ends()
    }

    fn play<'a>(&'a self, people: &'a People, whom: Whom, most: u32) -> Play<'a> {
        let mut table = self.spare.take();
        let until = match whom {
            Whom::There => self.free[0],
            Whom::AndToCome => f64::INFINITY,
        };
        table.at.clear();
        table
            .at
            .extend(people.kinds.iter().map(|kind| At { waiting: kind.waiting, ..At::new(kind, 0, until) }));
        table.there.resize(people.kinds.len(), 0);
        table.free.clone_from(&self.free);
        // Nobody gives way to what may never take so long.
        let scale = if whom == Whom::AndToCome { self.caution } else { 1.0 };
        Play { ahead: self, people, table, until, whom, scale, cost: 0, most }
    }
}

impl People {
    /// Those who are left without the first so many who are there and are due then or later, and how many those are.
    fn without(&self, heads: usize, due: f64) -> (Self, u32) {
        let mut kinds = self.kinds.clone();
        let (mut left, mut gone) = (size(heads), 0);
        for Next { kind, at, group, .. } in &self.order {
            if group.from <= 0.0 && group.due >= due {
                let taken = group.count.min(left);
                kinds[*kind].groups[*at].count -= taken;
                kinds[*kind].waiting = kinds[*kind].waiting.saturating_sub(taken);
                (left, gone) = (left - taken, gone + taken);
            }
            if left == 0 {
                break;
            }
        }
        for kind in &mut kinds {
            kind.groups.retain(|group| group.count > 0);
        }
        let order = in_order(&kinds);
        (Self { kinds, order }, gone)
    }
}

/// Who counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Whom {
    /// Those who wait, here or at gateways: nobody gives way to somebody who may never come, nor so that others have more to spare.
    There,
    /// And those who will probably come.
    AndToCome,
}

/// All groups as they are due.
fn in_order(kinds: &[Kind]) -> Vec<Next> {
    let mut order = Vec::with_capacity(kinds.iter().map(|kind| kind.groups.len()).sum());
    for (kind, known) in kinds.iter().enumerate() {
        let next = |(at, group): (usize, &Group)| Next { kind, at, group: *group, each: known.each };
        order.extend(known.groups.iter().enumerate().map(next));
    }
    order.sort_by(|a, b| a.group.due.total_cmp(&b.group.due));
    order
}

/// A number in at most a few parts, each with where it begins as a share of all.
fn parts(count: u32) -> impl Iterator<Item = (f64, u32)> {
    let each = count.div_ceil(size(COARSE)).max(1);
    let starts = (0..count).step_by(usize::try_from(each).unwrap_or(usize::MAX));
    starts.map(move |start| (f64::from(start) / f64::from(count), each.min(count - start)))
}

fn size(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float cast saturates, as wanted"
)]
pub(super) fn whole(n: f64) -> u32 {
    libm::round(n) as u32
}
