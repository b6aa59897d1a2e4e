//! The node's side: several gateways over one socket, in front of one [`NodeLink`].
//!
//! Each gateway names its queries itself, so two may use one name: to the node a query is called after its connection
//! and its name there. Credit is divided among the gateways by what they ask for, what waits at them is added up,
//! and a gateway that is lost takes its queries with it.

mod announcing;
mod demand;
mod fetch;
mod greeting;

pub use fetch::{Fetcher, Source};

use crate::codec::{self, Frame, Role};
use crate::config::{Config, limits};
use crate::link::Link;
use crate::lost::{Lost, Nonsense};
use crate::outcome::{instead, renamed, unstarted};
use crate::peer::{Missed, half, heartbeat, in_role, micros, out_of_place};
use crate::peers::{CONNECTIONS, Peer, PeerState, Strangers, qualified, unqualified};
use crate::reader::{Came, Dropped, Reader};
use crate::scale::Scale;
use crate::seam::{Body, FromNode, GatewayLink, NodeLink, QueryFrame, ToNode};
use crate::shelf::Wants;
use crate::status::NodeStatus;
use crate::stream::{Listener, Stream};
use modelless_decision::route::{NodeReport, SHARE_BEAT, share};
use modelless_types::{Bytes, Micros, NodeId, QueryKey, QueryNumber, Refusal, Time};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// After a failed `accept` (no descriptors left), which would fail again at once.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// A node's socket, not served yet.
pub struct NodeServer {
    hub: Arc<Hub>,
    listener: Listener,
    status: watch::Receiver<NodeStatus>,
}

/// A node behind a socket. What the node says goes into [`NodeServer::link`]; [`NodeServer::run`] serves.
pub fn serve_node(
    listener: Listener,
    node: Arc<dyn NodeLink>,
    status: watch::Receiver<NodeStatus>,
    config: Config,
) -> NodeServer {
    let hub = Hub {
        node,
        config,
        peers: RwLock::default(),
        scale: Scale::default(),
        report: Mutex::default(),
        news: Notify::new(),
        wants: Wants::default(),
        strangers: Mutex::default(),
        began: Instant::now(),
    };
    NodeServer { hub: Arc::new(hub), listener, status }
}

impl NodeServer {
    /// Where the node sends what gateways are to know.
    pub fn link(&self) -> Arc<dyn GatewayLink> {
        Arc::clone(&self.hub) as Arc<dyn GatewayLink>
    }

    /// Fetches artefacts from the gateways that connect.
    pub fn fetcher(&self) -> Fetcher {
        Fetcher { hub: Arc::clone(&self.hub) }
    }

    /// Where it listens.
    pub fn address(&self) -> &crate::stream::Address {
        self.listener.address()
    }

    /// How often a gateway was weighed.
    #[cfg(test)]
    pub(crate) fn weighed(&self) -> Box<dyn Fn() -> usize> {
        let hub = Arc::clone(&self.hub);
        Box::new(move || hub.scale.weighed.load(Ordering::Relaxed))
    }

    /// Serves until `stop`. What was said before is still written, for as long as `last_words` says.
    pub async fn run(self, stop: CancellationToken) {
        let Self { hub, listener, status } = self;
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::clone(&hub).spread(stop.clone()));
        let mut next = 0_u32;
        loop {
            let accepted = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(_) = tasks.join_next() => continue,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                // Those that were told to go may still say why.
                Ok((_, from)) if tasks.len() > limits::PEERS + 2 * limits::STRANGERS => {
                    tracing::warn!(from, "turned away: too many connections");
                }
                Ok((stream, from)) => {
                    next = hub.free_number(next);
                    let peer = Arc::clone(&hub).serve(next, stream, from, status.clone(), stop.clone());
                    tasks.spawn(peer);
                }
                Err(error) => {
                    tracing::warn!(%error, "a gateway could not be let in; trying on");
                    sleep(ACCEPT_AGAIN).await;
                }
            }
        }
        drop(listener);
        while tasks.join_next().await.is_some() {}
    }
}

