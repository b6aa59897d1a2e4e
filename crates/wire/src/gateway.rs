//! The gateway's side: finds a node, feeds it, notices when it is gone, and finds it again.

use crate::back_off::BackOff;
use crate::codec::{self, Frame, Hello, Role, WantHead};
use crate::config::Config;
use crate::frame::TooLarge;
use crate::key::{Proves, nonce};
use crate::link::Link;
use crate::lost::Lost;
use crate::outcome::key_of;
use crate::peer::{Missed, greeting, half, heartbeat, micros, one_store, out_of_place};
use crate::reader::{Came, Reader};
use crate::rtt::Rtt;
use crate::seam::{Body, Connection, FromNode, GatewayLink, InputFault, NodeLink, ToNode};
use crate::shelf::Giving;
use crate::status::NodeStatus;
use crate::stream::{Address, Stream};
use modelless_decision::route::{Made, NodeReport};
use modelless_types::{Micros, NodeId, QueryKey, QueryNumber};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Numbers connections; the first is no [`Connection::default`].
static CONNECTIONS: AtomicU64 = AtomicU64::new(1);

/// Whom to find, and as what.
#[derive(Clone, Debug)]
pub struct Dial {
    /// Where.
    pub address: Address,
    /// Who must answer there, if that is known: an address can come to belong to another.
    pub node: Option<NodeId>,
    /// Our own name, for people.
    pub name: String,
    /// Whether we send queries and take a share of the node's credit. A scheduler does not.
    pub queries: bool,
    /// Decides the chance in back-off.
    pub seed: u64,
    /// Habits.
    pub config: Config,
}

/// Told of each connection that stands: what the node makes known of itself, which ends when the node is lost, and
/// where to send what it is to do. `add_node` of the gateway is one.
pub trait Joined: Send {
    /// A node is there, for the first time or again.
    fn joined(&mut self, status: watch::Receiver<NodeStatus>, link: Arc<dyn NodeLink>);
}

impl<F: FnMut(watch::Receiver<NodeStatus>, Arc<dyn NodeLink>) + Send> Joined for F {
    fn joined(&mut self, status: watch::Receiver<NodeStatus>, link: Arc<dyn NodeLink>) {
        self(status, link);
    }
}

/// Keeps a connection to a node until `stop`. Each time it stands, `joined` is told and `gateway` hears what the
/// node says; each time it is lost, the status ends, and the node is looked for again after a back-off.
pub async fn keep(
    dial: Dial,
    gateway: Arc<dyn GatewayLink>,
    mut joined: impl Joined,
    stop: CancellationToken,
) {
    let mut back_off = BackOff::new(&dial.config, dial.seed);
    let mut told = false;
    let numbers_from = gateway.number_of(QueryKey(0));
    loop {
        let (lost, alive) = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            greeted = greet(&dial, numbers_from) => match greeted {
                Ok(session) => {
                    let (node, name) = (session.node, session.status.name.clone());
                    tracing::info!(address = %dial.address, %node, name, "a node is there");
                    told = false;
                    session.run(&dial, &gateway, &mut joined, &stop).await
                }
                Err(lost) => (lost, Duration::ZERO),
            },
        };
        if matches!(lost, Lost::Stopped) {
            return;
        }
        if !std::mem::replace(&mut told, true) {
            tracing::warn!(address = %dial.address, why = %lost, "a node is not reached; trying on");
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = sleep(back_off.after(alive)) => {}
        }
    }
}

/// A connection whose node has greeted.
pub(crate) struct Session {
    node: NodeId,
    link: Arc<Link>,
    reader: Reader,
    status: NodeStatus,
    rtt: Rtt,
    heartbeat: Duration,
    missed: Missed,
    giving: Giving,
}

pub(crate) async fn greet(dial: &Dial, numbers_from: Option<QueryNumber>) -> Result<Session, Lost> {
    let within = dial.config.handshake;
    let connect = async {
        let stream = Stream::connect(&dial.address).await.map_err(|error| Lost::Connect(Arc::new(error)))?;
        let over = stream.connect_over(&dial.address, dial.config.connect.as_ref()).await;
        over.map_err(|error| Lost::Tls(Arc::new(error)))
    };
    let link = Link::new(timeout(within, connect).await.map_err(|_| Lost::NoGreeting { within })??);
    let mut reader = Reader::new(Arc::clone(&link), Arc::clone(&dial.config.received));
    let greeting = async {
        tokio::select! {
            biased;
            lost = link.drain() => Err(lost),
            greeted = exchange(dial, numbers_from, &link, &mut reader) => greeted,
        }
    };
    let greeted = timeout(within, greeting).await.unwrap_or(Err(Lost::NoGreeting { within }));
    match greeted {
        Ok(Greeted { node, status, rtt, heartbeat }) => {
            reader.greeted();
            let missed = Missed::new(dial.config.missed, heartbeat);
            let giving = Giving::new(dial.config.shelf.clone());
            Ok(Session { node, link, reader, status, rtt, heartbeat, missed, giving })
        }
        Err(lost) => {
            link.part(&lost).await;
            Err(lost)
        }
    }
}

