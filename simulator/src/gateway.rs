//! A gateway's shell: admission, the [`Router`], its connections to nodes, and its clients.

use crate::check::{Client, Left, ensure};
use crate::node::{FromNode, ToNode};
use crate::world::{Ev, World};
use crate::{Error, scenario::Stream};
use modelless_decision::route::{Action, End, Event, Limit, NodeIx, NodeReport, Router, Table};
use modelless_decision::{Machine, Query, Rank, admission};
use modelless_types::{
    Accuracy, AppId, Micros, NodeId, Priority, QueryKey, Refusal, TenantId, Time, VariantId, Within,
};

/// How long after its deadline a client that takes best effort still waits.
const PATIENCE: Micros = Micros::from_secs(10);

pub(crate) struct Gateway {
    pub(crate) up: bool,
    pub(crate) epoch: u32,
    pub(crate) router: Router,
    /// The life of each node that the connection to it belongs to.
    connected: Vec<Option<u32>>,
    /// What each node granted last.
    granted: Vec<Limit>,
    /// When frames from and to each node arrive at the latest so far: they never overtake each other.
    pub(crate) last_in: Vec<Time>,
    pub(crate) last_out: Vec<Time>,
    armed: Option<Time>,
}

impl Gateway {
    pub(crate) fn new(router: Router, nodes: usize, epoch: u32) -> Self {
        Self {
            up: true,
            epoch,
            router,
            connected: vec![None; nodes],
            granted: vec![Limit::default(); nodes],
            last_in: vec![Time::ZERO; nodes],
            last_out: vec![Time::ZERO; nodes],
            armed: None,
        }
    }
}