struct Hub {
    node: Arc<dyn NodeLink>,
    config: Config,
    peers: RwLock<BTreeMap<u32, Arc<Peer>>>,
    scale: Scale,
    /// The newest, for all of the node's credit, with its number.
    report: Mutex<(u64, NodeReport)>,
    /// Not every gateway was told the newest report.
    news: Notify,
    wants: Wants,
    strangers: Mutex<Strangers>,
    /// Moments count from here.
    began: Instant,
}

impl Hub {
    fn now(&self) -> Time {
        Time::ZERO + micros(self.began.elapsed())
    }

    fn strangers(&self) -> MutexGuard<'_, Strangers> {
        self.strangers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn peers(&self) -> Vec<Arc<Peer>> {
        self.peers.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    fn free_number(&self, last: u32) -> u32 {
        let peers = self.peers.read().unwrap_or_else(PoisonError::into_inner);
        let mut next = last;
        loop {
            next = (next + 1) % CONNECTIONS;
            if next != 0 && !peers.contains_key(&next) {
                return next;
            }
        }
    }

    /// Weighs everybody anew, and gives those that ask for something with their weights.
    fn asking(&self) -> BTreeMap<u32, u64> {
        let (peers, now) = (self.peers.read().unwrap_or_else(PoisonError::into_inner), self.now());
        let weigh = |peer: &Arc<Peer>| Some((peer.number, self.scale.weigh(&mut peer.state(), now).0?));
        peers.values().filter_map(weigh).collect()
    }

    /// The newest report with what a gateway gets of the credit, and its number. One that has asked for nothing lately is
    /// told what it would get if it did.
    fn shared_report(&self, peer: &Peer) -> (u64, NodeReport) {
        let (own, all) = self.scale.weigh(&mut peer.state(), self.now());
        let (number, mut report) = self.report.lock().unwrap_or_else(PoisonError::into_inner).clone();
        report.limit = share(report.limit, own, all);
        (number, report)
    }

    fn tell(&self, peer: &Peer, body: Body) {
        // One after the other, or what was true earlier could be told later and stay.
        let _turn = peer.telling.lock().unwrap_or_else(PoisonError::into_inner);
        let (number, report) = self.shared_report(peer);
        let frame = FromNode { body, report };
        let is_answer = matches!(frame.body, Body::Answer { .. });
        match codec::from_node(&frame) {
            Ok(encoded) if is_answer && !peer.link.has_room_for_answer(encoded.len()) => {
                let limit = Bytes(limits::QUEUE_ANSWERS as u64);
                peer.link.say(instead(frame, Refusal::BytesFull { limit }));
            }
            Ok(encoded) => {
                if encoded.is_cut() {
                    // Others will overtake it, so its report goes at once.
                    peer.link.say(codec::from_node(&FromNode { body: Body::Report, report: frame.report }));
                }
                peer.link.send(encoded);
            }
            Err(error) => {
                let why = error.to_string();
                peer.link.say(instead(frame, Refusal::ModelError { why }));
            }
        }
        peer.told.fetch_max(number, Ordering::AcqRel);
    }

    /// Tells gateways what others heard with their answers, a little later and together; and all of them when others
    /// share the credit than before.
    async fn spread(self: Arc<Self>, stop: CancellationToken) {
        let mut look = interval(Duration::from_micros(SHARE_BEAT.0));
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut shared = BTreeMap::new();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = async { self.news.notified().await; sleep(self.config.report_within).await } => {}
                _ = look.tick() => {
                    for peer in self.peers() {
                        peer.state().beat();
                    }
                    self.forget_old_demand();
                },
            }
            let asking = self.asking();
            if std::mem::replace(&mut shared, asking.clone()) != asking {
                self.reshare();
                continue;
            }
            let newest = self.report.lock().unwrap_or_else(PoisonError::into_inner).0;
            for peer in self.peers() {
                if peer.told.load(Ordering::Acquire) < newest {
                    self.tell(&peer, Body::Report);
                }
            }
        }
    }

    async fn serve(
        self: Arc<Self>,
        number: u32,
        stream: Stream,
        from: String,
        status: watch::Receiver<NodeStatus>,
        stop: CancellationToken,
    ) {
        let crowded = self.strangers().comes(number);
        let must_go = || async {
            tokio::select! {
                () = crowded.cancelled() => Lost::Crowded { limit: limits::STRANGERS },
                () = stop.cancelled() => Lost::Stopped,
            }
        };
        let opened = tokio::select! {
            biased;
            opened = self.open(stream) => opened,
            lost = must_go() => Err(lost),
        };
        let link = match opened {
            Ok(stream) => Link::new(stream),
            Err(lost) => {
                self.strangers().goes(number);
                return tracing::warn!(from, why = %lost, "a gateway was not let in");
            }
        };
        let mut reader = Reader::new(Arc::clone(&link), Arc::clone(&self.config.received));
        let greeted = tokio::select! {
            biased;
            greeted = self.greet(number, &link, &mut reader, &status) => greeted,
            lost = must_go() => Err(lost),
        };
        self.strangers().goes(number);
        let (lost, what) = match greeted {
            Ok((peer, name)) => {
                tracing::info!(from, name, "a gateway is there");
                let lost = self.session(&peer, &mut reader, status, &stop).await;
                self.forget(&peer);
                (lost, "a gateway is gone")
            }
            Err(lost) => (lost, "a gateway was not let in"),
        };
        if !matches!(lost, Lost::Stopped) && !stop.is_cancelled() {
            tracing::warn!(from, why = %lost, "{what}");
        }
        link.part(&lost).await;
    }

    async fn open(&self, stream: Stream) -> Result<Stream, Lost> {
        let within = self.config.handshake;
        let opened = timeout(within, stream.accept_over(self.config.accept.as_ref())).await;
        opened.map_err(|_| Lost::NoGreeting { within })?.map_err(|error| Lost::Tls(Arc::new(error)))
    }

    async fn greet(
        &self,
        number: u32,
        link: &Arc<Link>,
        reader: &mut Reader,
        status: &watch::Receiver<NodeStatus>,
    ) -> Result<(Arc<Peer>, String), Lost> {
        let within = self.config.handshake;
        let greeted = timeout(within, self.exchange(link, reader, status));
        let hello = greeted.await.map_err(|_| Lost::NoGreeting { within })??;
        if let (Some(accept), Some(names)) = (&self.config.accept, link.stream().names()) {
            accept.allows(hello.role, &names)?;
        }
        reader.greeted();
        let queries = match hello.role {
            Role::Gateway => true,
            Role::Scheduler => false,
            Role::Node { .. } => return Err(out_of_place(&Frame::Hello(hello), "a gateway's greeting")),
        };
        let told = codec::status(&status.borrow(), (self.config.now)())?;
        let peer = Arc::new(Peer {
            number,
            name: hello.name.clone(),
            queries,
            numbers_from: hello.numbers_from.map(QueryNumber),
            heartbeat: heartbeat(&hello, &self.config),
            link: Arc::clone(link),
            state: Mutex::new(PeerState::new(queries)),
            told: AtomicU64::new(0),
            telling: Mutex::default(),
        });
        {
            let mut peers = self.peers.write().unwrap_or_else(PoisonError::into_inner);
            if peers.len() >= limits::PEERS {
                return Err(Lost::TooManyPeers { limit: limits::PEERS });
            }
            // Before the peer is known to others, so that nothing comes before it.
            link.send(told);
            peers.insert(number, Arc::clone(&peer));
        }
        // Everybody's share changed.
        self.reshare();
        Ok((peer, hello.name))
    }

    fn reshare(&self) {
        if self.report.lock().unwrap_or_else(PoisonError::into_inner).0 > 0 {
            for peer in self.peers() {
                self.tell(&peer, Body::Report);
            }
        }
    }

    async fn session(
        &self,
        peer: &Peer,
        reader: &mut Reader,
        mut status: watch::Receiver<NodeStatus>,
        stop: &CancellationToken,
    ) -> Lost {
        let mut drain = std::pin::pin!(peer.link.drain());
        let mut ended = std::pin::pin!(peer.link.leave(stop, self.config.last_words));
        let mut missed = Missed::new(self.config.missed, peer.heartbeat);
        let mut beat = interval(peer.heartbeat);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut rtt = Micros::ZERO;
        loop {
            tokio::select! {
                biased;
                () = &mut ended => return Lost::Stopped,
                lost = &mut drain => return lost,
                _ = beat.tick() => {
                    if let Err(lost) = missed.tick(reader.heard()) {
                        return lost;
                    }
                    // By itself and not as an answer: the way here may be full of a large input for long.
                    peer.link.say(codec::beat());
                    let mut drops = |came| self.take(peer, came, &mut rtt);
                    if let Err(lost) = reader.stalled().and_then(|all| all.into_iter().try_for_each(&mut drops)) {
                        return lost;
                    }
                }
                changed = status.changed() => {
                    if changed.is_err() {
                        return Lost::Stopped;
                    }
                    let told = codec::status(&status.borrow_and_update(), (self.config.now)());
                    match told {
                        Ok(told) => peer.link.send(told),
                        Err(error) => return error.into(), // nothing that is known of it would be true any longer
                    }
                }
                frame = reader.next() => match frame {
                    Ok(came) => if let Err(lost) = self.take(peer, came, &mut rtt) {
                        return lost;
                    },
                    Err(lost) => return lost,
                },
            }
        }
    }

    fn take(&self, peer: &Peer, came: Came, rtt: &mut Micros) -> Result<(), Lost> {
        let Came { frame, late, in_parts, dropped, .. } = came;
        in_role(&frame, peer.queries)?;
        match frame {
            Frame::ToNode(ToNode::Query(query)) if let Some(why) = dropped => {
                // The node never hears of it.
                let refusal = why.refusal(&self.config.received, late);
                let body = match why {
                    Dropped::NoRoom => unstarted(&query, refusal),
                    // What keeps it from getting on is on its gateway's side, or its time is over.
                    Dropped::Stalled => Body::Refused { key: query.key, refusal },
                };
                if peer.state().withdrawn(query.key) {
                    self.node.send(ToNode::Cancel { key: qualified(peer.number, query.key) });
                }
                self.tell(peer, body);
                Ok(())
            }
            Frame::Ping { sent, rtt: known } => {
                *rtt = known;
                peer.link.say(codec::pong(sent));
                Ok(())
            }
            Frame::Goodbye(why) => Err(Lost::Goodbye(why)),
            Frame::Piece(id, piece) => {
                self.wants.came(peer.number, id, piece);
                Ok(())
            }
            Frame::ToNode(frame) => self.pass_on(peer, frame, late, *rtt, in_parts).map_err(Lost::from),
            other @ (Frame::Hello(_)
            | Frame::Proof(_)
            | Frame::Want(_)
            | Frame::Status(_)
            | Frame::Pong { .. }
            | Frame::Beat
            | Frame::FromNode(_)) => Err(out_of_place(&other, "something that gateways say")),
        }
    }

    fn pass_on(
        &self,
        peer: &Peer,
        frame: ToNode,
        late: Micros,
        rtt: Micros,
        in_parts: bool,
    ) -> Result<(), Nonsense> {
        let way = half(rtt);
        let frame = match frame {
            ToNode::Query(query) => {
                let QueryFrame { key, deadline_in, expires_in, spent, demand, .. } = *query;
                let Some(first) = self.opens(peer, key)? else {
                    // It was taken back and sent again, by two threads of its gateway, and the second was quicker: that it was
                    // taken back is still to come, and will end the one that is here.
                    let why = "this node still has an earlier sending of this query".to_owned();
                    self.tell(peer, unstarted(&query, Refusal::NothingRunnable { why }));
                    return Ok(());
                };
                if first {
                    self.news.notify_one(); // one more shares the credit
                }
                // What the way here took is gone already, and the way back must be left.
                let (gone, needed) = (late + way, late + way + way);
                ToNode::Query(Box::new(QueryFrame {
                    key: qualified(peer.number, key),
                    deadline_in: deadline_in.saturating_sub(needed),
                    expires_in: expires_in.saturating_sub(needed),
                    spent: spent + gone,
                    // One that came in parts was overtaken by others, which say the same anew.
                    demand: if in_parts {
                        self.demand_of(demand.class).0
                    } else {
                        self.demand(peer, demand, gone)?
                    },
                    ..*query
                }))
            }
            ToNode::Announce(told) => match Self::announced(peer, *told, (late, way))? {
                Some(told) => ToNode::Announce(Box::new(told)),
                None => return Ok(()),
            },
            ToNode::Demand(demand) => ToNode::Demand(self.demand(peer, demand, late + way)?),
            ToNode::Cancel { key } => {
                let here = {
                    let mut state = peer.state();
                    state.withdrawn(key) || state.open.remove(&key.0)
                };
                if !here {
                    peer.link.take_back_answer(key); // its answer is on the way
                    return Ok(());
                }
                ToNode::Cancel { key: qualified(peer.number, key) }
            }
            ToNode::MayReturn { key } => {
                if !peer.state().open.contains(&key.0) {
                    return Ok(()); // it has been answered
                }
                ToNode::MayReturn { key: qualified(peer.number, key) }
            }
            ToNode::Pin { .. } | ToNode::Wake { .. } | ToNode::Unload { .. } => frame,
        };
        self.node.send(frame);
        Ok(())
    }

    /// Whether a query is its gateway's first in a while; `None` if there is one of its name.
    fn opens(&self, peer: &Peer, key: QueryKey) -> Result<Option<bool>, Nonsense> {
        let (mut state, now) = (peer.state(), self.now());
        let first = state.opens(key, now)?;
        self.scale.weigh(&mut state, now);
        Ok(first)
    }

    /// A gateway is gone: nobody waits for its queries, nothing waits there, and the others share what it had.
    fn forget(&self, peer: &Peer) {
        self.peers.write().unwrap_or_else(PoisonError::into_inner).remove(&peer.number);
        self.wants.lost(peer.number);
        let (open, demand) = {
            let mut state = peer.state();
            let left = state.leaves();
            self.scale.weigh(&mut state, self.now());
            left
        };
        for key in open {
            self.node.send(ToNode::Cancel { key: qualified(peer.number, QueryKey(key)) });
        }
        for class in demand.into_keys() {
            self.node.send(ToNode::Demand(self.demand_of(class).0));
        }
        self.reshare();
    }
}

