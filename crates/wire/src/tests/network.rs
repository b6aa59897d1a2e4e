//! Nodes and gateways on a network that delays, cuts and falls silent, from 200 seeds, in virtual time.
//!
//! Always: no answer reaches a query that it does not belong to, or one query twice; a connection that stands
//! answers everything; one that does not is told as lost within the stated time; the node forgets what a lost
//! gateway had; and when the network is well again, so is everybody. Faults are injected to see that each of these can fail.

use super::{
    Body, Connection, FakeGateway, FromNode, Log, NODE, answer, config, lock, query, report, status,
};
use crate::sim::{Host, Rng};
use crate::{
    Address, Config, Dial, GatewayLink, Input, Listener, NodeLink, NodeStatus, ToNode, keep, serve_node,
};
use bytes::Bytes as Buffer;
use modelless_types::{NodeId, QueryKey};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

/// What is done wrong on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    Nothing,
    /// The node gives an answer to another query.
    Mixes,
    /// Each answer comes twice.
    Twice,
    /// Now and then an answer is lost on a connection that stands.
    Drops,
    /// The node never hears that a query is cancelled.
    Deaf,
    /// Both sides take far longer than is stated to find the other one gone.
    Patient,
}

/// Hears everything that a gateway does, and answers once more.
struct Twice(Arc<FakeGateway>);

impl GatewayLink for Twice {
    fn receive(&self, node: NodeId, frame: FromNode) {
        self.0.receive(node, frame.clone());
        if matches!(frame.body, Body::Answer { .. }) {
            self.0.receive(node, frame);
        }
    }
}

/// Answers each query with its own input, some time later.
struct Echo {
    fault: Fault,
    gateways: OnceLock<Arc<dyn GatewayLink>>,
    open: Mutex<BTreeSet<QueryKey>>,
    ever: Mutex<BTreeSet<QueryKey>>,
    /// Cancelled, which it did not hear: these it keeps.
    unheard: Mutex<BTreeSet<QueryKey>>,
    work: mpsc::Sender<(QueryKey, Buffer)>,
}

impl NodeLink for Echo {
    fn send(&self, frame: ToNode) {
        match frame {
            ToNode::Query(query) => {
                assert!(lock(&self.ever).insert(query.key), "{} came twice", query.key);
                lock(&self.open).insert(query.key);
                let Input::Raw(input) = query.input else { panic!("raw bytes were sent") };
                self.work.try_send((query.key, input)).expect("the node works");
            }
            ToNode::Cancel { key } if self.fault == Fault::Deaf => {
                lock(&self.unheard).insert(key);
            }
            ToNode::Cancel { key } => {
                lock(&self.open).remove(&key);
            }
            ToNode::Announce(_)
            | ToNode::Demand(_)
            | ToNode::MayReturn { .. }
            | ToNode::Pin { .. }
            | ToNode::Wake { .. }
            | ToNode::Unload { .. } => {}
        }
    }
}

async fn work(node: Arc<Echo>, mut queries: mpsc::Receiver<(QueryKey, Buffer)>, seed: u64) {
    let mut rng = Rng(seed);
    let mut before = Buffer::new();
    while let Some((key, input)) = queries.recv().await {
        sleep(Duration::from_micros(rng.below(3_000))).await;
        let lost = node.fault == Fault::Drops && key.0.is_multiple_of(10);
        let kept = lock(&node.unheard).contains(&key);
        if !kept && lock(&node.open).remove(&key) && !lost {
            let own = std::mem::replace(&mut before, input.clone());
            let input = if node.fault == Fault::Mixes { own } else { input };
            let body = Body::Answer { key, answer: Box::new(answer(input)) };
            let gateways = node.gateways.get().expect("connected");
            gateways.receive(NODE, FromNode { body, report: report(4) });
        }
    }
}

/// A query as the gateway that sent it remembers it.
struct Sent {
    key: u64,
    connection: usize,
    at: Instant,
}

fn input_of(gateway: usize, key: u64) -> Buffer {
    // Some are larger than what a connection holds, so that a cut hits frames half-way.
    let size = if key.is_multiple_of(9) { 100_000 } else { 20 };
    Buffer::from(format!("{gateway}/{key}/{}", "x".repeat(size)))
}

