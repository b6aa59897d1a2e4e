//! Ways that are slow, and inputs that are large for them: nobody is taken for lost who is not, and what is small does not
//! wait for what is large.

use super::{Body, Kept, NODE, PATIENCE, Served, class, config, dial, lock, queries, query, raw, report};
use crate::frame::{Bound, Encoded};
use crate::out::Out;
use crate::sim::Host;
use crate::{Address, Config, Demand, Dial, FromNode, Input, NodeLink, ToNode, codec};
use bytes::Bytes as Buffer;
use modelless_types::{Bytes, Micros, QueryKey, Refusal};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

/// Bytes a second of a way that is so slow that what follows takes a quarter of a minute.
const SLOW: u64 = 100_000;
const LARGE: usize = 1_500_000;
/// What a small frame may wait for there: the rest of one part, what is on its way, and its like.
const SMALL_WITHIN: Duration = Duration::from_secs(2);

fn large(bytes: usize) -> Buffer {
    (0..bytes).map(|at| u8::try_from(at % 251).expect("small")).collect::<Vec<_>>().into()
}

fn ask(key: u64, input: Buffer) -> ToNode {
    ToNode::Query(Box::new(query(key, Input::Raw(input))))
}

async fn world(rate: u64) -> (Host, Served, Kept, Arc<dyn NodeLink>) {
    let host = Host::new(11, Duration::from_micros(500));
    let served = Served::start(&Address::Sim(host.clone()), config()).await;
    let kept = Kept::start(dial(&served.address));
    let (_, link) = kept.connection(0).await;
    host.throttle(rate);
    (host, served, kept, link)
}

async fn arrives(served: &Served, input: &Buffer, within: Duration) -> crate::QueryFrame {
    let find =
        |told: &[ToNode]| queries(told).find(|query| query.input == Input::Raw(input.clone())).cloned();
    timeout(within, served.node.told.wait_for("a query", find)).await.expect("in time")
}

#[tokio::test(start_paused = true)]
async fn a_large_input_on_a_slow_way_arrives_and_a_small_query_does_not_wait_for_it() {
    let (_, served, kept, link) = world(SLOW).await;
    let (began, input) = (Instant::now(), large(LARGE));
    link.send(ask(1, input.clone()));
    sleep(Duration::from_secs(5)).await;
    for key in 2..=10 {
        let small = Buffer::from(format!("small {key}"));
        link.send(ask(key, small.clone()));
        let came = arrives(&served, &small, SMALL_WITHIN).await;
        served.answer(came.key, small, 8);
        timeout(SMALL_WITHIN, kept.gateway.answer_to(key)).await.expect("its answer, in time");
    }
    let came = arrives(&served, &input, Duration::from_secs(20)).await;
    let took = began.elapsed();
    assert!(took > Duration::from_secs(15), "the way was not slow: {took:?}");
    let sent = query(1, Input::Raw(input.clone()));
    let gone = sent.deadline_in.saturating_sub(came.deadline_in);
    assert!(gone > Micros::from_secs(14), "time under way is not the query's any longer: {gone}");
    assert!(came.spent > Micros::from_secs(14));
    // And all of it back, while another input comes the other way.
    link.send(ask(11, input.clone()));
    served.answer(came.key, input.clone(), 8);
    let back = timeout(Duration::from_secs(20), kept.gateway.answer_to(1)).await.expect("the answer");
    assert!(back.body == input);
    assert_eq!(kept.joined.all().len(), 1, "the connection stood all the time");
    kept.stop().await;
    served.stop().await;
}

