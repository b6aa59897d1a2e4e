//! How the applications of a task share devices' time when more is asked than can be answered: a router and real workers, driven
//! together in virtual time.

use crate::common::{TASK, query, worker_variant};
use modelless_decision::route::{
    Action, Did, End, Event, Limits, NodeInfo, NodeReport, Router, Said, Table, TaskInfo, VariantInfo,
};
use modelless_decision::worker::{self, BatchId, DeviceConfig, Worker, WorkerConfig, WorkerVariant};
use modelless_decision::{Machine, Moments, Query, RunModel};
use modelless_types::{
    Accuracy, AppId, BatchPoint, Bytes, DeviceIx, Goals, Micros, ModelId, NodeId, PricePerHour, Priority,
    QueryKey, Share, SpaceId, Time, VariantId,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};

const DEVICE: DeviceIx = DeviceIx(0);
const LARGEST: u32 = 8;
/// A batch takes 2 ms, and 1 ms for each of its members: at most 800 a second.
const START_US: u64 = 2_000;
const EACH_US: u64 = 1_000;
const PEAK: f64 = 800.0;

fn takes(batch: u64) -> Micros {
    Micros(START_US + EACH_US * batch)
}

fn run_model() -> RunModel {
    let point = |batch: u32| {
        let mean_us = Moments::exactly(takes(u64::from(batch))).mean;
        BatchPoint { batch, mean_us, var_us2: 0.0, p99_us: mean_us, samples: 9 }
    };
    RunModel::from_points(&[1, 2, 4, LARGEST].map(point), Moments::ZERO).expect("points")
}

fn variant() -> WorkerVariant {
    WorkerVariant {
        id: VariantId(1),
        model: ModelId(1),
        max_batch: LARGEST,
        memory: Bytes(1),
        ..worker_variant(0, run_model())
    }
}

struct Node {
    worker: Worker,
    /// Handed over, in order; the first ends at `end`.
    started: VecDeque<BatchId>,
    batches: BTreeMap<BatchId, u64>,
    end: Time,
}

/// Who asks how much, and within which time he wants it.
#[derive(Clone, Copy, Debug)]
struct Asks {
    app: u32,
    a_second: f64,
    latency: Micros,
    level: u8,
    /// From when on, of all.
    from: Micros,
}

fn asks(app: u32, a_second: f64) -> Asks {
    Asks { app, a_second, latency: Micros::from_millis(60), level: 5, from: Micros::ZERO }
}

fn weighs(app: u32, weight: u32) -> Said {
    Said { task: Some(TASK), app: AppId(app), weight: Some(weight), reserve: None }
}

fn reserves(app: u32, percent: u32) -> Said {
    let reserve = Share::from_ppm(percent * 10_000);
    Said { task: None, app: AppId(app), weight: None, reserve }
}

/// What one application came to.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Got {
    asked: u64,
    in_time: u64,
    late: u64,
    refused: u64,
    device_us: u64,
}

#[expect(clippy::cast_precision_loss, reason = "small numbers")]
fn ratio(part: u64, of: u64) -> f64 {
    part as f64 / of.max(1) as f64
}

impl Got {
    fn missed(&self) -> f64 {
        ratio(self.asked - self.in_time, self.asked)
    }
}

struct World {
    now: Time,
    router: Router,
    nodes: Vec<Node>,
    open: BTreeMap<QueryKey, Query>,
    coming: BTreeMap<(Time, u64), (u32, Micros, u8)>,
    got: BTreeMap<u32, Got>,
    /// Of those who came once the flood had been there for a while.
    later: BTreeMap<u32, Got>,
    next: u64,
    busy_us: u64,
    /// Who comes from then on is one of the later ones.
    settled: Time,
}

/// splitmix64: arrivals from a seed.
fn scatter(seed: &mut u64) -> f64 {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut x = *seed;
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^= x >> 31;
    #[expect(clippy::cast_precision_loss, reason = "53 bits")]
    let unit = (x >> 11) as f64 / (1_u64 << 53) as f64;
    unit
}

