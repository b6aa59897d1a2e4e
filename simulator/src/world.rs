//! The loop: one heap of events, in the order of the machines' contract, until everything has left.

use crate::check::Books;
use crate::gateway::Gateway;
use crate::heap::Heap;
use crate::known::Catalog;
use crate::meter::Meter;
use crate::node::{FromNode, Node, ToNode};
use crate::open::Open;
use crate::outcome::{Outcome, ratio};
use crate::record::Record;
use crate::rng::Rng;
use crate::scenario::Scenario;
use crate::workload::Source;
use crate::{Broken, Error};
use modelless_decision::demand::Lately;
use modelless_decision::route::{NodeInfo, NodeReport, Router, SHARE_BEAT, Table};
use modelless_decision::worker::{BatchId, Worker};
use modelless_decision::{Moments, Query, Rank};
use modelless_types::{DeviceIx, Micros, NodeId, PricePerHour, QueryKey, Time, VariantId};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Events at one instant beyond which time is taken to stand still.
const ONE_INSTANT: u32 = 1_000_000;
/// How long what others heard may wait until a gateway hears it, as live.
const REPORT_WITHIN: Micros = Micros::from_millis(20);
/// Heartbeats with nothing else going on beyond which nothing is taken to ever happen again.
const IDLE_BEATS: u32 = 100;

/// What can happen.
pub(crate) enum Ev {
    Offer {
        stream: usize,
    },
    GiveUp {
        key: QueryKey,
    },
    ToNode {
        gateway: usize,
        epoch: u32,
        node: usize,
        life: u32,
        frame: ToNode,
    },
    FromNode {
        gateway: usize,
        epoch: u32,
        node: usize,
        life: u32,
        frame: FromNode,
        report: NodeReport,
    },
    Decoded {
        node: usize,
        life: u32,
        key: QueryKey,
    },
    Prepared {
        node: usize,
        life: u32,
        batch: BatchId,
    },
    Ran {
        node: usize,
        life: u32,
        batch: BatchId,
    },
    Loaded {
        node: usize,
        life: u32,
        device: DeviceIx,
        variant: VariantId,
        load: u64,
        took: Micros,
        failed: bool,
    },
    Unloaded {
        node: usize,
        life: u32,
        device: DeviceIx,
        variant: VariantId,
        load: u64,
    },
    Judged {
        node: usize,
        life: u32,
        device: DeviceIx,
    },
    QuarantineEnded {
        node: usize,
        life: u32,
        device: DeviceIx,
    },
    Heartbeat {
        node: usize,
        life: u32,
    },
    /// Gateways are weighed anew.
    Beat {
        node: usize,
        life: u32,
    },
    /// Gateways hear of what is shared otherwise than before.
    Shared {
        node: usize,
        life: u32,
    },
    NewTable,
    /// It is decided anew which machines there should be.
    Hire,
    /// A machine that was asked for is there.
    Started {
        node: usize,
        start: u64,
    },
    /// It is looked how things are.
    Look,
    /// It is planned anew.
    Plan,
    Fault {
        fault: usize,
    },
    FaultOver {
        fault: usize,
    },
    NodeLost {
        gateway: usize,
        epoch: u32,
        node: usize,
        life: u32,
    },
    GatewayLost {
        node: usize,
        life: u32,
        gateway: usize,
        epoch: u32,
    },
    NodeTimer {
        node: usize,
        life: u32,
    },
    GatewayTimer {
        gateway: usize,
        epoch: u32,
    },
}

/// Everything there is.
pub(crate) struct World<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) seed: u64,
    pub(crate) now: Time,
    pub(crate) nodes: Vec<Node>,
    pub(crate) gateways: Vec<Gateway>,
    pub(crate) books: Books,
    /// Open queries as their gateways made them.
    pub(crate) queries: Open<Query>,
    pub(crate) next_key: u64,
    pub(crate) record: Record,
    /// The true behaviour of each variant.
    pub(crate) known: Rc<Catalog<'a>>,
    pub(crate) rng_runs: Rng,
    pub(crate) rng_jitter: Rng,
    pub(crate) rng_faults: Rng,
    pub(crate) rng_clients: Rng,
    pub(crate) rng_links: Rng,
    pub(crate) batch_sizes: BTreeMap<u32, u64>,
    pub(crate) loads: u64,
    /// What is pinned by the last plan.
    pub(crate) planned: modelless_decision::plan::Plan,
    /// What was asked lately.
    pub(crate) asked: Lately,
    pub(crate) load_failures: u64,
    pub(crate) unloads: u64,
    pub(crate) crashes: u64,
    pub(crate) recuts: u64,
    pub(crate) drifted: u64,
    pub(crate) steadied: u64,
    pub(crate) handed_back: u64,
    /// Queries that nodes asked for.
    pub(crate) claims: u64,
    pub(crate) echoes: u64,
    pub(crate) busy_us: u64,
    pub(crate) device_nano_usd: u64,
    pub(crate) outstanding_max: u32,
    pub(crate) meter: Meter,
    pub(crate) rented: crate::renting::Rented,
    pub(crate) rng_starts: Rng,
    heap: Heap<(bool, Ev)>,
    /// Events in the heap that are more than heartbeats.
    pending: usize,
    sources: Vec<Source>,
    table_due: bool,
    events: u64,
    last_left: Time,
}