#[tokio::test(start_paused = true)]
async fn large_inputs_take_turns_and_what_nobody_waits_for_any_longer_makes_room() {
    let (_, served, kept, link) = world(SLOW).await;
    for key in 1..=20 {
        link.send(ask(key, large(LARGE)));
    }
    sleep(Duration::from_secs(10)).await;
    let medium = large(100_000);
    link.send(ask(21, medium.clone()));
    for key in 1..=20 {
        link.send(ToNode::Cancel { key: QueryKey(key) });
    }
    arrives(&served, &medium, Duration::from_secs(5)).await;
    let told = served.node.told.all();
    assert_eq!(queries(&told).count(), 1, "what was taken back never came");
    assert!(!told.iter().any(|frame| matches!(frame, ToNode::Cancel { .. })), "so nothing is cancelled");
    assert_eq!(kept.joined.all().len(), 1);
    kept.stop().await;
    served.stop().await;
}

#[tokio::test(start_paused = true)]
async fn that_a_large_query_may_go_back_is_heard_though_it_is_said_while_its_parts_still_come() {
    let (_, served, kept, link) = world(SLOW).await;
    let may = |key| ToNode::MayReturn { key: QueryKey(key) };
    // The first is under way, the second waits until others have come; nobody waits for the third.
    for key in 1..=10 {
        link.send(ask(key, large(200_000)));
    }
    sleep(Duration::from_secs(1)).await;
    for key in [1, 10, 3] {
        link.send(may(key));
    }
    link.send(ToNode::Cancel { key: QueryKey(3) });
    let heard = |told: &[ToNode]| {
        let at = |wanted: u64, may: bool| {
            told.iter().position(|frame| match frame {
                ToNode::Query(query) => !may && query.key.0 & 0xff == wanted,
                ToNode::MayReturn { key } => may && key.0 & 0xff == wanted,
                ToNode::Announce(_)
                | ToNode::Demand(_)
                | ToNode::Cancel { .. }
                | ToNode::Pin { .. }
                | ToNode::Wake { .. }
                | ToNode::Unload { .. } => false,
            })
        };
        Some([(at(1, false)?, at(1, true)?), (at(10, false)?, at(10, true)?)])
    };
    let places = served.node.told.wait_for("both, and that they may go back", heard).await;
    assert!(places.iter().all(|(query, may)| query < may), "{places:?}");
    link.send(ask(11, large(200_000)));
    arrives(&served, &large(200_000), Duration::from_secs(10)).await;
    let told = served.node.told.all();
    let may_return = told.iter().filter(|frame| matches!(frame, ToNode::MayReturn { .. })).count();
    assert_eq!(may_return, 2, "of what was taken back nothing is said");
    kept.stop().await;
    served.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_overtakes_a_large_query_is_newer_than_what_that_says_of_the_moment() {
    let (_, served, kept, link) = world(SLOW).await;
    let mut early = query(1, Input::Raw(large(500_000)));
    early.demand = Demand { class: class(3), waiting: 40, first: Some(Micros::from_secs(60)), among: 1 };
    link.send(ToNode::Query(Box::new(early)));
    let waits = |waiting: u32| move |frame: &ToNode| matches!(frame, ToNode::Demand(demand) if demand.waiting == waiting);
    served.node.told.wait_for_one("what waits, ahead of the query", waits(40)).await;
    link.send(ToNode::Demand(Demand {
        class: class(3),
        waiting: 1,
        first: Some(Micros::from_secs(60)),
        among: 1,
    }));
    served.node.told.wait_for_one("what waits now", waits(1)).await;
    let came = served.node.query(0).await;
    assert_eq!(came.demand.waiting, 1);
    // The same the other way round: the credit that an answer brings is not what it was when the answer was begun.
    served.answer(came.key, large(500_000), 40);
    kept.gateway.report_with(40).await;
    served.say(Body::Report, 7);
    kept.gateway.report_with(7).await;
    kept.gateway.answer_to(1).await;
    let (_, last) = kept.gateway.heard.all().pop().expect("an answer");
    assert!(matches!(last.body, Body::Answer { .. }) && last.report.limit.queries == 7, "{last:?}");
    kept.stop().await;
    served.stop().await;
}

#[tokio::test(start_paused = true)]
async fn answers_that_find_no_room_become_a_refusal_by_name() {
    let (host, served, kept, link) = world(SLOW).await;
    for key in 1..=5 {
        link.send(ask(key, Buffer::new()));
    }
    served.node.query(4).await;
    host.throttle(10_000);
    let huge = large(1 << 20).repeat(100).into();
    let huge: Buffer = huge;
    let asked: Vec<_> = queries(&served.node.told.all()).cloned().collect();
    for query in asked {
        served.answer(query.key, huge.clone(), 8);
    }
    for key in 3..=5 {
        let is = |(_, frame): &(_, FromNode)| {
            let limit = Bytes(256 << 20);
            matches!(&frame.body, Body::Refused { key: found, refusal } if found.0 == key && *refusal == Refusal::BytesFull { limit })
        };
        timeout(Duration::from_mins(1), kept.gateway.heard.wait_for_one("a refusal", is))
            .await
            .expect("in time");
    }
    assert_eq!(kept.joined.all().len(), 1, "nobody else lost anything");
    kept.stop().await;
    served.stop().await;
}

fn encoded(key: u64, bytes: usize) -> Encoded {
    codec::to_node(&ask(key, large(bytes))).expect("not too large")
}

#[test]
fn small_frames_go_first_but_not_for_ever() {
    let (mut out, now) = (Out::default(), Instant::now());
    out.push(encoded(1, 1 << 20), now).expect("room");
    for key in 2..=11 {
        out.push(encoded(key, 60_000), now).expect("room");
    }
    let small = |unit: &crate::out::Unit| unit.left() < 62_000;
    let mut before_a_part = Vec::new();
    let mut count = 0;
    while let Some(unit) = out.next(now) {
        if small(&unit) {
            count += 1;
        } else {
            before_a_part.push(std::mem::take(&mut count));
        }
    }
    assert_eq!(before_a_part[..3], [5, 5, 0], "{before_a_part:?}");
    assert_eq!(before_a_part.len(), 16);
}

#[test]
fn nothing_is_left_of_what_was_taken_back_or_sent() {
    let (mut out, now) = (Out::default(), Instant::now());
    let answer = |key| {
        let body = Body::Answer { key: QueryKey(key), answer: Box::new(super::answer(large(300_000))) };
        codec::from_node(&FromNode { body, report: report(1) }).expect("not too large")
    };
    for key in 0..12 {
        out.push(answer(key), now).expect("room");
    }
    assert_eq!(answer(1).bound, Bound::Outcome(QueryKey(1)));
    for _ in 0..3 {
        out.next(now).expect("a part");
    }
    // One that is under way, one that is about to be, one whose turn has not come, and one that is not there.
    for key in [0, 7, 11, 99] {
        out.take_back_answer(QueryKey(key));
    }
    let mut last = 0;
    while let Some(unit) = out.next(now) {
        last = unit.left();
    }
    assert!(last > 0 && out.is_empty());
    assert_eq!(format!("{out:?}"), format!("{:?}", Out::default()), "what was counted is counted no longer");
}

/// Passes on so many bytes a second each way, and takes in hardly more.
fn throttled(to: String, rate: usize, tasks: &Mutex<JoinSet<()>>) -> String {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(16 << 10).expect("a small buffer");
    socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
    let listener = socket.listen(4).expect("it listens");
    let address = listener.local_addr().expect("an address").to_string();
    lock(tasks).spawn(async move {
        let mut pumps = JoinSet::new();
        while let Ok((near, _)) = listener.accept().await {
            let Ok(far) = TcpStream::connect(&to).await else { return };
            let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
            pumps.spawn(pump(near_in, far_out, rate));
            pumps.spawn(pump(far_in, near_out, rate));
        }
    });
    address
}

async fn pump(mut from: impl AsyncReadExt + Unpin, mut to: impl AsyncWriteExt + Unpin, rate: usize) {
    let mut buffer = vec![0; rate / 50];
    let mut free_at = Instant::now();
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let micros = u64::try_from(count * 1_000_000 / rate).unwrap_or(u64::MAX);
        free_at = free_at.max(Instant::now()) + Duration::from_micros(micros);
        tokio::time::sleep_until(free_at).await;
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

#[tokio::test]
async fn real_sockets_with_a_slow_way_between_them_do_the_same() {
    const RATE: usize = 600_000;
    let tasks = Mutex::new(JoinSet::new());
    let served = Served::start(&Address::Tcp("127.0.0.1:0".into()), config()).await;
    let slow = throttled(served.address.to_string(), RATE, &tasks);
    let kept = Kept::start(dial(&Address::Tcp(slow)));
    let (_, link) = kept.connection(0).await;
    let (began, input) = (Instant::now(), large(RATE * 4));
    link.send(ask(1, input.clone()));
    let mut longest = Duration::ZERO;
    for key in 2..=5 {
        let small = Buffer::from(format!("small {key}"));
        let sent = Instant::now();
        link.send(ask(key, small.clone()));
        arrives(&served, &small, PATIENCE).await;
        longest = longest.max(sent.elapsed());
    }
    arrives(&served, &input, PATIENCE).await;
    let took = began.elapsed();
    assert!(took > Duration::from_millis(3_500), "the way was not slow: {took:?}");
    assert!(longest < took / 2, "a small query waited {longest:?} behind an input that took {took:?}");
    assert_eq!(kept.joined.all().len(), 1, "the connection stood all the time");
    served.gateways.receive(NODE, FromNode { body: Body::Report, report: report(9) });
    kept.gateway.report_with(9).await;
    link.send(ToNode::Query(Box::new(query(6, raw("on and on")))));
    kept.stop().await;
    served.stop().await;
    lock(&tasks).abort_all();
}

/// A node that was told to end, with an answer on its way that takes two and a half seconds; how long it took to end.
async fn ends_with_an_answer_under_way(last_words: Duration) -> (Kept, Buffer, Duration) {
    let host = Host::new(12, Duration::from_micros(500));
    let config = Config { last_words, ..config() };
    let served = Served::start(&Address::Sim(host.clone()), config).await;
    let kept = Kept::start(dial(&served.address));
    let (_, link) = kept.connection(0).await;
    link.send(ask(1, large(10)));
    let (came, body) = (served.node.query(0).await, large(250_000));
    host.throttle(SLOW);
    served.answer(came.key, body.clone(), 8);
    let began = Instant::now();
    served.stop().await;
    (kept, body, began.elapsed())
}

#[tokio::test(start_paused = true)]
async fn a_node_that_ends_writes_a_large_answer_first() {
    let (kept, body, took) = ends_with_an_answer_under_way(Duration::from_secs(10)).await;
    assert!(kept.gateway.answer_to(1).await.body == body);
    assert!(took < Duration::from_secs(4), "nothing was left to write: {took:?}");
    kept.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_ends_does_not_wait_for_ever_for_who_takes_an_answer_slowly() {
    let (kept, _, took) = ends_with_an_answer_under_way(Duration::from_secs(1)).await;
    assert!(took < Duration::from_millis(1_500), "{took:?}");
    kept.stop().await;
}

#[tokio::test(start_paused = true)]
async fn sides_with_different_heartbeats_keep_to_the_slower_one_and_stand() {
    let (quick, slow) = (Duration::from_millis(50), Duration::from_secs(2));
    for (node, gateway) in [(quick, slow), (slow, quick)] {
        let host = Host::new(11, Duration::from_micros(500));
        let with = |heartbeat| Config { heartbeat, ..config() };
        let served = Served::start(&Address::Sim(host.clone()), with(node)).await;
        let kept = Kept::start(Dial { config: with(gateway), ..dial(&served.address) });
        let (status, _) = kept.connection(0).await;
        sleep(10 * slow).await;
        assert!(
            status.has_changed().is_ok(),
            "the node's {node:?} and the gateway's {gateway:?} are no silence"
        );
        assert_eq!(kept.joined.all().len(), 1);
        kept.stop().await;
        served.stop().await;
    }
}