impl World {
    fn new(nodes: u32, limits: Limits, said: Vec<Said>) -> Self {
        let node = |_| {
            let device = DeviceConfig { lanes: 1, width: 1, memory: Bytes(10), price: PricePerHour(1_000) };
            let config = WorkerConfig { devices: vec![device], hand_back: true, ..WorkerConfig::default() };
            let mut worker = Worker::new(config);
            worker.handle(Time(1), worker::Event::Catalog(vec![variant()]));
            worker.handle(Time(2), worker::Event::Pin([(DEVICE, VariantId(1))].into_iter().collect()));
            let loaded = worker::Event::Loaded {
                device: DEVICE,
                variant: VariantId(1),
                memory: Bytes(1),
                took: Micros(1_000),
            };
            worker.handle(Time(3), loaded);
            while worker.poll_action().is_some() {}
            Node { worker, started: VecDeque::new(), batches: BTreeMap::new(), end: Time::ZERO }
        };
        let mut world = Self {
            now: Time(10_000_000),
            router: Router::new(limits, 7).remembering(1_000),
            nodes: (0..nodes).map(node).collect(),
            open: BTreeMap::new(),
            coming: BTreeMap::new(),
            got: BTreeMap::new(),
            later: BTreeMap::new(),
            next: 1,
            busy_us: 0,
            settled: Time::ZERO,
        };
        let info = VariantInfo {
            id: VariantId(1),
            model: ModelId(1),
            ordinal: 0,
            space: SpaceId(1),
            accuracy: Accuracy::ONE,
            max_batch: LARGEST,
            candidate: false,
        };
        let table = Table {
            tasks: vec![TaskInfo {
                id: TASK,
                default_space: SpaceId(1),
                defaults: Goals::default(),
                variants: vec![info],
            }],
            nodes: (1..=nodes)
                .zip(&world.nodes)
                .map(|(id, node)| NodeInfo {
                    id: NodeId(id),
                    rtt: Moments::ZERO,
                    price: PricePerHour(1_000),
                    offers: node.worker.offers(world.now),
                })
                .collect(),
        };
        if !said.is_empty() {
            world.tell(Event::Shares(said));
        }
        world.tell(Event::Table(table));
        for at in 0..world.nodes.len() {
            let report = world.report(at);
            world.tell(Event::Report { node: World::id(at), report });
        }
        world
    }

    fn id(at: usize) -> NodeId {
        NodeId(u32::try_from(at).expect("few") + 1)
    }

    fn report(&self, at: usize) -> NodeReport {
        self.nodes[at].worker.report(self.now)
    }

    fn tell(&mut self, event: Event) {
        self.router.handle(self.now, event);
        self.route();
    }

    /// These ask for so long: at random, as often as they say.
    fn ask(&mut self, all: &[Asks], time: Micros, mut seed: u64) {
        let until = self.now + time;
        for one in all {
            let mut at = self.now + one.from;
            let gap = 1e6 / one.a_second;
            loop {
                let wait = -gap * libm::log(1.0 - scatter(&mut seed));
                at = at + Moments { mean: wait, var: 0.0 }.mean();
                if at >= until {
                    break;
                }
                let key = self.next;
                self.next += 1;
                self.coming.insert((at, key), (one.app, one.latency, one.level));
            }
        }
    }

    fn count(&mut self, query: &Query, what: impl Fn(&mut Got)) {
        what(self.got.entry(query.app.0).or_default());
        if query.arrived >= self.settled {
            what(self.later.entry(query.app.0).or_default());
        }
    }

    fn ends(&mut self, key: QueryKey, answered: Option<Micros>) {
        let Some(query) = self.open.remove(&key) else { return };
        let now = self.now;
        self.count(&query, |got| match answered {
            Some(device) => {
                got.device_us += device.0;
                if now <= query.deadline { got.in_time += 1 } else { got.late += 1 }
            }
            None => got.refused += 1,
        });
    }