impl<'a> World<'a> {
    pub(crate) fn new(scenario: &'a Scenario, seed: u64) -> Self {
        let nodes = scenario.nodes.iter().enumerate().map(|(at, spec)| {
            let id = NodeId(u32::try_from(at + 1).expect("fewer than 2^32 nodes"));
            let price = spec.worker.devices.first().map_or(PricePerHour(0), |d| d.price);
            let way = Moments::exactly(scenario.link.one_way + spec.far + scenario.link.jitter);
            let jitter = Moments::exactly(scenario.link.jitter).mean;
            let rtt = Moments { mean: way.mean, var: jitter * jitter }.times(2.0);
            let info = NodeInfo { id, rtt, price, offers: Vec::new() };
            Node::new(id, 0, Worker::new(spec.worker.clone()), info)
        });
        let nodes: Vec<Node> = nodes.collect();
        let gateway =
            |at: u32| Gateway::new(Router::new(scenario.limits, seed ^ u64::from(at)), nodes.len(), 0);
        Self {
            scenario,
            seed,
            now: Time::ZERO,
            gateways: (0..scenario.gateways).map(gateway).collect(),
            nodes,
            books: Books::default(),
            queries: Open::default(),
            next_key: 0,
            record: Record::new(scenario),
            known: Rc::new(Catalog::new(scenario)),
            rng_runs: Rng::new(seed, "runs"),
            rng_jitter: Rng::new(seed, "jitter"),
            rng_faults: Rng::new(seed, "faults"),
            rng_clients: Rng::new(seed, "clients"),
            rng_links: Rng::new(seed, "links"),
            batch_sizes: BTreeMap::new(),
            loads: 0,
            load_failures: 0,
            unloads: 0,
            planned: modelless_decision::plan::Plan::default(),
            asked: Lately::default(),
            crashes: 0,
            recuts: 0,
            drifted: 0,
            steadied: 0,
            handed_back: 0,
            claims: 0,
            echoes: 0,
            busy_us: 0,
            device_nano_usd: 0,
            outstanding_max: 0,
            meter: Meter::new(scenario, |node| scenario.nodes[node].there_at_start()),
            rented: crate::renting::Rented::new(scenario),
            rng_starts: Rng::new(seed, "starts"),
            heap: Heap::new(),
            pending: 0,
            sources: Source::of(scenario, seed),
            table_due: false,
            events: 0,
            last_left: Time::ZERO,
        }
    }

    pub(crate) fn push(&mut self, at: Time, rank: Rank, event: Ev) {
        let idle = matches!(&event, Ev::FromNode { frame: FromNode::Report, .. });
        self.pending += usize::from(!idle);
        self.heap.push(at, rank, (idle, event));
    }

    /// What goes on for ever and must not keep the world alive.
    pub(crate) fn push_idle(&mut self, at: Time, event: Ev) {
        self.heap.push(at, Rank::Completion, (true, event));
    }

    /// When a frame between a gateway and a node arrives.
    pub(crate) fn link_delay(&mut self, node: usize) -> Time {
        let link = self.scenario.link;
        let jitter = Moments::exactly(link.jitter).times(self.rng_links.exponential());
        self.now + link.one_way + self.scenario.nodes[node].far + jitter.mean()
    }

    fn look(&mut self) {
        let up = self.nodes.iter().filter(|node| node.up);
        let machines = u32::try_from(up.clone().count()).unwrap_or(u32::MAX);
        let lanes = up.clone().map(|node| {
            let devices = &self.scenario.nodes[Self::position(node.id)].worker.devices;
            devices.iter().map(|d| u64::from(d.lanes.max(1))).sum::<u64>()
        });
        let busy = up.clone().map(crate::node::Node::running).sum();
        let loaded = up.flat_map(crate::node::Node::loaded_variants);
        self.record.look(self.now, loaded, machines, (busy, lanes.sum()));
        if self.now - Time::ZERO < self.scenario.start + self.scenario.duration {
            self.push_idle(self.now + self.record.every(), Ev::Look);
        }
    }

