//! Fakes at both ends of the wire, and the tests between them.

pub(crate) mod golden;
mod keys;
mod network;
mod nonsense;
mod received;
mod seam;
mod sharing;
mod shelves;
mod slow;
mod stores;
mod strangers;
mod tls;
mod world;

use crate::{
    Address, Answer, Body, Config, Demand, Dial, FromNode, GatewayLink, Input, Listener, NodeLink,
    NodeStatus, QueryFrame, Reason, ToNode, keep, serve_node,
};
use bytes::Bytes as Buffer;
use modelless_decision::Moments;
use modelless_decision::query::Class;
use modelless_decision::route::{Later, Limit, Made, NodeInfo, NodeReport, Step};
use modelless_types::{
    AppId, Bytes, CostPer1k, Micros, ModelId, NodeId, Prefer, PricePerHour, Priority, QueryKey, QueryNumber,
    SpaceId, TaskId, TenantId, Time, VariantId, VariantSet,
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

const NODE: NodeId = NodeId(7);
/// Far longer than anything takes, so that only what never comes fails.
const PATIENCE: Duration = Duration::from_secs(20);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Everything that came, and a way to wait for it.
struct Log<T> {
    seen: Mutex<Vec<T>>,
    more: Notify,
}

impl<T> Default for Log<T> {
    fn default() -> Self {
        Self { seen: Mutex::new(Vec::new()), more: Notify::new() }
    }
}

impl<T: Clone> Log<T> {
    fn push(&self, item: T) {
        lock(&self.seen).push(item);
        self.more.notify_waiters();
    }

    fn all(&self) -> Vec<T> {
        lock(&self.seen).clone()
    }

    /// What `find` finds, once it does.
    async fn wait_for<R>(&self, what: &str, find: impl Fn(&[T]) -> Option<R>) -> R {
        let search = async {
            loop {
                let mut more = std::pin::pin!(self.more.notified());
                more.as_mut().enable();
                if let Some(found) = find(&lock(&self.seen)) {
                    return found;
                }
                more.await;
            }
        };
        timeout(PATIENCE, search).await.unwrap_or_else(|_| panic!("never came: {what}"))
    }

    async fn wait_for_one(&self, what: &str, is: impl Fn(&T) -> bool) -> T {
        self.wait_for(what, |seen| seen.iter().find(|item| is(item)).cloned()).await
    }
}

/// Where the numbers of its queries begin.
const NUMBERS_FROM: QueryNumber = QueryNumber(u64::MAX - 2);

/// A gateway that only listens.
#[derive(Default)]
struct FakeGateway {
    heard: Log<(NodeId, FromNode)>,
}

impl GatewayLink for FakeGateway {
    fn receive(&self, node: NodeId, frame: FromNode) {
        self.heard.push((node, frame));
    }

    fn number_of(&self, key: QueryKey) -> Option<QueryNumber> {
        Some(QueryNumber::of(key, NUMBERS_FROM))
    }
}

impl FakeGateway {
    async fn answer_to(&self, key: u64) -> Answer {
        let is = |body: &Body| {
            let Body::Answer { key: found, answer } = body else { return None };
            (found.0 == key).then(|| (**answer).clone())
        };
        let find = |heard: &[(NodeId, FromNode)]| heard.iter().find_map(|(_, frame)| is(&frame.body));
        self.heard.wait_for("an answer", find).await
    }

    async fn report_with(&self, queries: u32) {
        let is = |(_, frame): &(NodeId, FromNode)| frame.report.limit.queries == queries;
        self.heard.wait_for_one("a report", is).await;
    }
}

/// A node that keeps what it was told, and answers when asked to.
#[derive(Default)]
struct FakeNode {
    told: Log<ToNode>,
}

impl NodeLink for FakeNode {
    fn send(&self, frame: ToNode) {
        self.told.push(frame);
    }
}

impl FakeNode {
    /// The `count`-th query that came.
    async fn query(&self, count: usize) -> QueryFrame {
        let find = |told: &[ToNode]| queries(told).nth(count).cloned();
        self.told.wait_for("a query", find).await
    }
}

fn queries(told: &[ToNode]) -> impl Iterator<Item = &QueryFrame> {
    told.iter().filter_map(|frame| if let ToNode::Query(query) = frame { Some(&**query) } else { None })
}

/// A node with a socket, in front of a [`FakeNode`].
struct Served {
    node: Arc<FakeNode>,
    gateways: Arc<dyn GatewayLink>,
    status: watch::Sender<NodeStatus>,
    address: Address,
    /// How often a gateway's part of the credit was reckoned.
    weighed: Box<dyn Fn() -> usize>,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Served {
    async fn start(address: &Address, config: Config) -> Self {
        let node = Arc::new(FakeNode::default());
        let (status, watched) = watch::channel(status());
        let listener = Listener::bind(address).await.expect("a free address");
        let link = Arc::clone(&node) as Arc<dyn NodeLink>;
        let server = serve_node(listener, link, watched, config);
        let (gateways, address) = (server.link(), server.address().clone());
        let weighed = server.weighed();
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        tasks.spawn(server.run(stop.clone()));
        let served = Self { node, gateways, status, address, weighed, stop, tasks };
        served.say(Body::Report, 8);
        served
    }

    /// Says something with so much credit.
    fn say(&self, body: Body, credit: u32) {
        self.gateways.receive(NODE, FromNode { body, report: report(credit) });
    }

    fn answer(&self, key: QueryKey, body: Buffer, credit: u32) {
        self.say(Body::Answer { key, answer: Box::new(answer(body)) }, credit);
    }

    async fn stop(mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

type Connection = (watch::Receiver<NodeStatus>, Arc<dyn NodeLink>);

/// A [`FakeGateway`] with a kept connection.
struct Kept {
    gateway: Arc<FakeGateway>,
    /// Every connection that stood.
    joined: Arc<Log<(Instant, Connection)>>,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Kept {
    fn start(dial: Dial) -> Self {
        let gateway = Arc::new(FakeGateway::default());
        let joined: Arc<Log<(Instant, Connection)>> = Arc::default();
        let (stop, log) = (CancellationToken::new(), Arc::clone(&joined));
        let note = move |status, link| log.push((Instant::now(), (status, link)));
        let mut tasks = JoinSet::new();
        tasks.spawn(keep(dial, Arc::clone(&gateway) as Arc<dyn GatewayLink>, note, stop.clone()));
        Self { gateway, joined, stop, tasks }
    }

    /// The `count`-th connection, once it stands.
    async fn connection(&self, count: usize) -> Connection {
        self.joined.wait_for("a connection", |joined| joined.get(count).cloned()).await.1
    }

    async fn stop(mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

fn config() -> Config {
    Config::new(|| Time(1_000_000))
}

fn dial(address: &Address) -> Dial {
    Dial {
        address: address.clone(),
        node: Some(NODE),
        name: "gateway".into(),
        queries: true,
        seed: 1,
        config: config(),
    }
}

fn status() -> NodeStatus {
    let info = NodeInfo { id: NODE, rtt: Moments::ZERO, price: PricePerHour(40_000), offers: Vec::new() };
    NodeStatus::idle(info, "node", "cpu:test:1")
}

fn class(task: u32) -> Class {
    Class { task: TaskId(task), admits: [0, 3, 200].into_iter().collect::<VariantSet>() }
}

fn report(queries: u32) -> NodeReport {
    NodeReport {
        limit: Limit { queries, bytes: Bytes(1 << 20) },
        wait: Moments { mean: 1_500.0, var: 2.5 },
        waits: vec![(class(3), Moments { mean: 7.0, var: 0.0 })],
        made: Made { inputs: 41, at: Time(42) },
        later: Later::new(
            [(0, 900), (2_000, 400)].map(|(due, takes)| Step { due: Micros(due), takes: Micros(takes) }),
        ),
    }
}

fn query(key: u64, input: Input) -> QueryFrame {
    QueryFrame {
        key: QueryKey(key),
        tenant: TenantId(1),
        app: AppId(2),
        class: class(3),
        deadline_in: Micros(60_000_000),
        expires_in: Micros(70_000_000),
        spent: Micros(900),
        max_cost: Some(CostPer1k(5)),
        prefer: Prefer::Cost,
        priority: Priority::new(2).expect("a level"),
        best_effort: true,
        returnable: true,
        decoded: Bytes(4_096),
        input,
        demand: Demand { class: class(3), waiting: 2, first: Some(Micros(30_000_000)), among: 1 },
    }
}

fn raw(text: &str) -> Input {
    Input::Raw(Buffer::copy_from_slice(text.as_bytes()))
}

fn answer(body: Buffer) -> Answer {
    Answer {
        body,
        model: ModelId(4),
        variant: VariantId(5),
        space: SpaceId(6),
        batch: 8,
        predicted_run: Micros(1_000),
        cost: CostPer1k(77),
        queued: Micros(1),
        decode: Micros(2),
        prepare: Micros(3),
        run: Micros(4),
        at_node: Micros(10),
        why: Reason::Preferred(Prefer::Latency),
    }
}
