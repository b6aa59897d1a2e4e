//! Gateways with their router, nodes with credit, the cluster's key, and networks that delay, part, cut and leave connections
//! half open: from 200 seeds, in virtual time.
//!
//! Always: every accepted query ends exactly once, soon after its time at the latest; no answer reaches another
//! query; and when the network is well again and nothing is left to do, nobody holds anything and all credit is
//! back. Faults are injected to see that each of these can fail. In every other world queries are announced, too, and nodes claim them.

use super::{Log, answer, config, lock, query as frame, status};
use crate::sim::{Host, Rng};
use crate::{
    Address, Announcement, Body, Config, Demand, Dial, FromNode, GatewayLink, Input, Key, Listener, NodeLink,
    NodeStatus, QueryFrame, ToNode, keep, serve_node,
};
use bytes::Bytes as Buffer;
use modelless_decision::query::Class;
use modelless_decision::route::{
    Action, End, Event, Limit, Limits, Made, NodeInfo, NodeReport, Offer, Ready, Router, Table, TaskInfo,
    VariantInfo,
};
use modelless_decision::{Machine, Moments, Query, RunModel};
use modelless_types::{
    Accuracy, BatchPoint, Bytes, Goals, Micros, ModelId, NodeId, PricePerHour, Priority, QueryKey, Refusal,
    SpaceId, TaskId, Time, VariantId, VariantSet,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

const NODES: u32 = 3;
const GATEWAYS: usize = 2;
/// Of each node.
const CREDIT: u32 = 4;
const BYTES: Bytes = Bytes(400_000);
/// Queries after this are the last ones, which see whether all credit is back.
const LAST: u64 = 1 << 30;

/// What is done wrong on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    Nothing,
    /// A node gives an answer to another query.
    Swaps,
    /// A node does not hear that a query is cancelled, and keeps it.
    Deaf,
    /// A node counts a query that it lost as one that it has.
    Leaks,
    /// A gateway does not tell its router of a query's end.
    Forgets,
    /// A node gives back whatever it likes.
    Disobeys,
}

/// What was seen that must not be.
#[derive(Default)]
struct Violations(Mutex<Vec<String>>);

impl Violations {
    fn unless(&self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            lock(&self.0).push(what());
        }
    }
}

fn class() -> Class {
    Class { task: TaskId(3), admits: [0].into_iter().collect::<VariantSet>() }
}

fn input_of(gateway: usize, key: u64) -> Buffer {
    let size = match key % 19 {
        0 => 250_000, // in parts
        1..=3 => 30_000,
        _ => 20,
    };
    Buffer::from(format!("{gateway}/{key}/{}", "x".repeat(size)))
}

/// What a node was asked.
struct Asked {
    input: Buffer,
    /// Whether it may be given back.
    returnable: bool,
    /// It was told so later.
    told: bool,
}

/// A node that answers with what it was asked, later, hands back some of what it may, refuses some, and never comes to some.
struct Worker {
    id: NodeId,
    gateways: OnceLock<Arc<dyn GatewayLink>>,
    open: Mutex<BTreeMap<QueryKey, Asked>>,
    /// What is announced to it, and how often it claimed something that it was then sent.
    heard: Mutex<BTreeSet<QueryKey>>,
    granted: Mutex<u64>,
    leaked: Mutex<u32>,
    made: Mutex<Made>,
    work: mpsc::Sender<QueryKey>,
    fault: Fault,
    /// The last queries are answered only when all of them are here.
    last: Mutex<BTreeSet<QueryKey>>,
}

impl NodeLink for Worker {
    fn send(&self, frame: ToNode) {
        match frame {
            ToNode::Query(query) => {
                let QueryFrame { key, input: Input::Raw(input), returnable, .. } = *query else { return };
                *lock(&self.granted) += u64::from(lock(&self.heard).remove(&key));
                lock(&self.open).insert(key, Asked { input, returnable, told: false });
                if key.0 & ((1 << 40) - 1) >= LAST {
                    lock(&self.last).insert(key);
                }
                self.work.try_send(key).expect("the node works");
            }
            ToNode::Announce(told) => {
                lock(&self.heard).insert(told.key);
                self.work.try_send(told.key).expect("the node works");
            }
            ToNode::Cancel { key } if lock(&self.heard).remove(&key) => {}
            ToNode::Cancel { key } => match self.fault {
                Fault::Deaf => {}
                Fault::Nothing | Fault::Swaps | Fault::Leaks | Fault::Forgets | Fault::Disobeys => {
                    let had = lock(&self.open).remove(&key).is_some();
                    if had && self.fault == Fault::Leaks {
                        *lock(&self.leaked) += 1;
                    }
                }
            },
            ToNode::MayReturn { key } => {
                if let Some(asked) = lock(&self.open).get_mut(&key) {
                    (asked.returnable, asked.told) = (true, true);
                }
            }
            ToNode::Demand(_) | ToNode::Pin { .. } | ToNode::Wake { .. } | ToNode::Unload { .. } => {}
        }
    }
}