    fn route(&mut self) {
        while let Some(action) = self.router.poll_action() {
            match action {
                Action::Send { key, node, waiting, first, returnable, reserved, .. } => {
                    let Some(query) = self.open.get(&key).copied() else { continue };
                    let priority = if reserved { Priority::RESERVED } else { query.priority };
                    let query = Query { returnable, priority, ..query };
                    let at = node.0 as usize - 1;
                    let demand = worker::Event::Demand { class: query.class, waiting, first, among: 1 };
                    self.nodes[at].worker.handle(self.now, demand);
                    self.nodes[at].worker.handle(self.now, worker::Event::Arrive(query));
                    self.work(at);
                }
                Action::Refuse { key, .. } => self.ends(key, None),
                Action::Cancel { key, node } => {
                    let at = node.0 as usize - 1;
                    self.nodes[at].worker.handle(self.now, worker::Event::Cancel { key });
                    self.work(at);
                }
                Action::MayReturn { key, node } => {
                    let at = node.0 as usize - 1;
                    self.nodes[at].worker.handle(self.now, worker::Event::MayReturn { key });
                    self.work(at);
                }
                Action::Wake { .. } | Action::Announce { .. } | Action::Withdraw { .. } => {}
            }
        }
    }

    fn work(&mut self, at: usize) {
        while let Some(action) = self.nodes[at].worker.poll_action() {
            let node = Self::id(at);
            match action {
                worker::Action::Prepare { batch, queries, .. } => {
                    self.nodes[at].batches.insert(batch, queries.len() as u64);
                    let prepared = worker::Event::Prepared { batch, dropped: Vec::new() };
                    self.nodes[at].worker.handle(self.now, prepared);
                }
                worker::Action::Start { batch } => {
                    let now = self.now;
                    let node = &mut self.nodes[at];
                    if node.started.is_empty() {
                        node.end = now + takes(node.batches[&batch]);
                    }
                    node.started.push_back(batch);
                }
                worker::Action::Deliver { batch, queries } => {
                    let size = self.nodes[at].batches[&batch];
                    let device = Micros(takes(size).0 / size);
                    for key in queries {
                        self.ends(key, Some(device));
                        let report = self.report(at);
                        let end = End::Answered { device };
                        self.router.handle(self.now, Event::Finished { key, node, report, end });
                    }
                }
                worker::Action::Refuse { key, refusal } => {
                    let end = End::refused(&refusal);
                    self.ends(key, None);
                    let report = self.report(at);
                    self.router.handle(self.now, Event::Finished { key, node, report, end });
                }
                worker::Action::HandBack { key, why } => {
                    let report = self.report(at);
                    self.router.handle(self.now, Event::HandedBack { key, node, report, why });
                }
                worker::Action::Discard { .. }
                | worker::Action::Quarantine { .. }
                | worker::Action::Discharge { .. }
                | worker::Action::Revoke { .. }
                | worker::Action::Suspect { .. }
                | worker::Action::QuarantineOver { .. }
                | worker::Action::Transition { .. }
                | worker::Action::Load { .. }
                | worker::Action::Unload { .. }
                | worker::Action::Recut { .. }
                | worker::Action::Narrow { .. }
                | worker::Action::Drifted { .. }
                | worker::Action::Steadied { .. }
                | worker::Action::Claim { .. }
                | worker::Action::Decline { .. } => {}
            }
        }
    }

    /// What a node said may have the router send more, and so on until nothing moves.
    fn settles(&mut self, at: usize) {
        self.work(at);
        self.route();
    }