impl World<'_> {
    /// A query comes to whichever gateway is up and in turn.
    pub(crate) fn offer(&mut self, stream: usize) -> Result<(), Error> {
        let spec = &self.scenario.streams[stream];
        self.record.offered(stream, self.now);
        let up: Vec<usize> = (0..self.gateways.len()).filter(|at| self.gateways[*at].up).collect();
        let key = QueryKey(self.next_key);
        self.next_key += 1;
        let Some(&gateway) = up.get(usize::try_from(key.0).unwrap_or(0) % up.len().max(1)) else {
            self.record.refused((stream, self.now), "no_gateway");
            return Ok(());
        };
        let goals = spec.goals;
        let admitted = match admission::admit(self.gateways[gateway].router.snapshot(), spec.task, &goals) {
            Ok(admitted) => admitted,
            Err(refusal) => {
                self.record.refused((stream, self.now), refusal.name());
                return Ok(());
            }
        };
        let deadline = self.now + admitted.latency;
        let client = self.client(stream, gateway, spec, deadline);
        self.books.enter(key, client);
        if self.rng_clients.chance(spec.gives_up) {
            let share = self.rng_clients.unit();
            let left = modelless_decision::Moments::exactly(admitted.latency).times(share).mean();
            self.push(self.now + left, Rank::Arrival, Ev::GiveUp { key });
        }
        let query = Query {
            key,
            tenant: TenantId::DEFAULT,
            app: AppId::DEFAULT,
            class: admitted.class,
            arrived: self.now,
            deadline,
            expires: if admitted.best_effort { deadline + PATIENCE } else { deadline },
            max_cost: admitted.max_cost,
            prefer: admitted.prefer,
            priority: goals.priority,
            best_effort: admitted.best_effort,
            bytes: spec.bytes,
            returnable: false,
        };
        self.queries.insert(key, query);
        self.asked.came((query.class, Some(Within::of(admitted.latency))), 1.0);
        self.rented.came((query.class, admitted.latency));
        self.feed_router(gateway, Event::Arrive(query))
    }

    fn client(&mut self, stream: usize, gateway: usize, spec: &Stream, deadline: Time) -> Client {
        let task = self.scenario.tasks.iter().find(|t| t.id == spec.task);
        let pinned = task.and_then(|t| {
            let is = |v: &&crate::VariantSpec| {
                Some(v.id) == spec.goals.variant || Some(v.model) == spec.goals.model
            };
            t.variants.iter().find(is)
        });
        let default = task.map_or(modelless_types::SpaceId(0), |t| t.default_space);
        let floor = spec.goals.accuracy.or(task.and_then(|t| t.defaults.accuracy));
        Client {
            stream,
            gateway,
            arrived: self.now,
            deadline,
            floor: floor.unwrap_or(Accuracy::ZERO),
            space: pinned.map_or(default, |v| v.space),
            variant: spec.goals.variant,
            poison: self.rng_clients.chance(spec.poison),
            sent: None,
        }
    }

    pub(crate) fn feed_router(&mut self, at: usize, event: Event) -> Result<(), Error> {
        if !self.gateways[at].up {
            return Ok(());
        }
        // Who is claimed takes no credit, so nobody asks whether there is any.
        let claims = if let Event::Claim { node, .. } = &event { Some(*node) } else { None };
        let had = claims.map(|node| (node, self.outstanding(at, node)));
        self.gateways[at].router.handle(self.now, event);
        self.after_router(at, had)
    }

    /// What a gateway has outstanding at a node.
    fn outstanding(&self, at: usize, node: NodeId) -> u32 {
        let ix = NodeIx(u32::try_from(Self::position(node)).unwrap_or(u32::MAX));
        self.gateways[at].router.load().outstanding(ix)
    }

    pub(crate) fn router_timer(&mut self, at: usize) -> Result<(), Error> {
        let gateway = &mut self.gateways[at];
        gateway.armed = None;
        if gateway.router.poll_timeout().is_some_and(|wake| wake.at <= self.now) {
            gateway.router.handle_timeout(self.now);
        }
        self.after_router(at, None)
    }

    /// `had` is what was outstanding before at a node that claimed: it may have lowered what it grants meanwhile.
    fn after_router(&mut self, at: usize, had: Option<(NodeId, u32)>) -> Result<(), Error> {
        let mut sent = Vec::new();
        while let Some(action) = self.gateways[at].router.poll_action() {
            match action {
                Action::Send { key, node, waiting, first, among, returnable, reserved, .. } => {
                    let Some(query) = self.queries.get(key).copied() else { continue };
                    let way = self.there_and_back(node);
                    let left = |until: Time| (until - self.now).saturating_sub(way);
                    let frame = ToNode::Query {
                        query: Query {
                            returnable,
                            priority: if reserved { Priority::RESERVED } else { query.priority },
                            ..query
                        },
                        deadline_in: left(query.deadline),
                        expires_in: left(query.expires),
                        spent: self.now - query.arrived,
                        waiting,
                        among,
                        first_in: first.map(left),
                    };
                    sent.push(node);
                    self.books.sent(key, node);
                    self.post_to_node(at, node, frame);
                }
                Action::Announce { key, node, part_ppm, quickest } => {
                    let Some(query) = self.queries.get(key).copied() else { continue };
                    let way = self.there_and_back(node);
                    let left = |until: Time| (until - self.now).saturating_sub(way);
                    let frame = ToNode::Announce {
                        query,
                        deadline_in: left(query.deadline),
                        expires_in: left(query.expires),
                        spent: self.now - query.arrived,
                        part_ppm,
                        quickest,
                    };
                    self.post_to_node(at, node, frame);
                }
                Action::Withdraw { key, node } => self.post_to_node(at, node, ToNode::Withdraw { key }),
                Action::Refuse { key, refusal } => self.client_refused(key, &refusal)?,
                Action::MayReturn { key, node } => self.post_to_node(at, node, ToNode::MayReturn { key }),
                Action::Cancel { key, node } => {
                    self.books.take_back(key);
                    self.post_to_node(at, node, ToNode::Cancel { key });
                }
                Action::Wake { node, task, ordinal } => {
                    self.post_to_node(at, node, ToNode::Wake { task, ordinal });
                }
            }
        }
        for node in sent {
            let outstanding = self.outstanding(at, node);
            self.outstanding_max = self.outstanding_max.max(outstanding);
            let granted = self.gateways[at].granted[Self::position(node)].queries;
            let before = had.filter(|(claims, _)| *claims == node).map_or(0, |(_, before)| before);
            ensure(outstanding <= granted.max(before), self.now, "credit is never exceeded", || {
                format!("gateway {at} has {outstanding} at {node}, which granted {granted}")
            })?;
        }
        let gateway = &mut self.gateways[at];
        let wake = gateway.router.poll_timeout().map(|wake| wake.at.max(self.now));
        if let Some(wake) = wake
            && gateway.armed.is_none_or(|armed| wake < armed)
        {
            gateway.armed = Some(wake);
            let epoch = gateway.epoch;
            self.push(wake, Rank::Timer, Ev::GatewayTimer { gateway: at, epoch });
        }
        Ok(())
    }

    /// What the way there and back takes is not the node's to spend.
    fn there_and_back(&self, node: NodeId) -> Micros {
        let far = self.scenario.nodes[Self::position(node)].far;
        let link = self.scenario.link;
        Micros(2 * (link.one_way.0 + far.0 + link.jitter.0))
    }

    /// Over the connection, which belongs to one life of the node; without one the frame is lost, as on a real wire.
    fn post_to_node(&mut self, at: usize, node: NodeId, frame: ToNode) {
        let node = Self::position(node);
        let gateway = &self.gateways[at];
        let Some(life) = gateway.connected[node] else { return };
        let (epoch, last) = (gateway.epoch, gateway.last_out[node]);
        let arrives = self.link_delay(node).max(last);
        self.gateways[at].last_out[node] = arrives;
        self.push(arrives, Rank::Arrival, Ev::ToNode { gateway: at, epoch, node, life, frame });
    }

    /// A frame from a node came in.
    pub(crate) fn hear_node(
        &mut self,
        at: usize,
        position: usize,
        life: u32,
        frame: FromNode,
        report: NodeReport,
    ) -> Result<(), Error> {
        if self.gateways[at].connected[position].is_some_and(|known| known != life) {
            self.node_lost(at, position)?;
        }
        let gateway = &mut self.gateways[at];
        gateway.connected[position] = Some(life);
        gateway.granted[position] = report.limit;
        let node = self.nodes[position].id;
        match frame {
            // As the live gateway has it: who it was taken from may be quicker, and then it goes on nowhere else; what else he says of it is old.
            FromNode::Answer { key, variant } if self.books.is_elsewhere(key, node) => {
                self.client_answered(key, variant)?;
                self.feed_router(at, Event::Report { node, report })?;
                self.feed_router(at, Event::Cancel { key })
            }
            FromNode::Answer { key, variant } => {
                self.client_answered(key, variant)?;
                self.feed_router(at, Event::Finished { key, node, report, end: End::Unknown })
            }
            FromNode::Refused { key, .. } if self.books.is_elsewhere(key, node) => {
                self.feed_router(at, Event::Report { node, report })
            }
            FromNode::Refused { key, refusal } => {
                if self.books.get(key).is_some_and(|c| c.gateway == at) {
                    self.client_refused(key, &refusal)?;
                }
                let end = End::refused(&refusal);
                self.feed_router(at, Event::Finished { key, node, report, end })
            }
            FromNode::HandedBack { key, why } => {
                self.feed_router(at, Event::HandedBack { key, node, report, why })
            }
            FromNode::Declined { key, why } => {
                self.feed_router(at, Event::Declined { key, node, report, why })
            }
            FromNode::Claim { queries, lanes } => {
                self.feed_router(at, Event::Claim { queries, node, lanes, report })
            }
            FromNode::Report => self.feed_router(at, Event::Report { node, report }),
        }
    }

    /// A gateway notices that a node is gone.
    pub(crate) fn node_lost(&mut self, at: usize, position: usize) -> Result<(), Error> {
        self.gateways[at].connected[position] = None;
        let node = self.nodes[position].id;
        self.feed_router(at, Event::NodeDown { node })
    }

    /// The life of a node that a gateway is connected to.
    pub(crate) fn connection(&self, at: usize, position: usize) -> Option<u32> {
        self.gateways[at].connected[position]
    }

    pub(crate) fn new_table(&mut self, table: &Table) -> Result<(), Error> {
        for at in 0..self.gateways.len() {
            self.feed_router(at, Event::Table(table.clone()))?;
        }
        Ok(())
    }

    fn client_answered(&mut self, key: QueryKey, variant: VariantId) -> Result<(), Error> {
        let Some(client) = self.books.get(key).cloned() else {
            self.echoes += 1;
            return Ok(self.books.echo(self.now, key)?);
        };
        let Some(spec) = self.known.spec(variant) else { return Ok(()) };
        ensure(spec.accuracy >= client.floor, self.now, "no answer is below its floor", || {
            format!("{key} asked for {} and {} has {}", client.floor, spec.name, spec.accuracy)
        })?;
        ensure(spec.space == client.space, self.now, "an answer is of one output space", || {
            format!("{key} is to be answered in {} and {} is of {}", client.space, spec.name, spec.space)
        })?;
        let pinned = client.variant.is_none_or(|pin| pin == variant);
        ensure(pinned, self.now, "a pin holds", || format!("{key} was answered by {}", spec.name))?;
        self.books.leave(self.now, key, Left::Answered)?;
        self.queries.remove(key);
        let in_time = self.now <= client.deadline;
        let whose = (client.stream, client.arrived);
        self.record.answered(whose, self.now, in_time, spec.accuracy, (spec.id, &spec.name));
        Ok(())
    }

    fn client_refused(&mut self, key: QueryKey, refusal: &Refusal) -> Result<(), Error> {
        let client = self.books.leave(self.now, key, Left::Refused)?;
        self.queries.remove(key);
        self.record.refused((client.stream, client.arrived), refusal.name());
        Ok(())
    }

    /// A client goes away.
    pub(crate) fn give_up(&mut self, key: QueryKey) -> Result<(), Error> {
        let Some(gateway) = self.books.get(key).map(|c| c.gateway) else { return Ok(()) };
        let client = self.books.leave(self.now, key, Left::Cancelled)?;
        self.queries.remove(key);
        self.record.cancelled((client.stream, client.arrived));
        self.feed_router(gateway, Event::Cancel { key })
    }

    /// A gateway is gone, and its clients with it.
    pub(crate) fn gateway_down(&mut self, at: usize) -> Result<(), Error> {
        if !self.gateways[at].up {
            return Ok(());
        }
        let epoch = self.gateways[at].epoch;
        self.gateways[at].up = false;
        self.gateways[at].epoch += 1;
        for key in self.books.at_gateway(at) {
            let client = self.books.leave(self.now, key, Left::Lost)?;
            self.queries.remove(key);
            self.record.lost((client.stream, client.arrived));
        }
        for node in 0..self.nodes.len() {
            let life = self.nodes[node].life;
            let seen = self.now + self.scenario.detect;
            self.push(seen, Rank::Completion, Ev::GatewayLost { node, life, gateway: at, epoch });
        }
        Ok(())
    }

    pub(crate) fn gateway_back(&mut self, at: usize) -> Result<(), Error> {
        if self.gateways[at].up {
            return Ok(());
        }
        let epoch = self.gateways[at].epoch + 1;
        let router = Router::new(self.scenario.limits, self.seed ^ (u64::from(epoch) << 32) ^ at as u64);
        self.gateways[at] = Gateway::new(router, self.nodes.len(), epoch);
        let table = self.table();
        self.feed_router(at, Event::Table(table))?;
        // A node speaks as soon as somebody connects to it.
        (0..self.nodes.len()).filter(|node| self.nodes[*node].up).collect::<Vec<_>>().into_iter().for_each(
            |node| {
                self.speak(node);
            },
        );
        Ok(())
    }
}