impl Worker {
    fn report(&self) -> NodeReport {
        let queries = CREDIT.saturating_sub(*lock(&self.leaked));
        let mut made = lock(&self.made);
        (made.inputs, made.at) = (made.inputs + 1, made.at + Micros(1));
        let limit = Limit { queries, bytes: BYTES };
        NodeReport { limit, wait: Moments::ZERO, waits: Vec::new(), made: *made, ..NodeReport::default() }
    }

    fn say(&self, body: Body) {
        let gateways = self.gateways.get().expect("connected");
        gateways.receive(self.id, FromNode { body, report: self.report() });
    }

    async fn run(self: Arc<Self>, mut work: mpsc::Receiver<QueryKey>, mut rng: Rng) {
        let mut before = Buffer::new();
        while let Some(key) = work.recv().await {
            let last = key.0 & ((1 << 40) - 1) >= LAST;
            if lock(&self.heard).contains(&key) {
                self.may_claim(key, !last, &mut rng).await;
                continue;
            }
            if last {
                // Answered by `release`.
                continue;
            }
            sleep(Duration::from_micros(rng.below(12_000))).await;
            let fate = rng.below(50);
            if fate == 0 {
                continue; // until its gateway takes it back
            }
            let Some(Asked { input, returnable, told }) = lock(&self.open).remove(&key) else { continue };
            let input =
                if self.fault == Fault::Swaps { std::mem::replace(&mut before, input) } else { input };
            let may = returnable || self.fault == Fault::Disobeys;
            self.say(match fate {
                1 => Body::HandedBack { key, why: Refusal::Draining },
                2 => Body::Refused { key, refusal: Refusal::QueueFull { limit: 1 } },
                // Most of those that it is told of are given back, since there are few.
                3.. if may && (fate < 5 || (told && fate < 40)) => {
                    Body::HandedBack { key, why: Refusal::TooLate { waited: Micros(1) } }
                }
                _ => Body::Answer { key, answer: Box::new(answer(input)) },
            });
        }
    }

    /// Most of what is announced is claimed, some is given up, and of some nothing is ever said.
    async fn may_claim(&self, key: QueryKey, may_not: bool, rng: &mut Rng) {
        let fate = if may_not { rng.below(12) } else { 11 };
        sleep(Duration::from_micros(rng.below(6_000))).await;
        if fate < 2 && lock(&self.heard).remove(&key) {
            let why = if fate == 0 {
                Refusal::TooLate { waited: Micros(1) }
            } else {
                Refusal::QueueFull { limit: 1 }
            };
            self.say(Body::Declined { key, why });
        } else if fate > 2 && lock(&self.heard).contains(&key) {
            self.say(Body::Claim { queries: vec![key], lanes: 1 });
        }
    }

    fn release(&self) {
        let all: Vec<_> = std::mem::take(&mut *lock(&self.open)).into_iter().collect();
        for (key, Asked { input, .. }) in all {
            self.say(Body::Answer { key, answer: Box::new(answer(input)) });
        }
    }
}

struct Entry {
    query: Query,
    sent: Option<NodeId>,
    /// Whether that node may give it back, and whether it was told so later.
    returnable: bool,
    told: bool,
}

/// With the number of the connection that each is from.
type Links = BTreeMap<NodeId, (u64, Arc<dyn NodeLink>)>;