/// What a greeting tells.
struct Greeted {
    node: NodeId,
    status: NodeStatus,
    rtt: Rtt,
    heartbeat: Duration,
}

async fn exchange(
    dial: &Dial,
    numbers_from: Option<QueryNumber>,
    link: &Link,
    reader: &mut Reader,
) -> Result<Greeted, Lost> {
    let role = if dial.queries { Role::Gateway } else { Role::Scheduler };
    let sent = Instant::now();
    let nonce = dial.config.key.as_ref().map(|_| nonce()).transpose().map_err(Lost::Random)?;
    let ours = Hello::new(&dial.name, role, &dial.config);
    let numbers_from = numbers_from.map(|first| first.0);
    link.say(codec::hello(&Hello { nonce: nonce.clone(), numbers_from, ..ours }));
    let hello = greeting(reader.next().await?.frame, "a node's greeting")?;
    let Role::Node { node } = hello.role else {
        return Err(out_of_place(&Frame::Hello(hello), "a node's greeting"));
    };
    one_store(&hello, &dial.config)?;
    let mut rtt = Rtt::default();
    rtt.observe(micros(sent.elapsed()));
    if let (Some(key), Some(nonce)) = (&dial.config.key, &nonce) {
        let (Some(theirs), Some(proof)) = (&hello.nonce, &hello.proof) else { return Err(Lost::Unproven) };
        if !key.holds(Proves::Connected, nonce, theirs, hello.role, proof) {
            return Err(Lost::Unproven);
        }
        link.say(codec::proof(key.proof(Proves::Connecting, theirs, nonce, role)));
    }
    if let Some(wanted) = dial.node.filter(|wanted| *wanted != node) {
        return Err(Lost::WrongNode { wanted, found: node });
    }
    let frame = reader.next().await?.frame;
    let Frame::Status(head) = frame else { return Err(out_of_place(&frame, "a node's status")) };
    let mut status = head.at((dial.config.now)(), half(rtt.mean()));
    status.info.rtt = rtt.estimate();
    Ok(Greeted { node, status, rtt, heartbeat: heartbeat(&hello, &dial.config) })
}

impl Session {
    #[cfg(test)]
    pub(crate) fn stream(&self) -> &Stream {
        self.link.stream()
    }

    async fn run(
        mut self,
        dial: &Dial,
        gateway: &Arc<dyn GatewayLink>,
        joined: &mut impl Joined,
        stop: &CancellationToken,
    ) -> (Lost, Duration) {
        let (status, watched) = watch::channel(self.status.clone());
        let remote = Arc::new(Remote {
            node: self.node,
            connection: Connection(CONNECTIONS.fetch_add(1, Ordering::Relaxed)),
            link: Arc::clone(&self.link),
            gateway: Arc::downgrade(gateway),
            report: Mutex::default(),
        });
        joined.joined(watched, Arc::clone(&remote) as Arc<dyn NodeLink>);
        let lost = self.serve(dial, gateway, &remote, &status, stop).await;
        drop(status); // the gateway learns of it before the last words are written
        self.link.part(&lost).await;
        (lost, self.missed.alive())
    }