struct Client {
    number: usize,
    gateway: Arc<FakeGateway>,
    joined: Arc<Log<Connection>>,
}

impl Client {
    /// Sends over whichever connection was the last, well or not, and gives what was sent.
    async fn run(&self, mut rng: Rng, enough: CancellationToken) -> Vec<Sent> {
        let mut sent = Vec::new();
        let mut key = 0;
        while !enough.is_cancelled() {
            sleep(Duration::from_micros(rng.below(60_000))).await;
            let joined = self.joined.all();
            let Some((_, link)) = joined.last() else { continue };
            key += 1;
            link.send(ToNode::Query(Box::new(query(key, Input::Raw(input_of(self.number, key))))));
            sent.push(Sent { key, connection: joined.len() - 1, at: Instant::now() });
        }
        sent
    }

    /// Keys that were answered; each once, and with its own answer.
    fn answered(&self) -> BTreeSet<u64> {
        let mut keys = BTreeSet::new();
        for (_, frame) in self.gateway.heard.all() {
            if let Body::Answer { key, answer } = frame.body {
                assert!(keys.insert(key.0), "{key} was answered twice");
                assert!(answer.body == input_of(self.number, key.0), "{key} got another's answer");
            }
        }
        keys
    }
}

/// Notes when each connection ended.
async fn watch_end(mut status: watch::Receiver<NodeStatus>) -> Instant {
    while status.changed().await.is_ok() {}
    Instant::now()
}

async fn one_world(seed: u64, fault: Fault) {
    let mut rng = Rng(seed);
    let delay = Duration::from_micros(50 + rng.below(5_000));
    let host = Host::new(seed, delay);
    let (queue, queries) = mpsc::channel(100_000);
    let node = Arc::new(Echo {
        fault,
        gateways: OnceLock::new(),
        open: Mutex::default(),
        ever: Mutex::default(),
        unheard: Mutex::default(),
        work: queue,
    });
    let (_status, watched) = watch::channel(status());
    let listener = Listener::bind(&Address::Sim(host.clone())).await.expect("a simulated place");
    let missed = if fault == Fault::Patient { 10 * config().missed } else { config().missed };
    let habits = Config { missed, ..config() };
    let server = serve_node(listener, Arc::clone(&node) as Arc<dyn NodeLink>, watched, habits.clone());
    assert!(node.gateways.set(server.link()).is_ok());
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    tasks.spawn(server.run(stop.clone()));
    tasks.spawn(work(Arc::clone(&node), queries, seed));

    let clients: Vec<Arc<Client>> = (0..2)
        .map(|number| {
            let gateway = Arc::new(FakeGateway::default());
            let joined: Arc<Log<Connection>> = Arc::default();
            let log = Arc::clone(&joined);
            let dial = Dial {
                address: Address::Sim(host.clone()),
                node: Some(NODE),
                name: format!("gateway {number}"),
                queries: true,
                seed: seed + number as u64,
                config: habits.clone(),
            };
            let note = move |status, link| log.push((status, link));
            let hears: Arc<dyn GatewayLink> = match fault {
                Fault::Twice => Arc::new(Twice(Arc::clone(&gateway))),
                Fault::Nothing | Fault::Mixes | Fault::Drops | Fault::Deaf | Fault::Patient => {
                    Arc::clone(&gateway) as Arc<dyn GatewayLink>
                }
            };
            tasks.spawn(keep(dial, hears, note, stop.clone()));
            Arc::new(Client { number, gateway, joined })
        })
        .collect();

    let enough = CancellationToken::new();
    let mut running = JoinSet::new();
    for client in &clients {
        let (client, rng, enough) = (Arc::clone(client), Rng(rng.below(u64::MAX)), enough.clone());
        running.spawn(async move {
            let sent = client.run(rng, enough).await;
            (client, sent)
        });
    }
    // For some seconds the network does its worst, then it is well.
    let worst = Instant::now() + Duration::from_secs(6);
    while Instant::now() < worst {
        sleep(Duration::from_millis(rng.below(2_000))).await;
        if rng.below(2) == 0 {
            host.cut();
        } else {
            host.silence(true);
            sleep(Duration::from_millis(rng.below(2_500))).await;
            host.silence(false);
        }
    }
    // Losing the connection before and the longest back-off: so long it may take until all connections stand.
    let settled = Instant::now() + config().lost_within() + config().back_off_most + Duration::from_secs(1);
    sleep_until(settled + Duration::from_secs(1)).await;
    enough.cancel();

    while let Some(done) = running.join_next().await {
        let (client, sent) = done.expect("no panic");
        let joined = client.joined.all();
        let (_, link) = joined.last().expect("it connected");
        let last = u64::MAX >> 30;
        link.send(ToNode::Query(Box::new(query(last, Input::Raw(input_of(client.number, last))))));
        client.gateway.answer_to(last).await;
        // Large ones are overtaken by small ones.
        for query in sent.iter().filter(|query| query.connection == joined.len() - 1) {
            client.gateway.answer_to(query.key).await;
        }
        let answered = client.answered();
        for query in &sent {
            let stands = query.connection == joined.len() - 1;
            assert!(
                answered.contains(&query.key) || !(stands || query.at > settled),
                "seed {seed}: query {} was lost, though its connection stands",
                query.key
            );
        }
        assert!(
            sent.iter().any(|query| query.at > settled),
            "seed {seed}: nothing was sent when all was well"
        );
        for (status, _) in &joined[..joined.len() - 1] {
            timeout(Duration::from_millis(1), watch_end(status.clone()))
                .await
                .expect("an old connection ended");
        }
    }
    assert!(lock(&node.open).is_empty(), "seed {seed}: the node still holds what nobody waits for");

    // The last check of the stated time: silence from here on.
    let ends: Vec<_> = clients
        .iter()
        .map(|client| watch_end(client.joined.all().last().expect("it connected").0.clone()))
        .collect();
    host.silence(true);
    let silent = Instant::now();
    for end in ends {
        let at = timeout(Duration::from_secs(30), end).await.expect("the loss is told");
        assert!(at - silent <= config().lost_within(), "seed {seed}: told after {:?}", at - silent);
    }
    stop.cancel();
    host.silence(false);
    tasks.abort_all();
    while tasks.join_next().await.is_some() {}
}