/// A gateway: its router, its open queries, and the nodes it reaches.
struct Desk {
    number: usize,
    origin: Instant,
    fault: Fault,
    violations: Arc<Violations>,
    machine: Mutex<(Router, Time)>,
    open: Mutex<BTreeMap<u64, Entry>>,
    ended: Mutex<BTreeMap<u64, &'static str>>,
    /// Queries that came back since their node was told that they may.
    freed: Mutex<u64>,
    links: Mutex<Links>,
    timer: Notify,
}

impl Desk {
    fn now(&self) -> Time {
        Time(u64::try_from(self.origin.elapsed().as_micros()).expect("not long"))
    }

    fn feed(&self, event: Event) {
        self.with(|router, now| router.handle(now, event));
    }

    /// Actions are performed when the machine is free again, and may feed it.
    fn with(&self, tell: impl FnOnce(&mut Router, Time)) {
        let actions: Vec<Action> = {
            let mut machine = lock(&self.machine);
            let (router, last) = &mut *machine;
            let now = self.now().max(*last + Micros(1));
            *last = now;
            tell(router, now);
            std::iter::from_fn(|| router.poll_action()).collect()
        };
        for action in actions {
            self.perform(action);
        }
        self.timer.notify_one();
    }

    fn perform(&self, action: Action) {
        match action {
            Action::Send { key, node, waiting, returnable, .. } => {
                let now = self.now();
                let query = lock(&self.open).get_mut(&key.0).map(|entry| {
                    (entry.sent, entry.returnable, entry.told) = (Some(node), returnable, false);
                    entry.query
                });
                let Some(query) = query else { return self.feed(Event::Cancel { key }) };
                let left = |until: Time| Micros(until.0.saturating_sub(now.0));
                let sent = QueryFrame {
                    class: query.class,
                    deadline_in: left(query.deadline),
                    expires_in: left(query.expires),
                    decoded: query.bytes,
                    returnable,
                    demand: Demand { class: query.class, waiting, first: None, among: 1 },
                    ..frame(key.0, Input::Raw(input_of(self.number, key.0)))
                };
                self.to_node(node, ToNode::Query(Box::new(sent)));
            }
            Action::Refuse { key, refusal } => {
                lock(&self.open).remove(&key.0);
                self.ends(key, refusal.name());
            }
            Action::Cancel { key, node } | Action::Withdraw { key, node } => {
                self.to_node(node, ToNode::Cancel { key });
            }
            Action::MayReturn { key, node } => {
                if let Some(entry) = lock(&self.open).get_mut(&key.0) {
                    (entry.returnable, entry.told) = (true, true);
                }
                self.to_node(node, ToNode::MayReturn { key });
            }
            Action::Announce { key, node, part_ppm, quickest } => {
                let now = self.now();
                // One that has ended meanwhile is taken back at once.
                let Some(query) = lock(&self.open).get(&key.0).map(|entry| entry.query) else { return };
                let left = |until: Time| Micros(until.0.saturating_sub(now.0));
                let told = Announcement {
                    key,
                    tenant: query.tenant,
                    app: query.app,
                    class: query.class,
                    deadline_in: left(query.deadline),
                    expires_in: left(query.expires),
                    spent: now - query.arrived,
                    max_cost: None,
                    prefer: query.prefer,
                    priority: query.priority,
                    best_effort: false,
                    decoded: query.bytes,
                    part_ppm,
                    quickest,
                };
                self.to_node(node, ToNode::Announce(Box::new(told)));
            }
            Action::Wake { .. } => {}
        }
    }

    fn to_node(&self, node: NodeId, frame: ToNode) {
        let link = lock(&self.links).get(&node).map(|(_, link)| Arc::clone(link));
        match link {
            Some(link) => link.send(frame),
            None => self.feed(Event::NodeDown { node }),
        }
    }

    fn ends(&self, key: QueryKey, how: &'static str) {
        let before = lock(&self.ended).insert(key.0, how);
        self.violations.unless(before.is_none(), || {
            format!("query {key} of gateway {} ended twice: {before:?}, then {how}", self.number)
        });
    }

    fn asks(&self, key: u64, latency: Micros) {
        self.with(|router, now| {
            let bytes = Bytes(input_of(self.number, key).len() as u64);
            let template = frame(key, Input::Raw(Buffer::new()));
            let query = Query {
                key: QueryKey(key),
                tenant: template.tenant,
                app: template.app,
                class: class(),
                arrived: now,
                deadline: now + latency,
                expires: now + latency,
                max_cost: None,
                prefer: template.prefer,
                priority: Priority::default(),
                best_effort: false,
                bytes,
                returnable: false,
            };
            lock(&self.open).insert(key, Entry { query, sent: None, returnable: false, told: false });
            router.handle(now, Event::Arrive(query));
        });
    }

