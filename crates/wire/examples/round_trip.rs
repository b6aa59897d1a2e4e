//! What a connection adds to a query: its round trip over TCP and a Unix socket beside a plain call.
//!
//! `cargo run --release -p modelless-wire --example round_trip`. The node answers inside the call that brings the
//! query, so all that is measured is the way; over sockets it is another process. One query is open at a time;
//! loopback only, and whatever else the host does is in the figures.
#![expect(clippy::print_stdout, reason = "it prints what it measured")]

use bytes::Bytes as Buffer;
use modelless_decision::Moments;
use modelless_decision::query::Class;
use modelless_decision::route::{NodeInfo, NodeReport};
use modelless_types::{
    AppId, Bytes, CostPer1k, Micros, ModelId, NodeId, Prefer, PricePerHour, Priority, QueryKey, SpaceId,
    TaskId, TenantId, Time, VariantId, VariantSet,
};
use modelless_wire::{
    Address, Answer, Body, Config, Demand, Dial, FromNode, GatewayLink, Input, Listener, NodeLink,
    NodeStatus, QueryFrame, Reason, ToNode, keep, serve_node,
};
use std::io::Read as _;
use std::process::Stdio;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const NODE: NodeId = NodeId(1);

/// Answers at once.
#[derive(Default)]
struct Echo(OnceLock<Arc<dyn GatewayLink>>);

impl NodeLink for Echo {
    fn send(&self, frame: ToNode) {
        let (ToNode::Query(query), Some(gateway)) = (frame, self.0.get()) else { return };
        let zero = Micros::ZERO;
        let answer = Answer {
            body: Buffer::from_static(b"[{\"label\":\"shirt\",\"score\":0.93}]"),
            model: ModelId(1),
            variant: VariantId(1),
            space: SpaceId(1),
            batch: 1,
            predicted_run: zero,
            cost: CostPer1k(1),
            queued: zero,
            decode: zero,
            prepare: zero,
            run: zero,
            at_node: zero,
            why: Reason::Only,
        };
        let body = Body::Answer { key: query.key, answer: Box::new(answer) };
        gateway.receive(NODE, FromNode { body, report: NodeReport::default() });
    }
}

/// Wakes whoever waits for the answer, as the real one does.
#[derive(Default)]
struct Gateway(Mutex<Option<oneshot::Sender<QueryKey>>>);

impl GatewayLink for Gateway {
    fn receive(&self, _: NodeId, frame: FromNode) {
        if let Body::Answer { key, .. } = frame.body
            && let Some(waits) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
        {
            let _ = waits.send(key);
        }
    }
}

fn query(key: u64, input: Buffer) -> ToNode {
    let class = Class { task: TaskId(1), admits: VariantSet::from_words([1, 0, 0, 0]) };
    ToNode::Query(Box::new(QueryFrame {
        key: QueryKey(key),
        tenant: TenantId::DEFAULT,
        app: AppId::DEFAULT,
        class,
        deadline_in: Micros::from_secs(1),
        expires_in: Micros::from_secs(1),
        spent: Micros::ZERO,
        max_cost: None,
        prefer: Prefer::Accuracy,
        priority: Priority::default(),
        best_effort: false,
        returnable: false,
        decoded: Bytes(784),
        input: Input::Raw(input),
        demand: Demand { class, waiting: 0, first: None, among: 1 },
    }))
}

async fn measure(name: &str, gateway: &Gateway, link: &dyn NodeLink) {
    for (size, rounds) in [(500, 20_000), (150_000, 2_000)] {
        let input = Buffer::from(vec![7; size]);
        let mut took = Vec::with_capacity(rounds);
        for round in 0..rounds + rounds / 10 {
            let (waits, answer) = oneshot::channel();
            *gateway.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(waits);
            let began = Instant::now();
            link.send(query(round as u64 + 1, input.clone()));
            answer.await.expect("an answer");
            if round >= rounds / 10 {
                took.push(began.elapsed());
            }
        }
        took.sort();
        let at = |permille: usize| took[took.len() * permille / 1_000].as_secs_f64() * 1e6;
        println!("{name:>5} {size:>7} B in: median {:8.1} us, p99 {:8.1} us", at(500), at(990));
    }
}

fn config() -> Config {
    Config::new(|| Time(0))
}

/// A node that echoes, until its input ends. Tells its address in its first line.
async fn node(address: &str) {
    let echo = Arc::new(Echo::default());
    let info = NodeInfo { id: NODE, rtt: Moments::ZERO, price: PricePerHour(1), offers: Vec::new() };
    let status = NodeStatus::idle(info, "echo", "none");
    let (_status, watched) = watch::channel(status);
    let address = address.parse().expect("an address");
    let listener = Listener::bind(&address).await.expect("a free address");
    let server = serve_node(listener, Arc::clone(&echo) as Arc<dyn NodeLink>, watched, config());
    assert!(echo.0.set(server.link()).is_ok());
    println!("{}", server.address());
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    tasks.spawn(server.run(stop.clone()));
    let input = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
    let _ = input.await;
    stop.cancel();
    tasks.join_next().await;
}

/// Measures a node in another process.
async fn over(name: &str, address: &str) {
    let this = std::env::current_exe().expect("this program");
    let mut child = Command::new(this)
        .args(["node", address])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("another process");
    let mut line = String::new();
    let out = child.stdout.take().expect("it is piped");
    BufReader::new(out).read_line(&mut line).await.expect("an address");
    let address: Address = line.trim().parse().expect("an address");

    let gateway = Arc::new(Gateway::default());
    let (joined, mut connections) = mpsc::channel(1);
    let config = config();
    let dial = Dial { address, node: Some(NODE), name: "bench".into(), queries: true, seed: 1, config };
    let note = move |status, link| {
        let _ = joined.try_send((status, link));
    };
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    tasks.spawn(keep(dial, Arc::clone(&gateway) as Arc<dyn GatewayLink>, note, stop.clone()));
    let (mut watched, link): (watch::Receiver<NodeStatus>, Arc<dyn NodeLink>) =
        connections.recv().await.expect("a connection");
    measure(name, &gateway, &*link).await;
    let rtt = watched.borrow_and_update().info.rtt;
    println!("{name:>5} by heartbeats: mean {:.0} us, deviation {:.0} us", rtt.mean, rtt.var.sqrt());
    stop.cancel();
    tasks.join_next().await;
    drop(child.stdin.take());
    child.wait().await.expect("it ends");
}

#[tokio::main]
async fn main() {
    let mut args = std::env::args().skip(1);
    if let (Some("node"), Some(address)) = (args.next().as_deref(), args.next()) {
        return node(&address).await;
    }
    // On a worker of the runtime, as the real ones are.
    let run = async {
        let (node, gateway) = (Arc::new(Echo::default()), Arc::new(Gateway::default()));
        assert!(node.0.set(Arc::clone(&gateway) as Arc<dyn GatewayLink>).is_ok());
        measure("call", &gateway, &*node).await;
        over("tcp", "127.0.0.1:0").await;
        let socket = std::env::temp_dir().join(format!("modelless-round-trip-{}.sock", std::process::id()));
        over("unix", &format!("unix:{}", socket.display())).await;
        let _ = std::fs::remove_file(socket);
    };
    let mut tasks = JoinSet::new();
    tasks.spawn(run);
    tasks.join_next().await.expect("one task").expect("no panic");
}