    async fn serve(
        &mut self,
        dial: &Dial,
        gateway: &Arc<dyn GatewayLink>,
        remote: &Remote,
        status: &watch::Sender<NodeStatus>,
        stop: &CancellationToken,
    ) -> Lost {
        let link = Arc::clone(&self.link);
        let mut drain = std::pin::pin!(link.drain());
        let origin = Instant::now();
        let mut beat = interval(self.heartbeat);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return Lost::Stopped,
                lost = &mut drain => return lost,
                _ = beat.tick() => {
                    if let Err(lost) = self.missed.tick(self.reader.heard()) {
                        return lost;
                    }
                    self.ping(origin);
                    let stalled = self.reader.stalled();
                    let mut drops = |came| self.take(came, dial, gateway, remote, status, origin);
                    if let Err(lost) = stalled.and_then(|all| all.into_iter().try_for_each(&mut drops)) {
                        return lost;
                    }
                }
                frame = self.reader.next() => match frame {
                    Ok(came) => {
                        if let Err(lost) = self.take(came, dial, gateway, remote, status, origin) {
                            return lost;
                        }
                    }
                    Err(lost) => return lost,
                },
            }
        }
    }

    fn ping(&self, origin: Instant) {
        self.link.say(codec::ping(micros(origin.elapsed()).0, self.rtt.mean()));
    }

    fn take(
        &mut self,
        came: Came,
        dial: &Dial,
        gateway: &Arc<dyn GatewayLink>,
        remote: &Remote,
        status: &watch::Sender<NodeStatus>,
        origin: Instant,
    ) -> Result<(), Lost> {
        let Came { frame, late, in_parts, dropped, .. } = came;
        match frame {
            Frame::FromNode(mut frame) => {
                if let Some(why) = dropped
                    && let Some(key) = key_of(&frame.body)
                {
                    let refusal = why.refusal(&dial.config.received, late);
                    frame.body = Body::Refused { key, refusal };
                    // What is left of its answer need not come.
                    self.link.say(codec::to_node(&ToNode::Cancel { key }));
                } else if let Body::Refused { key, .. } | Body::HandedBack { key, .. } = frame.body {
                    self.link.stop_query(key); // nobody there waits for what is left of its input
                } else if let Body::Declined { key, .. } = frame.body {
                    self.link.declined(key);
                }
                if in_parts {
                    frame.report = remote.newest(); // others have overtaken what it says
                } else {
                    remote.heard(&frame.report);
                }
                gateway.receive_over(remote.connection, self.node, frame);
            }
            Frame::Status(head) => {
                let mut news = head.at((dial.config.now)(), half(self.rtt.mean()) + late);
                if news.node != self.node {
                    return Err(Lost::WrongNode { wanted: self.node, found: news.node });
                }
                news.info.rtt = self.rtt.estimate();
                status.send_replace(news);
            }
            Frame::Pong { sent } => {
                self.rtt.observe(micros(origin.elapsed()).saturating_sub(Micros(sent)));
                let rtt = self.rtt.estimate();
                status.send_if_modified(|status| std::mem::replace(&mut status.info.rtt, rtt) != rtt);
                if self.rtt.is_new() {
                    self.ping(origin);
                }
            }
            Frame::Beat => {} // its bytes were heard
            Frame::Want(WantHead { id, sha256, offset }) => self.giving.give(&self.link, id, sha256, offset),
            Frame::Goodbye(why) => return Err(Lost::Goodbye(why)),
            other @ (Frame::Hello(_)
            | Frame::Proof(_)
            | Frame::Piece(..)
            | Frame::Ping { .. }
            | Frame::ToNode(_)) => {
                return Err(out_of_place(&other, "something that nodes say"));
            }
        }
        Ok(())
    }
}

/// A node that is reached by a connection.
struct Remote {
    node: NodeId,
    connection: Connection,
    link: Arc<Link>,
    /// Not held: the gateway holds its nodes.
    gateway: Weak<dyn GatewayLink>,
    /// The newest, for what is answered here in the node's place.
    report: Mutex<NodeReport>,
}

impl Remote {
    fn heard(&self, report: &NodeReport) {
        self.report.lock().unwrap_or_else(PoisonError::into_inner).clone_from(report);
    }

    fn newest(&self) -> NodeReport {
        self.report.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The frame never leaves, and whoever waits for its answer hears why.
    fn refuse(&self, key: QueryKey, error: TooLarge) {
        let Some(gateway) = self.gateway.upgrade() else { return };
        let mut report = self.newest();
        // The node has done nothing for it.
        report.made = Made { inputs: report.made.inputs.saturating_sub(1), ..report.made };
        let why = error.to_string();
        let body = Body::BadInput { key, fault: InputFault::TooLarge, why };
        gateway.receive_over(self.connection, self.node, FromNode { body, report });
    }
}

impl NodeLink for Remote {
    fn connection(&self) -> Connection {
        self.connection
    }

    fn send(&self, frame: ToNode) {
        match (codec::to_node(&frame), frame) {
            (Ok(encoded), ToNode::Query(query)) if encoded.is_cut() => {
                // Others will overtake it, so what it says of those that wait is said at once.
                self.link.say(codec::to_node(&ToNode::Demand(query.demand)));
                self.link.send(encoded);
            }
            (Ok(encoded), ToNode::Cancel { key }) => self.link.cancel_query(key, encoded),
            (Ok(encoded), ToNode::MayReturn { key }) => self.link.send_behind(key, encoded),
            (Ok(encoded), _) => self.link.send(encoded),
            (Err(error), ToNode::Query(query)) => self.refuse(query.key, error),
            (
                Err(error),
                ToNode::Announce(_)
                | ToNode::Demand(_)
                | ToNode::Cancel { .. }
                | ToNode::MayReturn { .. }
                | ToNode::Pin { .. }
                | ToNode::Wake { .. }
                | ToNode::Unload { .. },
            ) => {
                tracing::error!(node = %self.node, %error, "a frame was not sent");
            }
        }
    }
}