    /// Others share a node's credit than before: gateways hear of it a little later, together.
    pub(crate) fn share_anew(&mut self, node: usize) {
        let life = self.nodes[node].life;
        self.push_idle(self.now + REPORT_WITHIN, Ev::Shared { node, life });
    }

    pub(crate) fn position(node: NodeId) -> usize {
        usize::try_from(node.0).unwrap_or(0).saturating_sub(1)
    }

    pub(crate) fn run(mut self) -> Result<Outcome, Error> {
        self.begin_renting();
        for at in 0..self.nodes.len() {
            if self.nodes[at].up {
                self.node_up(at)?;
            }
        }
        let table = self.table();
        self.new_table(&table)?;
        self.push_idle(Time::ZERO + self.scenario.start, Ev::Look);
        if self.scenario.planner.is_some() {
            self.plan()?;
        }
        for stream in 0..self.sources.len() {
            self.next_offer(stream);
        }
        for (fault, what) in self.scenario.faults.iter().enumerate() {
            let at = Self::fault_at(what);
            self.push(Time::ZERO + self.scenario.start + at, Rank::Arrival, Ev::Fault { fault });
        }
        let (mut same, mut beats) = (0_u32, 0_u32);
        while self.pending > 0 || self.books.open() > 0 {
            let Some((at, (idle, event))) = self.heap.pop() else { return Err(self.dead_end()) };
            self.events += 1;
            same = if at > self.now { 0 } else { same + 1 };
            if same > ONE_INSTANT {
                let what = format!("a million events at one instant, {} queries open", self.books.open());
                return Err(Error::Endless { at_us: at.0, what });
            }
            self.now = at;
            let open = self.books.open();
            if idle {
                beats = if self.pending == 0 { beats + 1 } else { 0 };
                if beats > IDLE_BEATS {
                    return Err(self.dead_end());
                }
            } else {
                self.pending -= 1;
            }
            self.step(event)?;
            if open > 0 && self.books.open() < open {
                self.last_left = self.now;
            }
        }
        self.finish()
    }

    pub(crate) fn step(&mut self, event: Ev) -> Result<(), Error> {
        let Some(event) = self.unless_paused(event) else { return Ok(()) };
        let alive =
            |world: &Self, node: usize, life: u32| world.nodes[node].up && world.nodes[node].life == life;
        let there =
            |world: &Self, at: usize, epoch: u32| world.gateways[at].up && world.gateways[at].epoch == epoch;
        match event {
            Ev::Offer { stream } => {
                self.next_offer(stream);
                self.offer(stream)
            }
            Ev::GiveUp { key } => self.give_up(key),
            Ev::ToNode { gateway, epoch, node, life, frame } if alive(self, node, life) => {
                if there(self, gateway, epoch) {
                    self.hear_gateway(node, gateway, epoch, &frame)
                } else {
                    Ok(())
                }
            }
            Ev::FromNode { gateway, epoch, node, life, frame, report } if alive(self, node, life) => {
                if there(self, gateway, epoch) {
                    self.hear_node(gateway, node, life, frame, report)
                } else {
                    Ok(())
                }
            }
            Ev::Decoded { node, life, key } if alive(self, node, life) => self.decoded(node, key),
            Ev::Prepared { node, life, batch } if alive(self, node, life) => self.prepared(node, batch),
            Ev::Ran { node, life, batch } if alive(self, node, life) => self.ran(node, batch),
            Ev::Loaded { node, life, device, variant, load, took, failed } if alive(self, node, life) => {
                self.loaded(node, (device, variant), load, took, failed)
            }
            Ev::Unloaded { node, life, device, variant, load } if alive(self, node, life) => {
                self.unloaded(node, (device, variant), load)
            }
            Ev::Judged { node, life, device } if alive(self, node, life) => self.judged(node, device),
            Ev::QuarantineEnded { node, life, device } if alive(self, node, life) => {
                self.quarantine_ended(node, device)
            }
            Ev::Heartbeat { node, life } if alive(self, node, life) => {
                self.speak(node);
                self.push_idle(self.now + self.scenario.heartbeat, Ev::Heartbeat { node, life });
                Ok(())
            }
            Ev::Beat { node, life } if alive(self, node, life) => {
                self.beat(node);
                self.push_idle(self.now + SHARE_BEAT, Ev::Beat { node, life });
                Ok(())
            }
            Ev::Shared { node, life } if alive(self, node, life) => {
                self.speak(node);
                Ok(())
            }
            Ev::NewTable => {
                self.table_due = false;
                let table = self.table();
                self.new_table(&table)
            }
            Ev::Look => {
                self.look();
                Ok(())
            }
            Ev::Hire => self.hire_again(),
            Ev::Started { node, start } => self.started(node, start),
            Ev::Plan => self.plan(),
            Ev::Fault { fault } => self.fault(fault),
            Ev::FaultOver { fault } => self.fault_over(fault),
            Ev::NodeLost { gateway, epoch, node, life } if there(self, gateway, epoch) => {
                if self.connection(gateway, node) == Some(life) {
                    self.node_lost(gateway, node)
                } else {
                    Ok(())
                }
            }
            Ev::GatewayLost { node, life, gateway, epoch } if alive(self, node, life) => {
                self.gateway_lost(node, gateway, epoch)
            }
            Ev::NodeTimer { node, life } if alive(self, node, life) => self.worker_timer(node),
            Ev::GatewayTimer { gateway, epoch } if there(self, gateway, epoch) => self.router_timer(gateway),
            // Of a node or a gateway that is gone.
            Ev::ToNode { .. }
            | Ev::FromNode { .. }
            | Ev::Decoded { .. }
            | Ev::Prepared { .. }
            | Ev::Ran { .. }
            | Ev::Loaded { .. }
            | Ev::Unloaded { .. }
            | Ev::Judged { .. }
            | Ev::QuarantineEnded { .. }
            | Ev::Heartbeat { .. }
            | Ev::Beat { .. }
            | Ev::Shared { .. }
            | Ev::NodeLost { .. }
            | Ev::GatewayLost { .. }
            | Ev::NodeTimer { .. }
            | Ev::GatewayTimer { .. } => Ok(()),
        }
    }

