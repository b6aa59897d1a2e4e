//! What the seam promises, on every transport: a plain call, TCP, TLS, a Unix socket, the simulated network.

use super::{
    Body, FakeGateway, FakeNode, FromNode, GatewayLink, Input, Kept, Log, NODE, NodeLink, NodeStatus, Served,
    ToNode, answer, class, config, dial, lock, query, raw, report, status,
};
use crate::sim::Host;
use crate::{Address, Demand, Dial, InputFault};
use bytes::Bytes as Buffer;
use modelless_types::{Accuracy, Bytes, CostPer1k, Micros, Nearest, QueryKey, Refusal, TaskId, VariantId};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;

/// A node and a gateway that can speak to each other.
struct Rig {
    to_node: Arc<dyn NodeLink>,
    node: Arc<FakeNode>,
    to_gateway: Arc<dyn GatewayLink>,
    gateway: Arc<FakeGateway>,
    publish: watch::Sender<NodeStatus>,
    watched: watch::Receiver<NodeStatus>,
    ends: Option<(Served, Kept)>,
    _folder: Option<tempfile::TempDir>,
}

const TRANSPORTS: [&str; 5] = ["call", "tcp", "tls", "unix", "sim"];

impl Rig {
    async fn new(transport: &str) -> Self {
        let mut folder = None;
        let address = match transport {
            "call" => {
                let (node, gateway) = (Arc::new(FakeNode::default()), Arc::new(FakeGateway::default()));
                let (publish, watched) = watch::channel(status());
                return Self {
                    to_node: Arc::clone(&node) as Arc<dyn NodeLink>,
                    node,
                    to_gateway: Arc::clone(&gateway) as Arc<dyn GatewayLink>,
                    gateway,
                    publish,
                    watched,
                    ends: None,
                    _folder: None,
                };
            }
            "tcp" | "tls" => Address::Tcp("127.0.0.1:0".into()),
            "unix" => {
                let made = tempfile::tempdir().expect("a folder");
                let path = made.path().join("node.sock");
                folder = Some(made);
                Address::Unix(path)
            }
            _ => Address::Sim(Host::new(1, Duration::from_micros(200))),
        };
        let config = if transport == "tls" { super::tls::encrypted() } else { config() };
        let served = Served::start(&address, config.clone()).await;
        let kept = Kept::start(Dial { config, ..dial(&served.address) });
        let (watched, to_node) = kept.connection(0).await;
        Self {
            to_node,
            node: Arc::clone(&served.node),
            to_gateway: Arc::clone(&served.gateways),
            gateway: Arc::clone(&kept.gateway),
            publish: served.status.clone(),
            watched,
            ends: Some((served, kept)),
            _folder: folder,
        }
    }

    /// Sends a query and gives the name that the node knows it by.
    async fn ask(&self, key: u64, input: Input) -> QueryKey {
        let before = super::queries(&self.node.told.all()).count();
        self.to_node.send(ToNode::Query(Box::new(query(key, input))));
        self.node.query(before).await.key
    }

    fn say(&self, body: Body) {
        self.to_gateway.receive(NODE, FromNode { body, report: report(8) });
    }

    async fn end(self) {
        if let Some((served, kept)) = self.ends {
            kept.stop().await;
            served.stop().await;
        }
    }
}

#[tokio::test]
async fn a_query_arrives_whole() {
    for transport in TRANSPORTS {
        let rig = Rig::new(transport).await;
        let json = |parameters: Option<&'static str>| Input::Json {
            inputs: Buffer::from_static(b"\"a text\""),
            parameters: parameters.map(|text| Buffer::from_static(text.as_bytes())),
        };
        let inputs = [raw("bytes"), raw(""), json(None), json(Some("{\"top_k\":2}")), json(Some(""))];
        for (at, input) in inputs.into_iter().enumerate() {
            let sent = query(at as u64 + 1, input);
            rig.to_node.send(ToNode::Query(Box::new(sent.clone())));
            let came = rig.node.query(at).await;
            assert_eq!(came.input, sent.input, "{transport}");
            assert_eq!((came.tenant, came.app, came.class), (sent.tenant, sent.app, sent.class));
            assert_eq!(
                (came.max_cost, came.prefer, came.priority),
                (sent.max_cost, sent.prefer, sent.priority)
            );
            assert_eq!((came.best_effort, came.decoded), (sent.best_effort, sent.decoded));
            assert_eq!((came.demand.class, came.demand.waiting), (sent.demand.class, sent.demand.waiting));
            // Time goes by on the way: what is left is never more, and what is spent never less.
            let slack = Micros(10_000_000);
            assert!(came.deadline_in <= sent.deadline_in && came.deadline_in + slack > sent.deadline_in);
            assert!(came.expires_in <= sent.expires_in && came.expires_in + slack > sent.expires_in);
            assert!(came.spent >= sent.spent && came.spent < sent.spent + slack, "{transport}");
        }
        rig.end().await;
    }
}