    fn leaves(&self, key: u64) {
        if lock(&self.open).remove(&key).is_some() {
            self.ends(QueryKey(key), "cancelled");
            self.feed(Event::Cancel { key: QueryKey(key) });
        }
    }

    /// An answer counts whoever gives it; a no counts only from the node that has the query now.
    fn told(&self, key: QueryKey, node: NodeId, report: NodeReport, how: &'static str) {
        let (mine, elsewhere) = {
            let mut open = lock(&self.open);
            let Some(entry) = open.get(&key.0) else {
                drop(open);
                return self.feed(Event::Finished { key, node, report, end: End::Unknown });
            };
            let elsewhere = entry.sent != Some(node);
            let mine = how == "answered" || !elsewhere;
            if mine {
                open.remove(&key.0);
            }
            (mine, elsewhere)
        };
        if !mine {
            return self.feed(Event::Report { node, report });
        }
        self.ends(key, how);
        if elsewhere {
            self.feed(Event::Report { node, report });
            self.feed(Event::Cancel { key });
        } else if self.fault != Fault::Forgets {
            self.feed(Event::Finished { key, node, report, end: End::Unknown });
        }
    }

    /// A node gives back only what it may, unless it drains.
    fn comes_back(&self, key: QueryKey, node: NodeId, why: &Refusal) {
        let open = lock(&self.open);
        let Some(entry) = open.get(&key.0).filter(|entry| entry.sent == Some(node)) else { return };
        if *why != Refusal::Draining {
            self.violations.unless(entry.returnable, || {
                format!("query {key} of gateway {} came back and was not to", self.number)
            });
            *lock(&self.freed) += u64::from(entry.told);
        }
    }

    fn joined(&self, serial: u64, node: NodeId, link: Arc<dyn NodeLink>) {
        if lock(&self.links).insert(node, (serial, link)).is_some() {
            self.feed(Event::NodeDown { node });
        }
        self.feed(Event::Table(self.table()));
    }

    fn lost(&self, serial: u64, node: NodeId) {
        {
            let mut links = lock(&self.links);
            if links.get(&node).is_none_or(|(other, _)| *other != serial) {
                return; // another has taken its place
            }
            links.remove(&node);
        }
        self.feed(Event::NodeDown { node });
        self.feed(Event::Table(self.table()));
    }

    fn table(&self) -> Table {
        let point = BatchPoint { batch: 1, mean_us: 6e3, var_us2: 0.0, p99_us: 6e3, samples: 9 };
        let run = RunModel::from_points(&[point], Moments::ZERO).expect("a usable point");
        let offer = Offer { task: TaskId(3), ordinal: 0, ready: Ready::Resident, run, width: 1 };
        let node = |id: &NodeId| NodeInfo {
            id: *id,
            rtt: Moments::ZERO,
            price: PricePerHour(1),
            offers: vec![offer.clone()],
        };
        let variant = VariantInfo {
            id: VariantId(1),
            model: ModelId(1),
            ordinal: 0,
            space: SpaceId(1),
            accuracy: Accuracy::from_ppm(900_000).expect("at most one"),
            max_batch: 1,
            candidate: false,
        };
        let task = TaskInfo {
            id: TaskId(3),
            default_space: SpaceId(1),
            defaults: Goals { latency: Some(Micros::from_millis(500)), ..Goals::default() },
            variants: vec![variant],
        };
        Table { tasks: vec![task], nodes: lock(&self.links).keys().map(node).collect() }
    }

    async fn serve_timer(self: Arc<Self>) {
        loop {
            let wake = lock(&self.machine).0.poll_timeout().map(|wake| wake.at);
            let Some(at) = wake else {
                self.timer.notified().await;
                continue;
            };
            let due = self.origin + Duration::from_micros(at.0);
            tokio::select! {
                biased;
                () = sleep_until(due) => self.with(Machine::handle_timeout),
                () = self.timer.notified() => {}
            }
        }
    }