    fn next_offer(&mut self, stream: usize) {
        if let Some(at) = self.sources[stream].next()
            && at < self.scenario.duration
        {
            self.push(Time::ZERO + self.scenario.start + at, Rank::Arrival, Ev::Offer { stream });
        }
    }

    /// A replica changed: gateways will route by it a little later.
    pub(crate) fn refresh_table(&mut self) {
        if !self.table_due {
            self.table_due = true;
            self.push(self.now + self.scenario.table_delay, Rank::Arrival, Ev::NewTable);
        }
    }

    /// What gateways are to know now. A node that is down stays in it as it was known last.
    pub(crate) fn table(&mut self) -> Table {
        let now = self.now;
        for node in self.nodes.iter_mut().filter(|node| node.up) {
            node.info.offers = node.worker.offers(now);
        }
        Table {
            tasks: self.scenario.tasks.iter().map(crate::TaskSpec::info).collect(),
            nodes: self.nodes.iter().map(|node| node.info.clone()).collect(),
        }
    }

    fn dead_end(&self) -> Error {
        let first = self.books.first_open().map_or_else(String::new, |(key, client)| {
            let query = self.queries.get(key);
            format!("{key} at gateway {} since {}: {query:?}", client.gateway, client.arrived.0)
        });
        Error::DeadEnd { at_us: self.now.0, open: self.books.open(), first }
    }

    fn finish(self) -> Result<Outcome, Error> {
        let left_over = |what: String| Broken {
            at_us: self.now.0,
            rule: "when everyone has left, nobody is remembered",
            what,
        };
        for (at, gateway) in self.gateways.iter().enumerate().filter(|(_, g)| g.up) {
            if gateway.router.open() > 0 {
                let what = format!("{} queries are open at gateway {at}", gateway.router.open());
                return Err(left_over(what).into());
            }
        }
        for node in self.nodes.iter().filter(|n| n.up) {
            let heard = node.heard();
            if heard > 0 {
                return Err(left_over(format!("{heard} queries are announced to {}", node.id)).into());
            }
            if node.worker.open() > 0 || (node.drained && !node.worker.drained()) {
                let what = format!("{} has {} queries open", node.id, node.worker.open());
                return Err(left_over(what).into());
            }
        }
        let lasted = self.last_left - Time::ZERO;
        let bill = self.meter.finish(self.last_left);
        let device_usd = modelless_types::CostPer1k(self.device_nano_usd).as_usd();
        let (total, streams, series) = self.record.finish();
        Ok(Outcome {
            scenario: self.scenario.name.clone(),
            seed: self.seed,
            lasted,
            total,
            streams,
            series,
            batches: self.batch_sizes,
            loads: self.loads,
            load_failures: self.load_failures,
            unloads: self.unloads,
            crashes: self.crashes,
            recuts: self.recuts,
            drifted: self.drifted,
            steadied: self.steadied,
            handed_back: self.handed_back,
            claims: self.claims,
            echoes: self.echoes,
            busy: ratio(self.busy_us, bill.lanes_us),
            machines_usd: bill.usd,
            served_usd: bill.served_usd,
            machine_starts: bill.starts,
            device_usd,
            outstanding_max: self.outstanding_max,
            events: self.events,
        })
    }
}