#[tokio::test]
async fn a_node_knows_what_its_gateway_calls_a_query_in_front_of_others() {
    for transport in TRANSPORTS {
        let rig = Rig::new(transport).await;
        let key = rig.ask(7, raw("x")).await;
        let number = rig.to_gateway.number_of(key).expect("its gateway is there");
        assert_eq!(Some(number), rig.gateway.number_of(QueryKey(7)), "{transport}");
        assert_eq!(number.to_string(), "0000000000000004", "they begin anew after the last");
        if transport != "call" {
            assert_eq!(rig.to_gateway.number_of(QueryKey(99 << 40 | 7)), None, "{transport}: nobody's");
        }
        rig.end().await;
    }
}

#[tokio::test]
async fn every_outcome_comes_back_under_the_gateways_own_name() {
    let refusals = [
        Refusal::FloorUnreachable { best: Accuracy::from_ppm(915_500) },
        Refusal::LatencyUnreachable {
            nearest: Nearest { accuracy: None, latency: Some(Micros(5)), max_cost: Some(CostPer1k(6)) },
        },
        Refusal::CostUnreachable { nearest: Nearest::default() },
        Refusal::PinUnusable { why: "pin".into() },
        Refusal::NothingRunnable { why: "no".into() },
        Refusal::TooLate { waited: Micros(3) },
        Refusal::QueueFull { limit: 9 },
        Refusal::BytesFull { limit: Bytes(10) },
        Refusal::OverQuota,
        Refusal::Loading { ready_in: Micros(11), bound: Micros(12) },
        Refusal::VariantFailed { why: "ä".repeat(10) },
        Refusal::InputCrashed { why: String::new() },
        Refusal::ModelError { why: "shape".into() },
        Refusal::OutOfMemory { needs: Bytes(1), budget: Bytes(2) },
        Refusal::Draining,
        Refusal::NodeLost,
        Refusal::Cancelled,
    ];
    for transport in TRANSPORTS {
        let rig = Rig::new(transport).await;
        let key = rig.ask(1, raw("x")).await;
        let sent = answer(Buffer::from_static(b"{\"label\":1}"));
        rig.say(Body::Answer { key, answer: Box::new(sent.clone()) });
        let came = rig.gateway.answer_to(1).await;
        assert_eq!(format!("{came:?}"), format!("{sent:?}"), "{transport}");

        for (at, refusal) in refusals.iter().enumerate() {
            let ours = at as u64 + 100;
            let key = rig.ask(ours, raw("x")).await;
            rig.say(Body::Refused { key, refusal: refusal.clone() });
            let is = |(_, frame): &(_, FromNode)| matches!(&frame.body, Body::Refused { key, refusal: came } if key.0 == ours && came == refusal);
            rig.gateway.heard.wait_for_one(refusal.name(), is).await;
        }

        for (ours, fault) in
            [(500, InputFault::Malformed), (501, InputFault::TooLarge), (502, InputFault::UnsupportedMedia)]
        {
            let key = rig.ask(ours, raw("x")).await;
            rig.say(Body::BadInput { key, fault, why: "because".into() });
            let is = |(_, frame): &(_, FromNode)| {
                let Body::BadInput { key, fault: came, why } = &frame.body else { return false };
                key.0 == ours && *came == fault && why == "because"
            };
            rig.gateway.heard.wait_for_one("a bad input", is).await;
        }

        let key = rig.ask(600, raw("x")).await;
        rig.say(Body::HandedBack { key, why: Refusal::Draining });
        let is = |(node, frame): &(_, FromNode)| {
            *node == NODE
                && matches!(frame.body, Body::HandedBack { key, .. } if key.0 == 600)
                && frame.report == report(8)
        };
        rig.gateway.heard.wait_for_one("a query handed back, with the report", is).await;
        rig.end().await;
    }
}