    fn run(&mut self, until: Time) {
        loop {
            let end = |node: &Node| (!node.started.is_empty()).then_some(node.end);
            let ends = self.nodes.iter().enumerate().filter_map(|(at, node)| Some((end(node)?, at))).min();
            let comes = self.coming.keys().next().copied();
            let worker = |(at, node): (usize, &Node)| Some((node.worker.poll_timeout()?.at, at));
            let wakes = self.nodes.iter().enumerate().filter_map(worker).min();
            let routes = self.router.poll_timeout().map(|wake| wake.at);
            let times = [ends.map(|end| end.0), comes.map(|come| come.0), wakes.map(|wake| wake.0), routes];
            let Some(at) = times.into_iter().flatten().min().filter(|at| *at < until) else { break };
            // What is told never goes back in time.
            self.now = self.now.max(at);
            // Completions before arrivals before timers.
            if let Some((_, node)) = ends.filter(|(end, _)| *end <= at) {
                let done = &mut self.nodes[node];
                let batch = done.started.pop_front().expect("just looked");
                self.busy_us += takes(done.batches[&batch]).0;
                if let Some(next) = done.started.front() {
                    done.end = self.now + takes(done.batches[next]);
                }
                let outcome = worker::Outcome::Ran;
                done.worker.handle(self.now, worker::Event::Done { batch, outcome });
                self.settles(node);
            } else if let Some(come) = comes.filter(|come| come.0 <= at) {
                let (app, latency, level) = self.coming.remove(&come).expect("just looked");
                let query = Query {
                    app: AppId(app),
                    priority: Priority::new(level).expect("a level"),
                    ..query(come.1, self.now, [0].into_iter().collect(), latency)
                };
                self.open.insert(query.key, query);
                self.count(&query, |got| got.asked += 1);
                self.tell(Event::Arrive(query));
            } else if let Some((_, node)) = wakes.filter(|(wake, _)| *wake <= at) {
                self.nodes[node].worker.handle_timeout(self.now);
                self.settles(node);
            } else {
                self.router.handle_timeout(self.now);
                self.route();
            }
        }
        self.now = self.now.max(until);
    }
}

/// What each came to that asked within so many seconds, and for how long devices were busy.
fn come_to(
    (nodes, limits): (u32, Limits),
    said: &[Said],
    all: &[Asks],
    seconds: u64,
    seed: u64,
) -> (BTreeMap<u32, Got>, u64) {
    let mut world = World::new(nodes, limits, said.to_vec());
    let begins = world.now;
    world.ask(all, Micros::from_secs(seconds), seed);
    world.run(begins + Micros::from_secs(seconds + 2));
    assert!(world.open.is_empty(), "every query ends: {:?}", world.open);
    (world.got, world.busy_us)
}

fn usual(nodes: u32) -> (u32, Limits) {
    (nodes, Limits::default())
}