impl GatewayLink for Hub {
    fn receive(&self, _: NodeId, frame: FromNode) {
        let FromNode { body, report } = frame;
        {
            let mut known = self.report.lock().unwrap_or_else(PoisonError::into_inner);
            // Made one after the other, but told by several threads: what was overtaken is not the newest.
            let made = if report.made.at < known.1.made.at { known.1.clone() } else { report };
            *known = (known.0 + 1, made);
        }
        let (key, announced) = match body {
            Body::Claim { queries, lanes } => return self.claim(queries, lanes),
            Body::Report => {
                for peer in self.peers() {
                    self.tell(&peer, Body::Report);
                }
                return;
            }
            Body::Declined { key, .. } => (key, true),
            Body::Answer { key, .. }
            | Body::Refused { key, .. }
            | Body::BadInput { key, .. }
            | Body::HandedBack { key, .. } => (key, false),
        };
        let (number, key) = unqualified(key);
        let (peer, others) = {
            let peers = self.peers.read().unwrap_or_else(PoisonError::into_inner);
            let peer = peers.get(&number).cloned();
            let others = peers.len() > usize::from(peer.is_some());
            (peer, others)
        };
        // One that is gone or has cancelled waits for nothing. What was announced and has been sent since is no longer to be declined.
        if let Some(peer) = peer {
            let waits = {
                let mut state = peer.state();
                if announced { state.withdrawn(key) } else { state.open.remove(&key.0) }
            };
            if waits {
                self.tell(&peer, renamed(body, key));
            }
        }
        if others {
            self.news.notify_one();
        }
    }

    fn number_of(&self, key: QueryKey) -> Option<QueryNumber> {
        let (connection, key) = unqualified(key);
        let peers = self.peers.read().unwrap_or_else(PoisonError::into_inner);
        Some(QueryNumber::of(key, peers.get(&connection)?.numbers_from?))
    }
}