    /// Asks, and sometimes goes away before the answer.
    async fn clients(self: Arc<Self>, mut rng: Rng, enough: CancellationToken) -> u64 {
        let mut key = 0;
        let mut leaving = BTreeSet::new();
        while !enough.is_cancelled() {
            sleep(Duration::from_micros(rng.below(16_000))).await;
            key += 1;
            self.asks(key, Micros::from_millis(20 + rng.below(700)));
            if rng.below(20) == 0 {
                leaving.insert(key + rng.below(5));
            }
            if leaving.remove(&key) {
                self.leaves(key);
            }
            self.overdue();
        }
        key
    }

    /// None is open for long after its time.
    fn overdue(&self) {
        let limit = Limits::default().grace + Micros::from_millis(20);
        let now = self.now();
        for (key, entry) in &*lock(&self.open) {
            self.violations.unless(now <= entry.query.expires + limit, || {
                format!("query {key} of gateway {} is open long after its time", self.number)
            });
        }
    }
}

impl GatewayLink for Desk {
    fn receive(&self, node: NodeId, frame: FromNode) {
        let FromNode { body, report } = frame;
        match body {
            Body::Answer { key, answer } => {
                self.violations.unless(answer.body == input_of(self.number, key.0), || {
                    format!("query {key} of gateway {} got another's answer", self.number)
                });
                self.told(key, node, report, "answered");
            }
            Body::Refused { key, .. } => self.told(key, node, report, "refused"),
            Body::BadInput { key, .. } => self.told(key, node, report, "bad"),
            Body::HandedBack { key, why } => {
                self.comes_back(key, node, &why);
                self.feed(Event::HandedBack { key, node, report, why });
            }
            Body::Declined { key, why } => self.feed(Event::Declined { key, node, report, why }),
            Body::Claim { queries, lanes } => self.feed(Event::Claim { queries, node, lanes, report }),
            Body::Report => self.feed(Event::Report { node, report }),
        }
    }
}

struct World {
    hosts: Vec<Host>,
    workers: Vec<Arc<Worker>>,
    desks: Vec<Arc<Desk>>,
    intruder: Arc<Log<()>>,
    violations: Arc<Violations>,
    stop: CancellationToken,
    tasks: JoinSet<()>,
    _statuses: Vec<watch::Sender<NodeStatus>>,
}

fn with_key(key: &[u8]) -> Config {
    Config { key: Some(Key::new(key).expect("long enough")), ..config() }
}

impl World {
    async fn new(rng: &mut Rng, fault: Fault, announce: u16) -> Self {
        let key = with_key(b"a key that nobody would guess");
        let violations = Arc::<Violations>::default();
        let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
        let (mut hosts, mut workers, mut statuses) = (Vec::new(), Vec::new(), Vec::new());
        for id in (1..=NODES).map(NodeId) {
            let host = Host::new(rng.below(u64::MAX), Duration::from_micros(50 + rng.below(3_000)));
            let mut about = status();
            (about.node, about.info.id) = (id, id);
            let (status, watched) = watch::channel(about);
            let (work, queue) = mpsc::channel(100_000);
            let worker = Arc::new(Worker {
                id,
                gateways: OnceLock::new(),
                open: Mutex::default(),
                heard: Mutex::default(),
                granted: Mutex::default(),
                leaked: Mutex::default(),
                made: Mutex::default(),
                work,
                fault,
                last: Mutex::default(),
            });
            let listener = Listener::bind(&Address::Sim(host.clone())).await.expect("a simulated place");
            let server = serve_node(listener, Arc::clone(&worker) as Arc<dyn NodeLink>, watched, key.clone());
            assert!(worker.gateways.set(server.link()).is_ok());
            tasks.spawn(server.run(stop.clone()));
            tasks.spawn(Arc::clone(&worker).run(queue, Rng(rng.below(u64::MAX))));
            worker.say(Body::Report);
            hosts.push(host);
            workers.push(worker);
            statuses.push(status);
        }
        let limits = Limits { announce, ..Limits::default() };
        let desks: Vec<_> = (0..GATEWAYS)
            .map(|number| {
                let desk = Arc::new(Desk {
                    number,
                    origin: Instant::now(),
                    fault,
                    violations: Arc::clone(&violations),
                    machine: Mutex::new((Router::new(limits, rng.below(u64::MAX)), Time(0))),
                    open: Mutex::default(),
                    ended: Mutex::default(),
                    freed: Mutex::default(),
                    links: Mutex::default(),
                    timer: Notify::new(),
                });
                tasks.spawn(Arc::clone(&desk).serve_timer());
                desk
            })
            .collect();
        let intruder: Arc<Log<()>> = Arc::default();
        for (host, id) in hosts.iter().zip(1..) {
            let node = NodeId(id);
            let dial = |name: &str, seed, config: &Config| Dial {
                address: Address::Sim(host.clone()),
                node: Some(node),
                name: name.into(),
                queries: true,
                seed,
                config: config.clone(),
            };
            for desk in &desks {
                let (joining, mut serial) = (Arc::clone(desk), 0);
                let ends = Arc::new(Mutex::new(JoinSet::new()));
                let joined = move |status: watch::Receiver<NodeStatus>, link| {
                    serial += 1;
                    joining.joined(serial, node, link);
                    let (desk, serial, mut status) = (Arc::clone(&joining), serial, status);
                    lock(&ends).spawn(async move {
                        while status.changed().await.is_ok() {}
                        desk.lost(serial, node);
                    });
                };
                let gateway = Arc::clone(desk) as Arc<dyn GatewayLink>;
                tasks.spawn(keep(dial("gateway", rng.below(u64::MAX), &key), gateway, joined, stop.clone()));
            }
            let (log, nobody) = (Arc::clone(&intruder), Arc::clone(&desks[0]) as Arc<dyn GatewayLink>);
            let other = with_key(b"a key that somebody guessed");
            let note = move |_: watch::Receiver<NodeStatus>, _: Arc<dyn NodeLink>| log.push(());
            tasks.spawn(keep(dial("intruder", 1, &other), nobody, note, stop.clone()));
        }
        Self { hosts, workers, desks, intruder, violations, stop, tasks, _statuses: statuses }
    }

