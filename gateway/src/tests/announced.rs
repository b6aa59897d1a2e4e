//! Queries that are announced to two nodes, and go to the one that claims them.

use super::world::{Does, Got, NODE, PNG, Running, Second, Setup, World, send};
use axum::body::Body;
use http::Request;
use modelless_types::{NodeId, QueryKey, Refusal};
use modelless_wire::{Announcement, Body as Said, Input, QueryFrame, ToNode};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

const LONG: Duration = Duration::from_secs(20);

async fn heard(seen: &mut mpsc::Receiver<ToNode>) -> ToNode {
    timeout(LONG, seen.recv()).await.expect("in time").expect("the gateway is there")
}

async fn announced(seen: &mut mpsc::Receiver<ToNode>) -> Box<Announcement> {
    loop {
        if let ToNode::Announce(told) = heard(seen).await {
            return told;
        }
    }
}

async fn query(seen: &mut mpsc::Receiver<ToNode>) -> Box<QueryFrame> {
    loop {
        if let ToNode::Query(frame) = heard(seen).await {
            return frame;
        }
    }
}

async fn taken_back(seen: &mut mpsc::Receiver<ToNode>, wanted: QueryKey) {
    loop {
        if matches!(heard(seen).await, ToNode::Cancel { key } if key == wanted) {
            return;
        }
    }
}

/// Two nodes of which each has a query, and a third query that both have heard of.
struct Waits {
    world: Running,
    second: Second,
    asked: JoinSet<Got>,
    told: [Box<Announcement>; 2],
}

impl Waits {
    async fn new() -> Self {
        let mut world = World::with(Setup { second_node: true, ..Setup::default() }).await;
        let mut second = world.second.take().expect("two nodes");
        *world.node.does.lock().unwrap() = Does::Keep;
        for node in [&world.node, &second.node] {
            *node.credit.lock().unwrap() = 1;
            node.say(Said::Report);
        }
        let mut asked = JoinSet::new();
        let router = world.router();
        let mut world = world.run().await; // with its timer
        let mut ask = || {
            let request = Request::post("/v1/tasks/fashion?latency_ms=20000&fallback=reject");
            let request = request.header("content-type", "image/png").body(Body::from(PNG)).unwrap();
            asked.spawn(send(router.clone(), request));
        };
        ask();
        ask();
        for seen in [&mut world.seen, &mut second.seen] {
            query(seen).await;
        }
        ask();
        let told = [announced(&mut world.seen).await, announced(&mut second.seen).await];
        Self { world, second, asked, told }
    }

    fn key(&self) -> QueryKey {
        self.told[0].key
    }

    async fn got(&mut self) -> Got {
        timeout(LONG, self.asked.join_next()).await.expect("in time").expect("one is left").unwrap()
    }

    async fn metrics(&self) -> String {
        let told = self.world.with_connection(|mut connection| {
            let shown = connection.exchange(&modelless_testkit::Request::get("/metrics"));
            shown.unwrap().text()
        });
        told.await
    }
}

#[tokio::test]
async fn what_no_node_can_begin_is_announced_and_goes_with_its_input_to_the_first_that_claims_it() {
    let mut waits = Waits::new().await;
    let [first, second] = &waits.told;
    assert_eq!((first.key, first.class), (second.key, second.class));
    let parts = first.part_ppm + second.part_ppm;
    assert!((999_990..=1_000_000).contains(&parts), "together they do all of it: {parts}");

    let key = waits.key();
    waits.second.node.say(Said::Claim { queries: vec![key], lanes: 1 });
    let sent = query(&mut waits.second.seen).await;
    assert_eq!((sent.key, &sent.input), (key, &Input::Raw(PNG.to_vec().into())));
    taken_back(&mut waits.world.seen, key).await;
    // Who comes later gets nothing.
    waits.world.node.say(Said::Claim { queries: vec![key], lanes: 1 });
    taken_back(&mut waits.world.seen, key).await;
    waits.second.node.answer(&sent);
    let got = waits.got().await;
    assert_eq!((got.status.as_u16(), got.header("modelless-node")), (200, "node-b"));
    let text = waits.metrics().await;
    for line in ["announced_total 2", "claimed_total 2"] {
        assert!(text.contains(&format!("modelless_queries_{line}")), "{line}:\n{text}");
    }
}

#[tokio::test]
async fn what_all_nodes_decline_as_too_late_is_refused_so() {
    let mut waits = Waits::new().await;
    let key = waits.key();
    let why = || Refusal::TooLate { waited: modelless_types::Micros(1) };
    waits.world.node.say(Said::Declined { key, why: why() });
    waits.second.node.say(Said::Declined { key, why: why() });
    let got = waits.got().await;
    assert_eq!(got.refusal(), (504, "too_late".to_owned()), "{got:?}");
    let text = waits.metrics().await;
    assert!(text.contains("modelless_queries_declined_total 2"), "{text}");
}

#[tokio::test]
async fn a_word_of_declining_that_comes_after_the_query_was_sent_changes_nothing() {
    let mut waits = Waits::new().await;
    let key = waits.key();
    waits.world.node.say(Said::Claim { queries: vec![key], lanes: 1 });
    let sent = query(&mut waits.world.seen).await;
    waits.world.node.say(Said::Declined { key, why: Refusal::Draining });
    waits.world.node.answer(&sent);
    let got = waits.got().await;
    assert_eq!((got.status.as_u16(), got.header("modelless-node")), (200, "node-a"));
}

#[tokio::test]
async fn what_is_announced_to_a_node_that_is_lost_goes_to_the_other() {
    let mut waits = Waits::new().await;
    let key = waits.key();
    let core = waits.world.handle.core();
    let gone = core.node(NODE).expect("it is there");
    core.lost_node(&gone);
    waits.second.node.say(Said::Claim { queries: vec![key], lanes: 1 });
    let sent = query(&mut waits.second.seen).await;
    assert_eq!((sent.key, waits.second.node.id), (key, NodeId(2)));
    waits.second.node.answer(&sent);
    assert_eq!(waits.got().await.status.as_u16(), 200);
}