fn part(got: &BTreeMap<u32, Got>, app: u32) -> f64 {
    let all: u64 = got.values().map(|got| got.device_us).sum();
    ratio(got[&app].device_us, all)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, max_shrink_iters: 4, ..ProptestConfig::default() })]

    /// Whatever others ask, at whatever priority and within whatever time, an application that asks no more than is reserved for it
    /// misses at most twice what it would miss alone, and a half per cent.
    #[test]
    fn who_asks_no_more_than_is_reserved_is_answered_as_though_it_were_alone(
        seed: u64,
        nodes in 1_u32..=2,
        percent in 15_u32..=50,
        of_it in 0.4_f64..0.8,
        flood in 1.5_f64..4.0,
        level in 1_u8..=9,
        latency_ms in 30_u64..=200,
        begins_ms in 0_u64..1_000,
    ) {
        let all = PEAK * f64::from(nodes);
        let own = asks(1, all * f64::from(percent) / 100.0 * of_it);
        let flood = Asks {
            level,
            latency: Micros::from_millis(latency_ms),
            from: Micros::from_millis(begins_ms),
            ..asks(2, all * flood)
        };
        let said = [reserves(1, percent)];
        let (alone, _) = come_to(usual(nodes), &said, &[own], 3, seed);
        let mut world = World::new(nodes, Limits::default(), said.to_vec());
        let begins = world.now;
        world.settled = begins + flood.from + Micros::from_millis(300);
        world.ask(&[own, flood], Micros::from_secs(3), seed);
        world.run(begins + Micros::from_secs(5));
        prop_assert!(world.open.is_empty(), "every query ends: {:?}", world.open);
        let (alone, beside, later) = (alone[&1].missed(), world.got[&1], world.later[&1]);
        prop_assert!(later.missed() <= 2.0 * alone + 0.01, "{later:?} beside it, {alone} alone: {:?}", world.later);
        // Before anybody was refused nobody knew: what was at nodes by then went as all others.
        let early = beside.asked - beside.in_time - (later.asked - later.in_time);
        prop_assert!(early <= 12 * u64::from(nodes), "{early} in the beginning: {beside:?}");
        let busy = world.busy_us;
        // What it leaves the others have: devices are never idle while there is more to do.
        let until = 3_000_000 - begins_ms * 1_000;
        prop_assert!(ratio(busy, until * u64::from(nodes)) >= 0.95, "{busy} of {until}");
    }

    /// Under a long overload each gets devices' time by its weight, as long as it asks for more than that.
    #[test]
    fn by_weight_under_a_long_overload(
        seed: u64,
        nodes in 1_u32..=2,
        weights in proptest::collection::vec(1_u32..=5, 2..=4),
        times in 1.2_f64..2.0,
    ) {
        let all = PEAK * f64::from(nodes);
        let apps: Vec<(u32, u32)> = (1..).zip(weights).collect();
        let said: Vec<Said> = apps.iter().map(|(app, weight)| weighs(*app, *weight)).collect();
        // Each asks for more than everything there is, though not alike.
        let flood: Vec<Asks> =
            apps.iter().map(|(app, _)| asks(*app, all * times * (1.0 + f64::from(*app) / 4.0))).collect();
        let (got, _) = come_to(usual(nodes), &said, &flood, 3, seed);
        let sum: u32 = apps.iter().map(|(_, weight)| weight).sum();
        for (app, weight) in &apps {
            let (part, due) = (part(&got, *app), f64::from(*weight) / f64::from(sum));
            prop_assert!((part - due).abs() <= 0.12, "{app}: {part} for {due}: {got:?}");
        }
    }

    /// Where nobody is refused nothing is different: each query goes to the same place at the same moment.
    #[test]
    fn where_nothing_is_short_nothing_changes(seed: u64, nodes in 1_u32..=2, load in 0.1_f64..0.5) {
        let all = PEAK * f64::from(nodes) * load / 2.0;
        let wide = |asks: Asks| Asks { latency: Micros::from_millis(400), ..asks };
        let both = [wide(asks(1, all)), Asks { level: 1, ..wide(asks(2, all)) }];
        let without = come_to(usual(nodes), &[], &both, 3, seed);
        let with = come_to(usual(nodes), &[reserves(1, 50), weighs(2, 9)], &both, 3, seed);
        prop_assert!(without.0.values().all(|got| got.refused == 0), "{without:?}");
        prop_assert_eq!(without, with);
    }
}

#[test]
fn nobody_starves_beside_one_of_a_hundred_times_its_weight() {
    let said = [weighs(1, 100)];
    let (got, _) = come_to(usual(1), &said, &[asks(1, 3.0 * PEAK), asks(2, PEAK)], 10, 3);
    let part = part(&got, 2);
    assert!((0.004..0.05).contains(&part), "{part}: {got:?}");
    // Little is asked for within that: it is as good as alone.
    let (got, _) = come_to(usual(1), &said, &[asks(1, 3.0 * PEAK), asks(2, 4.0)], 10, 3);
    assert!(got[&2].in_time > 20, "{got:?}");
}