    /// For some seconds each network does its worst, then all are well.
    async fn storm(&self, rng: &mut Rng) {
        let worst = Instant::now() + Duration::from_secs(6);
        while Instant::now() < worst {
            sleep(Duration::from_millis(rng.below(700))).await;
            let host = &self.hosts[usize::try_from(rng.below(NODES.into())).expect("small")];
            match rng.below(5) {
                0 => host.cut(),
                1 => host.half_open(),
                2 => host.throttle(200_000 + rng.below(5_000_000)),
                _ => {
                    host.silence(true);
                    sleep(Duration::from_millis(rng.below(2_000))).await;
                    host.silence(false);
                }
            }
        }
        for host in &self.hosts {
            host.throttle(50_000_000);
        }
        // Losing what is half open, the longest back-off, greeting.
        sleep(config().lost_within() + config().back_off_most + Duration::from_secs(3)).await;
    }

    /// Nothing is left to do: nobody has anything.
    fn quiet(&self) {
        for desk in &self.desks {
            let (open, number) = (lock(&desk.open).len(), desk.number);
            self.violations.unless(open == 0, || format!("gateway {number} still has {open} queries"));
            let machine = lock(&desk.machine);
            let (open, waiting) = (machine.0.open(), machine.0.waiting());
            self.violations.unless(open == 0 && waiting == 0, || {
                format!("the router of gateway {number} has {open} queries, {waiting} of which wait")
            });
            for id in (1..=NODES).map(NodeId) {
                let ix = machine.0.snapshot().node_ix(id);
                self.violations.unless(ix.is_some(), || format!("gateway {number} did not find {id} again"));
                let out = ix.map_or(0, |ix| machine.0.load().outstanding(ix));
                self.violations.unless(out == 0, || {
                    format!("gateway {number} has given {out} of the credit of {id} for nothing")
                });
            }
        }
        for worker in &self.workers {
            let kept = lock(&worker.open).len() + lock(&worker.heard).len();
            self.violations.unless(kept == 0, || format!("{} keeps {kept} that nobody waits for", worker.id));
        }
    }

