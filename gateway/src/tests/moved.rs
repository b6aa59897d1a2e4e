//! A query that was taken from a silent node and given to another, while the first one still has words for it.

use super::world::{Does, FakeNode, Got, NODE, PNG, Running, Second, Setup, World, send};
use crate::Config;
use crate::view::View;
use axum::body::Body;
use http::Request;
use modelless_types::{Micros, QueryKey, Refusal};
use modelless_wire::{Body as Said, Connection, InputFault, NodeLink, QueryFrame, ToNode};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

const LONG: Duration = Duration::from_secs(20);

async fn query(seen: &mut tokio::sync::mpsc::Receiver<ToNode>) -> Box<QueryFrame> {
    loop {
        let frame = timeout(LONG, seen.recv()).await.expect("in time").expect("the gateway is there");
        if let ToNode::Query(frame) = frame {
            return frame;
        }
    }
}

async fn cancelled(seen: &mut tokio::sync::mpsc::Receiver<ToNode>, wanted: QueryKey) {
    loop {
        let frame = timeout(LONG, seen.recv()).await.expect("in time").expect("the gateway is there");
        if matches!(frame, ToNode::Cancel { key } if key == wanted) {
            return;
        }
    }
}

/// A query that is at the second node, after the first one kept another past its time.
async fn moved() -> (Running, Second, Box<QueryFrame>, JoinSet<Got>) {
    moved_with(Config::default()).await
}

pub(super) async fn moved_with(config: Config) -> (Running, Second, Box<QueryFrame>, JoinSet<Got>) {
    let mut world = World::with(Setup { second_node: true, config, ..Setup::default() }).await;
    let mut second = world.second.take().expect("two nodes");
    *world.node.does.lock().unwrap() = Does::Keep;
    let mut asked = JoinSet::new();
    let router = world.router();
    let mut world = world.run().await; // with its timer
    let ask = |asked: &mut JoinSet<Got>, target: &str| {
        let request =
            Request::post(target).header("content-type", "image/png").body(Body::from(PNG)).unwrap();
        asked.spawn(send(router.clone(), request));
    };
    ask(&mut asked, "/v1/tasks/fashion?latency_ms=20000&fallback=reject");
    let first = query(&mut world.seen).await;
    ask(&mut asked, "/v1/tasks/fashion?latency_ms=500&fallback=reject");
    query(&mut world.seen).await;
    *second.node.credit.lock().unwrap() = 4;
    second.node.say(Said::Report);
    let there = query(&mut second.seen).await;
    assert_eq!((first.key, &first.input), (there.key, &there.input));
    (world, second, there, asked)
}

async fn got(asked: &mut JoinSet<Got>, status: u16) -> Got {
    loop {
        let got = timeout(LONG, asked.join_next()).await.expect("in time").expect("one is left").unwrap();
        if got.status == status {
            return got;
        }
    }
}

#[tokio::test]
async fn a_node_that_a_query_was_taken_from_cannot_refuse_it() {
    for bad_input in [false, true] {
        let (world, second, query, mut asked) = moved().await;
        let key = query.key;
        world.node.say(if bad_input {
            Said::BadInput { key, fault: InputFault::Malformed, why: "an echo".to_owned() }
        } else {
            Said::Refused { key, refusal: Refusal::Draining }
        });
        world.node.say(Said::HandedBack { key, why: Refusal::Draining });
        second.node.answer(&query);
        got(&mut asked, 200).await;
    }
}

#[tokio::test]
async fn a_node_that_a_query_was_taken_from_may_answer_it_and_the_other_is_told_to_stop() {
    let (world, mut second, query, mut asked) = moved().await;
    world.node.answer(&query);
    got(&mut asked, 200).await;
    cancelled(&mut second.seen, query.key).await;
}

#[tokio::test]
async fn a_node_whose_newest_connection_ends_is_reached_over_an_older_one_that_stands() {
    let mut world = World::new().await;
    let core = world.service.core();
    let newer = |world: &World| {
        let status = watch::Sender::new(world.status.borrow().clone());
        core.add_node(status.subscribe(), Arc::clone(&world.node) as Arc<dyn NodeLink>);
        world.node.say(Said::Report);
        status
    };
    let newest = newer(&world);
    drop(newest);
    core.lost_node(&core.nodes()[0]);
    let left = core.nodes();
    assert_eq!(left.len(), 1, "a node vanished that is connected");
    core.tabled(&left); // as the next look does
    let got = world.post("/v1/tasks/fashion", "image/png", PNG).await;
    assert_eq!(got.status, 200, "what it said last counts: {got:?}");
    let newest = newer(&world);
    world.status = newest; // the older one ends first
    let nothing = watch::Sender::new(world.status.borrow().clone());
    world.status = nothing;
    core.lost_node(&core.nodes()[0]);
    assert!(core.nodes().is_empty(), "none of its connections stands");
}

#[tokio::test]
async fn a_node_that_joined_while_a_query_waited_is_named_by_its_answer() {
    let world = World::new().await;
    let core = world.service.core();
    let before = View::default();
    let node = core.nodes()[0].id;
    assert_eq!(before.node_header(node), None);
    assert_eq!(core.node_header(&before, node).unwrap(), "node-a");
}

/// A connection to a node that is not the only one.
struct Over(Connection, Arc<FakeNode>);

impl NodeLink for Over {
    fn send(&self, frame: ToNode) {
        self.1.send(frame);
    }

    fn connection(&self) -> Connection {
        self.0
    }
}