#[test]
fn who_floods_the_places_to_wait_in_keeps_others_from_none() {
    let limits = Limits { waiting: 40, ..Limits::default() };
    let wide = |asks: Asks| Asks { latency: Micros::from_millis(300), ..asks };
    let flood = Asks { level: 1, ..wide(asks(2, 20.0 * PEAK)) };
    let said = [reserves(1, 30)];
    let (got, _) = come_to((1, limits), &said, &[wide(asks(1, 0.2 * PEAK)), flood], 4, 5);
    assert!(got[&1].missed() <= 0.01, "{got:?}");
    // By weight as well, where nothing is reserved: a place that is taken is given up by whoever has the most.
    let both = [wide(asks(1, 2.0 * PEAK)), wide(asks(2, 20.0 * PEAK))];
    let (got, _) = come_to((1, limits), &[weighs(1, 1)], &both, 4, 5);
    assert!((part(&got, 1) - 0.5).abs() < 0.1, "{got:?}");
    let (got, _) = come_to((1, limits), &[], &both, 4, 5);
    assert!(part(&got, 1) < 0.3, "without it who asks the most has the most: {got:?}");
}

#[test]
fn beyond_what_is_reserved_it_goes_by_weight_as_the_others_do() {
    let said = [reserves(1, 20)];
    let (got, _) = come_to(usual(1), &said, &[asks(1, 2.0 * PEAK), asks(2, 2.0 * PEAK)], 6, 11);
    assert!((part(&got, 1) - 0.5).abs() < 0.07, "what is reserved is a part of its half: {got:?}");
    let (got, _) = come_to(usual(1), &[reserves(1, 70)], &[asks(1, 2.0 * PEAK), asks(2, 2.0 * PEAK)], 6, 11);
    // In six seconds it has its part of them, and a second of it that it may use ahead.
    assert!((part(&got, 1) - 0.7 * 7.0 / 6.0).abs() < 0.05, "it has more than its half: {got:?}");
}

#[test]
fn a_hundred_thousand_applications_are_remembered_no_more_than_so_many() {
    let mut world = World::new(1, Limits::default(), vec![weighs(1, 2)]);
    let begins = world.now;
    for app in 1..=100_000_u32 {
        let key = u64::from(app);
        world.coming.insert((begins + Micros(key * 20), key), (app, Micros::from_millis(40), 5));
    }
    world.run(begins + Micros::from_secs(2));
    let told = world.router.standings(world.now);
    assert!(!told.is_empty() && told.len() <= 257, "{}", told.len());
}

#[test]
fn it_says_why_one_is_refused_and_the_same_comes_out_each_time() {
    let told = || {
        let mut world = World::new(1, Limits::default(), vec![weighs(1, 1), reserves(2, 25)]);
        let until = world.now + Micros::from_millis(900);
        world.ask(&[asks(1, 4.0 * PEAK), asks(2, 0.1 * PEAK)], Micros::from_secs(1), 9);
        world.run(until);
        world
    };
    let (world, again) = (told(), told());
    let standings = world.router.standings(world.now);
    assert_eq!((&world.got, &standings), (&again.got, &again.router.standings(again.now)));
    let of = |app: u32| standings.iter().find(|(_, of, _)| *of == AppId(app)).expect("it asked").2;
    assert!(of(1).used_ppm > 700_000 && !of(1).within, "{:?}", of(1));
    assert!(of(2).within && of(2).share_ppm >= 250_000, "{:?}", of(2));
    assert_eq!((of(1).weight, of(1).share_ppm), (1, 500_000));
    let seen = (1..world.next).flat_map(|key| world.router.seen(QueryKey(key)).0);
    let refused: Vec<_> = seen.filter(|seen| matches!(seen.did, Did::Refused(_))).collect();
    assert!(!refused.is_empty(), "there is not enough for all");
    for seen in refused {
        assert!(seen.standing.is_some(), "why {:?} was refused is told", seen.key);
    }
}