fn world(seed: u64, fault: Fault) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(one_world(seed, fault));
}

fn worlds(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        world(seed, Fault::Nothing);
    }
}

#[test]
fn faults_that_are_injected_into_a_bad_network_are_noticed() {
    for (fault, told) in [
        (Fault::Mixes, "got another's answer"),
        (Fault::Twice, "was answered twice"),
        (Fault::Drops, "never came: an answer"),
        (Fault::Deaf, "still holds what nobody waits for"),
        (Fault::Patient, "told after"),
    ] {
        let noticed = (0..40).find_map(|seed| std::panic::catch_unwind(|| world(seed, fault)).err());
        let why = noticed.unwrap_or_else(|| panic!("{fault:?} was not noticed"));
        let words = why.downcast_ref::<String>().cloned();
        let words = words.or_else(|| why.downcast_ref::<&str>().map(|words| (*words).to_owned()));
        assert!(
            words.as_ref().is_some_and(|words| words.contains(told)),
            "{fault:?} was taken for {words:?}"
        );
    }
}

/// Two hundred seeds, in four parts that run side by side.
macro_rules! bad_networks {
    ($($name:ident: $seeds:expr,)*) => {$(
        #[test]
        fn $name() {
            worlds($seeds);
        }
    )*};
}

bad_networks! {
    bad_networks_lose_no_answer_that_could_have_come_and_mix_none_up_1: 0..50,
    bad_networks_lose_no_answer_that_could_have_come_and_mix_none_up_2: 50..100,
    bad_networks_lose_no_answer_that_could_have_come_and_mix_none_up_3: 100..150,
    bad_networks_lose_no_answer_that_could_have_come_and_mix_none_up_4: 150..200,
}