#[tokio::test]
async fn a_no_over_an_older_connection_is_no_end_of_what_went_over_the_newer_one() {
    let mut world = World::new().await;
    let core = world.service.core();
    core.add_node(world.status.subscribe(), Arc::new(Over(Connection(7), Arc::clone(&world.node))));
    world.node.say(Said::Report);
    core.tabled(&core.nodes()); // as the next look does
    *world.node.does.lock().unwrap() = Does::Keep;
    let mut asked = JoinSet::new();
    let target = "/v1/tasks/fashion?latency_ms=20000&fallback=reject";
    let request = Request::post(target).header("content-type", "image/png").body(Body::from(PNG)).unwrap();
    asked.spawn(send(world.router(), request));
    let sent = query(&mut world.seen).await;
    let key = sent.key;
    // What the node says over the one that it was reached over before.
    world.node.say(Said::Refused { key, refusal: Refusal::Draining });
    world.node.say(Said::HandedBack { key, why: Refusal::Draining });
    assert_eq!(core.pending.at(NODE), 1, "it is still there");
    assert!(world.seen.try_recv().is_err(), "nothing is sent again");
    world.node.answer(&sent);
    got(&mut asked, 200).await;
}

#[tokio::test]
async fn a_node_stands_until_the_router_hears_that_it_is_gone() {
    let world = World::new().await;
    let core = world.service.core();
    let node = core.nodes().remove(0);
    let starts = Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            starts.wait();
            core.lost_node(&node);
        });
        // The router can hear nothing meanwhile, so whoever looked for the node would take another's joining for its return.
        core.driver.look(|_, _| {
            starts.wait();
            for _ in 0..20_000 {
                assert_eq!(core.nodes().len(), 1, "it went before the router heard of it");
                std::thread::yield_now();
            }
        });
    });
    assert!(core.nodes().is_empty());
}

#[tokio::test]
async fn a_node_that_comes_back_is_sent_nothing_before_what_it_had_is_given_up() {
    let mut world = World::with(Setup { second_node: true, ..Setup::default() }).await;
    let mut second = world.second.take().expect("two nodes");
    *world.node.does.lock().unwrap() = Does::Keep;
    let target = "/v1/tasks/fashion?latency_ms=20000&fallback=reject";
    let request = Request::post(target).header("content-type", "image/png").body(Body::from(PNG)).unwrap();
    let mut asked = JoinSet::new();
    asked.spawn(send(world.router(), request));
    query(&mut world.seen).await;
    let shown = world.get("/metrics").await.body;
    assert!(String::from_utf8_lossy(&shown).contains(r#"modelless_node_queries_sent{node="node-a"} 1"#));
    *second.node.credit.lock().unwrap() = 4;
    second.node.say(Said::Report);
    let (core, there) = (world.service.core(), Arc::new(Mutex::new(None)));
    let (looked, seen) = (Arc::clone(&core), Arc::clone(&there));
    let looks = move || {
        *seen.lock().unwrap() = Some(looked.nodes().iter().any(|node| node.id == NODE));
    };
    assert!(second.node.looks.set(Box::new(looks)).is_ok());
    core.add_node(world.status.subscribe(), Arc::clone(&world.node) as Arc<dyn NodeLink>);
    let moved = query(&mut second.seen).await;
    assert_eq!(*there.lock().unwrap(), Some(false), "queries could reach it, and would be taken for lost");
    assert!(core.nodes().iter().any(|node| node.id == NODE), "it is there afterwards");
    second.node.answer(&moved);
    got(&mut asked, 200).await;
}

#[tokio::test(start_paused = true)]
async fn a_query_that_loses_its_node_goes_to_one_whose_greeting_was_held_up_a_moment_ago() {
    let second_greeting = Micros::from_millis(700);
    let mut world = World::with(Setup { second_node: true, second_greeting, ..Setup::default() }).await;
    let mut second = world.second.take().expect("two nodes");
    *world.node.does.lock().unwrap() = Does::Keep;
    *second.node.credit.lock().unwrap() = 4;
    second.node.say(Said::Report);
    let router = world.router();
    let mut world = world.run().await;
    // The first words there and back show that it is near. What only moves estimates would wait for a second.
    second.is_away(Micros(400));
    sleep(Duration::from_millis(100)).await;
    let target = "/v1/tasks/fashion?latency_ms=500&fallback=reject";
    let request = Request::post(target).header("content-type", "image/png").body(Body::from(PNG)).unwrap();
    let mut asked = JoinSet::new();
    asked.spawn(send(router, request));
    let first = query(&mut world.seen).await;
    let another = watch::Sender::new(world.status.borrow().clone());
    world.status = another; // its connection ends
    let there = query(&mut second.seen).await;
    assert_eq!(there.key, first.key);
    second.node.answer(&there);
    got(&mut asked, 200).await;
}

#[tokio::test]
async fn a_gateway_is_ready_once_those_it_knows_of_have_spoken_and_stand_in_its_table() {
    let mut world = World::with(Setup { second_node: true, silent_node: true, ..Setup::default() }).await;
    let second = world.second.take().expect("two nodes");
    let core = world.service.core();
    let joined = core.nodes().iter().find(|node| node.id == second.node.id).cloned().expect("the second");
    core.lost_node(&joined);
    core.add_node(second.told.subscribe(), Arc::clone(&second.node) as Arc<dyn NodeLink>);
    second.node.say(Said::Report);
    let ready = async || world.get("/v2/health/ready").await.status.as_u16();
    assert_eq!(ready().await, 503, "what it has to run its queries on is not known to the router");
    core.tabled(&core.nodes()); // as the next look does
    core.refresh_ready();
    assert_eq!(ready().await, 503, "all queries would go to one of two nodes");
    world.node.say(Said::Report);
    assert_eq!(ready().await, 200);
    core.lost_node(&joined);
    assert_eq!(ready().await, 200, "who is lost later is no reason to send clients elsewhere");
}