#[tokio::test]
async fn what_a_gateway_tells_a_node_arrives_in_order() {
    for transport in TRANSPORTS {
        let rig = Rig::new(transport).await;
        let key = rig.ask(1, raw("x")).await;
        rig.to_node.send(ToNode::Demand(Demand { class: class(9), waiting: 5, first: None, among: 1 }));
        rig.to_node.send(ToNode::Wake { task: TaskId(8), ordinal: 255 });
        rig.to_node.send(ToNode::Unload { variant: VariantId(u32::MAX) });
        rig.to_node.send(ToNode::Cancel { key: QueryKey(1) });
        let cancelled = |frame: &ToNode| matches!(frame, ToNode::Cancel { key: found } if *found == key);
        rig.node.told.wait_for_one("the cancel", cancelled).await;
        let told = rig.node.told.all();
        assert!(
            matches!(
                told.as_slice(),
                [
                    ToNode::Query(_),
                    ToNode::Demand(Demand { waiting: 5, first: None, .. }),
                    ToNode::Wake { task: TaskId(8), ordinal: 255 },
                    ToNode::Unload { variant: VariantId(u32::MAX) },
                    ToNode::Cancel { .. },
                ]
            ),
            "{transport}: {told:?}"
        );
        rig.end().await;
    }
}

#[tokio::test]
async fn many_large_inputs_and_answers_arrive_unharmed_and_each_at_its_own_query() {
    // Larger than any socket buffer, so that frames are written and read in pieces, in both directions at once.
    let bytes = |key: u64| -> Buffer {
        // No two equal blocks in reach of each other, and another beginning for each key.
        let block: Vec<u8> = (0..251_u64).map(|at| ((at + key * 7) % 251).to_le_bytes()[0]).collect();
        block.repeat(6_000).into()
    };
    for transport in TRANSPORTS {
        let rig = Rig::new(transport).await;
        let keys = if transport == "sim" { 1..=3_u64 } else { 1..=8 };
        for key in keys.clone() {
            rig.to_node.send(ToNode::Query(Box::new(query(key, Input::Raw(bytes(key))))));
        }
        for (at, key) in keys.clone().enumerate() {
            let came = rig.node.query(at).await;
            let Input::Raw(input) = came.input else { panic!("raw bytes were sent") };
            assert!(input == bytes(key), "{transport}: input {key} was changed on its way");
            rig.say(Body::Answer { key: came.key, answer: Box::new(answer(input)) });
        }
        for key in keys {
            assert!(rig.gateway.answer_to(key).await.body == bytes(key), "{transport}: answer {key}");
        }
        rig.end().await;
    }
}

#[tokio::test]
async fn a_status_that_changes_is_followed() {
    for transport in TRANSPORTS {
        let mut rig = Rig::new(transport).await;
        rig.publish.send_modify(|status| {
            status.draining = true;
            status.warnings.push("no landlock here".into());
        });
        let changed = rig.watched.wait_for(|status| status.draining);
        let status = tokio::time::timeout(super::PATIENCE, changed).await.expect("in time").expect("a node");
        assert_eq!(status.warnings, ["no landlock here"], "{transport}");
        drop(status);
        rig.end().await;
    }
}

#[tokio::test]
async fn a_node_may_answer_inside_the_call_that_brings_the_query() {
    struct Inline {
        gateways: Mutex<Option<Arc<dyn GatewayLink>>>,
        seen: Log<QueryKey>,
    }
    impl NodeLink for Inline {
        fn send(&self, frame: ToNode) {
            let ToNode::Query(query) = frame else { return };
            self.seen.push(query.key);
            let gateways = lock(&self.gateways).clone();
            let Input::Raw(body) = query.input else { return };
            let body = Body::Answer { key: query.key, answer: Box::new(answer(body)) };
            gateways.expect("connected").receive(NODE, FromNode { body, report: report(8) });
        }
    }
    let node = Arc::new(Inline { gateways: Mutex::default(), seen: Log::default() });
    let (_status, watched) = watch::channel(status());
    let listener = crate::Listener::bind(&Address::Tcp("127.0.0.1:0".into())).await.expect("a port");
    let server = crate::serve_node(listener, Arc::clone(&node) as Arc<dyn NodeLink>, watched, config());
    *lock(&node.gateways) = Some(server.link());
    let address = server.address().clone();
    let stop = tokio_util::sync::CancellationToken::new();
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(server.run(stop.clone()));
    let kept = Kept::start(dial(&address));
    let (_, link) = kept.connection(0).await;
    for key in 1..=100 {
        link.send(ToNode::Query(Box::new(query(key, raw(&key.to_string())))));
    }
    for key in 1..=100 {
        assert_eq!(kept.gateway.answer_to(key).await.body, key.to_string());
    }
    kept.stop().await;
    stop.cancel();
    tasks.join_next().await.expect("one task").expect("no panic");
}