    /// One gateway uses all credit that there is at once.
    async fn all_credit_is_back(&self) {
        let desk = &self.desks[0];
        let all = u64::from(CREDIT * NODES);
        for at in 0..all {
            desk.asks(LAST + 1 + at * 19, Micros::from_secs(10));
        }
        sleep(Duration::from_secs(1)).await;
        let came: usize = self.workers.iter().map(|worker| lock(&worker.last).len()).sum();
        self.violations.unless(came as u64 == all, || format!("{came} of {all} queries found credit"));
        self.workers.iter().for_each(|worker| worker.release());
        sleep(Duration::from_secs(1)).await;
        self.workers.iter().for_each(|worker| worker.release());
    }
}

/// What a world came to.
struct Seen {
    /// What was seen that must not be.
    violations: Vec<String>,
    /// How many queries came back since their node was told that they may.
    freed: u64,
    /// How many came to a node because it claimed them.
    granted: u64,
}

async fn one_world(seed: u64, fault: Fault) -> Seen {
    let mut rng = Rng(seed);
    let mut world = World::new(&mut rng, fault, if seed % 2 == 1 { 16 } else { 0 }).await;
    let enough = CancellationToken::new();
    let mut clients = JoinSet::new();
    for desk in &world.desks {
        let (desk, rng, enough) = (Arc::clone(desk), Rng(rng.below(u64::MAX)), enough.clone());
        clients.spawn(async move { (desk.number, Arc::clone(&desk).clients(rng, enough).await) });
    }
    world.storm(&mut rng).await;
    enough.cancel();
    let mut asked = [0; GATEWAYS];
    while let Some(done) = clients.join_next().await {
        let (number, count) = done.expect("no panic");
        asked[number] = count;
    }
    // The longest latency, and what idle gateways leave to others.
    sleep(Duration::from_secs(3)).await;
    world.quiet();
    for desk in &world.desks {
        let (ended, all) = (lock(&desk.ended).len() as u64, asked[desk.number]);
        world.violations.unless(ended == all, || format!("{ended} of {all} queries ended"));
        let answered = lock(&desk.ended).values().filter(|how| **how == "answered").count() as u64;
        world.violations.unless(answered > all / 10, || format!("only {answered} of {all} were answered"));
    }
    world.all_credit_is_back().await;
    world.quiet();
    let intruders = world.intruder.all().len();
    world.violations.unless(intruders == 0, || "one without the key was let in".into());
    world.stop.cancel();
    world.tasks.abort_all();
    while world.tasks.join_next().await.is_some() {}
    let freed = world.desks.iter().map(|desk| *lock(&desk.freed)).sum();
    let granted = world.workers.iter().map(|worker| *lock(&worker.granted)).sum();
    Seen { violations: std::mem::take(&mut *lock(&world.violations.0)), freed, granted }
}

fn seen(seed: u64, fault: Fault) -> Seen {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(one_world(seed, fault))
}

fn worlds(seeds: std::ops::Range<u64>) {
    let (mut all_freed, mut all_granted) = (0, 0);
    for seed in seeds {
        let Seen { violations, freed, granted } = seen(seed, Fault::Nothing);
        (all_freed, all_granted) = (all_freed + freed, all_granted + granted);
        assert!(
            violations.is_empty(),
            "seed {seed}: {} violations:\n{}",
            violations.len(),
            violations[..violations.len().min(20)].join("\n")
        );
    }
    assert!(all_granted > 1_000, "only {all_granted} were claimed");
    assert!(all_freed > 0, "no seed came to a node that was told that it may give something back");
}

macro_rules! bad_worlds {
    ($($name:ident: $seeds:expr,)*) => {$(
        #[test]
        fn $name() {
            worlds($seeds);
        }
    )*};
}

bad_worlds! {
    every_query_ends_once_and_all_credit_comes_back_1: 0..50,
    every_query_ends_once_and_all_credit_comes_back_2: 50..100,
    every_query_ends_once_and_all_credit_comes_back_3: 100..150,
    every_query_ends_once_and_all_credit_comes_back_4: 150..200,
}

#[test]
fn faults_that_are_injected_are_noticed() {
    for (fault, told) in [
        (Fault::Swaps, "got another's answer"),
        (Fault::Deaf, "that nobody waits for"),
        (Fault::Leaks, "queries found credit"),
        (Fault::Forgets, "ended twice"),
        (Fault::Disobeys, "came back and was not to"),
    ] {
        let noticed = (0..3).flat_map(|seed| seen(seed, fault).violations).any(|what| what.contains(told));
        assert!(noticed, "{fault:?} was not noticed");
    }
}
