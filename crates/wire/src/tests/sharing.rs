//! Several gateways at one node, and nodes that come and go.

use super::{Body, FakeNode, Kept, PATIENCE, Served, class, config, dial, queries, query, raw};
use crate::config::limits;
use crate::gateway::greet;
use crate::sim::Host;
use crate::stream::Stream;
use crate::{Address, Demand, Dial, FromNode, QueryFrame, ToNode};
use bytes::Bytes as Buffer;
use modelless_decision::route::{Offer, Ready};
use modelless_decision::{Moments, RunModel};
use modelless_types::{BatchPoint, Micros, NodeId, QueryKey, Refusal, Time};
use std::time::Duration;
use tokio::time::{Instant, timeout};

fn tcp() -> Address {
    Address::Tcp("127.0.0.1:0".into())
}

async fn cancelled(node: &FakeNode, key: QueryKey) {
    let is = |frame: &ToNode| matches!(frame, ToNode::Cancel { key: found } if *found == key);
    node.told.wait_for_one("a cancel", is).await;
}

async fn demanded(node: &FakeNode, task: u32, waiting: u32) -> Demand {
    let find = |told: &[ToNode]| {
        let demand = |frame: &ToNode| if let ToNode::Demand(demand) = frame { Some(*demand) } else { None };
        let last = told.iter().rev().filter_map(demand).find(|demand| demand.class == class(task));
        last.filter(|demand| demand.waiting == waiting)
    };
    node.told.wait_for("a demand", find).await
}

#[tokio::test]
async fn two_gateways_with_equal_keys_each_get_their_own_answer() {
    let served = Served::start(&tcp(), config()).await;
    let (one, two) = (Kept::start(dial(&served.address)), Kept::start(dial(&served.address)));
    for (whose, kept) in [("one", &one), ("two", &two)] {
        let (_, link) = kept.connection(0).await;
        for key in 1..=50 {
            link.send(ToNode::Query(Box::new(query(key, raw(&format!("{whose} {key}"))))));
        }
    }
    let all = served.node.told.wait_for("all queries", |told| {
        let came: Vec<_> = queries(told).cloned().collect();
        (came.len() == 100).then_some(came)
    });
    for query in all.await {
        let crate::Input::Raw(text) = query.input else { panic!("raw bytes were sent") };
        served.answer(query.key, text, 8);
    }
    for key in 1..=50 {
        assert_eq!(one.gateway.answer_to(key).await.body, format!("one {key}"));
        assert_eq!(two.gateway.answer_to(key).await.body, format!("two {key}"));
    }
    for kept in [one, two] {
        let answers = kept.gateway.heard.all();
        let answers = answers.iter().filter(|(_, frame)| matches!(frame.body, Body::Answer { .. }));
        assert_eq!(answers.count(), 50, "each answer once, and none of the other's");
        kept.stop().await;
    }
    served.stop().await;
}

#[tokio::test]
async fn an_answer_that_a_node_gives_twice_is_passed_on_once() {
    let served = Served::start(&tcp(), config()).await;
    let kept = Kept::start(dial(&served.address));
    let (_, link) = kept.connection(0).await;
    for key in 1..=2_u64 {
        link.send(ToNode::Query(Box::new(query(key, raw("x")))));
        let named = served.node.query(usize::try_from(key).expect("small") - 1).await.key;
        served.answer(named, Buffer::from_static(b"first"), 8);
        served.answer(named, Buffer::from_static(b"second"), 8);
        assert_eq!(kept.gateway.answer_to(key).await.body, "first");
    }
    served.say(Body::Report, 77); // behind everything that was said before
    kept.gateway.report_with(77).await;
    let heard = kept.gateway.heard.all();
    assert_eq!(heard.iter().filter(|(_, frame)| matches!(frame.body, Body::Answer { .. })).count(), 2);
    kept.stop().await;
    served.stop().await;
}

#[tokio::test(start_paused = true)]
async fn credit_is_divided_among_gateways_that_ask_and_a_scheduler_takes_none() {
    let host = Host::new(6, Duration::from_micros(100));
    let served = Served::start(&Address::Sim(host), config()).await;
    let one = Kept::start(dial(&served.address));
    one.gateway.report_with(8).await;
    let scheduler = Kept::start(Dial { queries: false, ..dial(&served.address) });
    scheduler.connection(0).await;
    let two = Kept::start(dial(&served.address));
    two.gateway.report_with(8).await; // nobody else asks for anything
    let (_, first) = one.connection(0).await;
    let (_, second) = two.connection(0).await;
    first.send(ToNode::Query(Box::new(query(1, raw("x")))));
    two.gateway.report_with(4).await; // what it would get if it asked as well
    second.send(ToNode::Query(Box::new(query(1, raw("y")))));
    one.gateway.report_with(4).await;
    // What one gateway hears with its answer, the other hears soon after.
    let key = served.node.query(0).await.key;
    served.answer(key, Buffer::new(), 20);
    for kept in [&one, &two] {
        kept.gateway.report_with(10).await;
    }
    // One that has nothing open and asks no more leaves its share; the other's query is still open.
    two.gateway.report_with(10).await;
    let key = served.node.query(1).await.key;
    first.send(ToNode::Demand(Demand { class: class(3), waiting: 0, first: None, among: 1 }));
    second.send(ToNode::Demand(Demand { class: class(5), waiting: 1, first: None, among: 1 }));
    two.gateway.report_with(20).await;
    // And one that goes.
    second.send(ToNode::Demand(Demand { class: class(5), waiting: 1, first: None, among: 1 }));
    first.send(ToNode::Query(Box::new(query(2, raw("z")))));
    served.answer(key, Buffer::new(), 30);
    one.gateway.report_with(15).await;
    two.stop().await;
    one.gateway.report_with(30).await;
    scheduler.stop().await;
    one.stop().await;
    served.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_asks_for_more_gets_more_of_the_credit_and_the_other_is_not_starved() {
    let host = Host::new(6, Duration::from_micros(100));
    let served = Served::start(&Address::Sim(host), config()).await;
    served.say(Body::Report, 40);
    let (busy, calm) = (Kept::start(dial(&served.address)), Kept::start(dial(&served.address)));
    let ((_, busy_link), (_, calm_link)) = (busy.connection(0).await, calm.connection(0).await);
    calm_link.send(ToNode::Query(Box::new(query(1, raw("x")))));
    busy_link.send(ToNode::Query(Box::new(query(1, raw("x")))));
    busy.gateway.report_with(20).await; // with little to do they are equals
    // What waits counts as what was sent: a gateway that gets little credit could not send more.
    busy_link.send(ToNode::Demand(Demand { class: class(3), waiting: 56, first: None, among: 1 }));
    let got = |frame: &FromNode| frame.report.limit.queries;
    busy.gateway.heard.wait_for_one("most of the credit", |(_, frame)| got(frame) >= 35).await;
    calm.gateway.heard.wait_for_one("the rest", |(_, frame)| got(frame) <= 5).await;
    let least = calm.gateway.heard.all().iter().map(|(_, frame)| got(frame)).min();
    assert!(least >= Some(1), "{least:?}");
    for kept in [busy, calm] {
        kept.stop().await;
    }
    served.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_weighs_one_gateway_however_many_there_are_and_tells_the_part_that_all_of_them_leave() {
    const GATEWAYS: u32 = 40;
    const ANSWERS: u64 = 50;
    let served = Served::start(&Address::Sim(Host::new(6, Duration::from_micros(100))), config()).await;
    let all: Vec<Kept> = (0..GATEWAYS).map(|_| Kept::start(dial(&served.address))).collect();
    for (at, kept) in all.iter().enumerate() {
        let (_, link) = kept.connection(0).await;
        link.send(ToNode::Query(Box::new(query(0, raw("x")))));
        served.node.query(at).await;
    }
    // It weighs as much as nine others by now.
    let (_, link) = all[0].connection(0).await;
    for key in 1..=ANSWERS {
        link.send(ToNode::Query(Box::new(query(key, raw("y")))));
    }
    let waits = |waiting| ToNode::Demand(Demand { class: class(3), waiting, first: None, among: 1 });
    link.send(waits(64));
    let came = served.node.told.wait_for("all queries", |told| {
        let keys: Vec<_> =
            queries(told).filter(|query| query.input == raw("y")).map(|query| query.key).collect();
        (keys.len() as u64 == ANSWERS).then_some(keys)
    });
    let came = came.await;
    demanded(&served.node, 3, 64 + 2 * (GATEWAYS - 1)).await;
    let before = (served.weighed)();
    for key in &came {
        served.answer(*key, Buffer::new(), 480);
    }
    assert_eq!((served.weighed)() - before, came.len(), "each answer asks after its own gateway alone");
    all[0].gateway.answer_to(ANSWERS).await;
    let told = all[0].gateway.heard.all();
    let answers = told.iter().filter(|(_, frame)| matches!(frame.body, Body::Answer { .. }));
    let parts: Vec<u32> = answers.map(|(_, frame)| frame.report.limit.queries).collect();
    assert_eq!(parts, vec![480 * 9 / (9 + GATEWAYS - 1); came.len()]);
    // One that has gone leaves its part at once.
    let mut all = all.into_iter();
    let busy = all.next().expect("the first");
    for kept in all {
        kept.stop().await;
    }
    busy.gateway.report_with(480).await;
    busy.stop().await;
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_true_earlier_is_never_told_later() {
    let served = Served::start(&Address::Tcp("127.0.0.1:0".into()), config()).await;
    let kept = Kept::start(dial(&served.address));
    kept.gateway.report_with(8).await;
    // Whoever comes or goes has all told anew, by another thread, while the node goes on speaking.
    let others = dial(&served.address);
    let mut coming = tokio::task::JoinSet::new();
    coming.spawn(async move {
        for _ in 0..100 {
            let other = Kept::start(others.clone());
            other.connection(0).await;
            other.stop().await;
        }
    });
    let mut last = 8;
    let ended = loop {
        if let Some(ended) = coming.try_join_next() {
            break ended;
        }
        for _ in 0..50 {
            last += 1;
            served.say(Body::Report, last);
        }
        kept.gateway.report_with(last).await;
    };
    ended.expect("the others came and went");
    let told: Vec<u32> =
        kept.gateway.heard.all().iter().map(|(_, frame)| frame.report.limit.queries).collect();
    let back = told.windows(2).find(|pair| pair[1] < pair[0]);
    assert!(back.is_none(), "{back:?} among {} reports", told.len());
    kept.stop().await;
    served.stop().await;
}

#[tokio::test]
async fn what_waits_is_added_up_and_what_a_lost_gateway_had_is_taken_back() {
    let served = Served::start(&tcp(), config()).await;
    let (one, two) = (Kept::start(dial(&served.address)), Kept::start(dial(&served.address)));
    let ((_, first), (_, second)) = (one.connection(0).await, two.connection(0).await);
    let waits = |waiting, seconds| {
        let first = Some(Micros::from_secs(seconds));
        ToNode::Demand(Demand { class: class(5), waiting, first, among: 1 })
    };
    first.send(waits(3, 20));
    demanded(&served.node, 5, 3).await;
    second.send(waits(4, 10));
    let together = demanded(&served.node, 5, 7).await;
    let until = together.first.expect("queries wait");
    assert!(until <= Micros::from_secs(10) && until > Micros::from_secs(9), "{until}");
    second.send(ToNode::Query(Box::new(query(1, raw("x")))));
    let key = served.node.query(0).await.key;

    two.stop().await;
    cancelled(&served.node, key).await;
    let left = demanded(&served.node, 5, 3).await;
    assert!(left.first > Some(Micros::from_secs(18)), "{left:?}");
    // Its answer, when it comes after all, goes nowhere and harms nobody.
    served.answer(key, Buffer::new(), 8);
    first.send(ToNode::Demand(Demand { class: class(5), waiting: 0, first: None, among: 1 }));
    demanded(&served.node, 5, 0).await;
    one.stop().await;
    served.stop().await;
}

#[tokio::test]
async fn among_how_many_nodes_a_class_goes_round_is_told_less_where_several_gateways_ask() {
    let served = Served::start(&tcp(), config()).await;
    let (one, two) = (Kept::start(dial(&served.address)), Kept::start(dial(&served.address)));
    let ((_, first), (_, second)) = (one.connection(0).await, two.connection(0).await);
    let asks = |key| {
        let mut query = query(key, raw("x"));
        query.demand.among = 4;
        ToNode::Query(Box::new(query))
    };
    first.send(asks(1));
    assert_eq!(served.node.query(0).await.demand.among, 4, "who only listens counts for nothing");
    second.send(asks(2));
    assert_eq!(served.node.query(1).await.demand.among, 2);
    one.stop().await;
    two.stop().await;
    served.stop().await;
}

#[tokio::test]
async fn a_node_that_comes_back_is_joined_again() {
    let mut served = Served::start(&tcp(), config()).await;
    let address = served.address.clone();
    let kept = Kept::start(dial(&address));
    let (mut watched, link) = kept.connection(0).await;
    served.stop().await;
    timeout(PATIENCE, async { while watched.changed().await.is_ok() {} }).await.expect("the status ends");
    // Sending to one that is gone harms nobody.
    link.send(ToNode::Query(Box::new(query(1, raw("lost")))));
    served = Served::start(&address, config()).await;
    let (_, link) = kept.connection(1).await;
    link.send(ToNode::Query(Box::new(query(2, raw("found")))));
    let came = served.node.query(0).await;
    assert_eq!(came.input, raw("found"), "what was sent to the lost connection is not sent again");
    kept.stop().await;
    served.stop().await;
}

#[tokio::test]
async fn another_node_at_the_address_is_not_taken_for_the_one_that_was_there() {
    let served = Served::start(&tcp(), config()).await;
    let stranger = Dial { node: Some(NodeId(8)), ..dial(&served.address) };
    let kept = Kept::start(stranger);
    let right = Kept::start(dial(&served.address));
    right.connection(0).await;
    // The wrong one has had at least as long, many times over.
    for _ in 0..3 {
        Kept::start(dial(&served.address)).connection(0).await;
    }
    assert!(kept.joined.all().is_empty());
    kept.stop().await;
    right.stop().await;
    served.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_says_nothing_is_lost_within_the_stated_time_and_found_again() {
    let host = Host::new(3, Duration::from_micros(500));
    let served = Served::start(&Address::Sim(host.clone()), config()).await;
    let kept = Kept::start(dial(&served.address));
    let (mut watched, link) = kept.connection(0).await;
    link.send(ToNode::Query(Box::new(query(1, raw("x")))));
    let key = served.node.query(0).await.key;
    tokio::time::sleep(Duration::from_mins(1)).await; // a quiet minute loses nobody
    assert!(watched.has_changed().is_ok(), "an idle connection was given up");

    host.silence(true);
    let silent = Instant::now();
    timeout(PATIENCE, async { while watched.changed().await.is_ok() {} }).await.expect("the status ends");
    assert!(silent.elapsed() <= config().lost_within(), "{:?}", silent.elapsed());
    cancelled(&served.node, key).await;
    assert!(silent.elapsed() <= config().lost_within() + Duration::from_secs(1), "{:?}", silent.elapsed());

    host.silence(false);
    let (at, _) = {
        let found = kept.joined.wait_for("the node again", |joined| joined.get(1).cloned());
        found.await
    };
    assert!(at.elapsed() < Duration::from_secs(5));
    kept.stop().await;
    served.stop().await;
}

#[tokio::test(start_paused = true)]
async fn sending_to_a_node_that_does_not_read_never_waits() {
    let host = Host::new(4, Duration::from_micros(100));
    let served = Served::start(&Address::Sim(host.clone()), config()).await;
    let kept = Kept::start(dial(&served.address));
    let (mut watched, link) = kept.connection(0).await;
    host.silence(true);
    let began = Instant::now();
    // More than any queue holds, and less than the credit that was granted: not too much.
    let large = Buffer::from(vec![0; 1 << 20]);
    for key in 1..=100 {
        link.send(ToNode::Query(Box::new(query(key, crate::Input::Raw(large.clone())))));
    }
    assert_eq!(began.elapsed(), Duration::ZERO, "paused time moves only where something waits");
    timeout(PATIENCE, async { while watched.changed().await.is_ok() {} }).await.expect("the status ends");
    assert!(began.elapsed() <= config().lost_within(), "its silence is noticed: {:?}", began.elapsed());
    kept.stop().await;
    served.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_no_credit_bounds_ends_the_connection_by_name_when_too_much_of_it_waits() {
    let host = Host::new(4, Duration::from_micros(100));
    let served = Served::start(&Address::Sim(host.clone()), config()).await;
    let kept = Kept::start(dial(&served.address));
    let (mut watched, link) = kept.connection(0).await;
    host.silence(true);
    let began = Instant::now();
    for key in 0..10_000 {
        link.send(ToNode::Cancel { key: QueryKey(key) });
    }
    timeout(PATIENCE, async { while watched.changed().await.is_ok() {} }).await.expect("the status ends");
    assert!(began.elapsed() < config().heartbeat, "overflow is told at once, not by silence");
    kept.stop().await;
    served.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_way_that_takes_long_is_taken_off_the_deadline() {
    let host = Host::new(5, Duration::from_millis(20));
    let served = Served::start(&Address::Sim(host), config()).await;
    let kept = Kept::start(dial(&served.address));
    let (mut watched, link) = kept.connection(0).await;
    // Some heartbeats, until both sides know the way.
    let known = watched.wait_for(|status| status.info.rtt.mean > 15_000.0 && status.info.rtt.var > 0.0);
    let rtt = timeout(PATIENCE, known).await.expect("in time").expect("a node").info.rtt;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let sent = query(1, raw("x"));
    link.send(ToNode::Query(Box::new(sent.clone())));
    let came = served.node.query(0).await;
    let (gone, less) =
        (came.spent.saturating_sub(sent.spent), sent.deadline_in.saturating_sub(came.deadline_in));
    assert!(gone >= Micros(5_000) && gone <= Micros(20_000), "one way is about 10 ms: {gone} of {rtt:?}");
    assert!(less >= Micros(10_000) && less <= Micros(40_000), "both ways are about 20 ms: {less}");
    kept.stop().await;
    served.stop().await;
}

#[tokio::test]
async fn a_moment_in_a_status_is_told_by_the_receivers_clock() {
    let mut node_config = config();
    node_config.now = std::sync::Arc::new(|| Time(5_000_000));
    let served = Served::start(&tcp(), node_config).await;
    let point = BatchPoint { batch: 1, mean_us: 1e3, var_us2: 0.0, p99_us: 1e3, samples: 9 };
    let offer = Offer {
        task: class(3).task,
        ordinal: 1,
        ready: Ready::Loading { at: Time(5_700_000) },
        run: RunModel::from_points(&[point], Moments::ZERO).expect("a usable point"),
        width: 1,
    };
    served.status.send_modify(|status| status.info.offers.push(offer));
    let kept = Kept::start(dial(&served.address)); // its clock says 1,000,000
    let (mut watched, _) = kept.connection(0).await;
    let known = watched.wait_for(|status| !status.info.offers.is_empty());
    let ready = timeout(PATIENCE, known).await.expect("in time").expect("a node").info.offers[0].ready;
    let Ready::Loading { at } = ready else { panic!("{ready:?}") };
    assert!(at <= Time(1_700_000) && at > Time(1_600_000), "{at:?}");
    kept.stop().await;
    served.stop().await;
}

#[tokio::test]
async fn a_stale_unix_socket_is_replaced_and_a_live_one_is_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = Address::Unix(folder.path().join("node.sock"));
    drop(crate::Listener::bind(&address).await.expect("a new socket")); // leaves its file behind
    let listener = crate::Listener::bind(&address).await.expect("a socket that nobody listens on");
    assert!(Stream::connect(&address).await.is_ok());
    assert!(crate::Listener::bind(&address).await.is_err(), "it is in use");
    drop(listener);
}

#[test]
fn addresses_are_read_as_people_write_them() {
    assert_eq!("10.0.0.1:7400".parse(), Ok(Address::Tcp("10.0.0.1:7400".into())));
    assert_eq!("[::1]:7400".parse(), Ok(Address::Tcp("[::1]:7400".into())));
    assert_eq!("unix:/run/a".parse(), Ok(Address::Unix("/run/a".into())));
    for bad in ["", "host", "host:", ":1", "host:99999", "unix:"] {
        assert!(bad.parse::<Address>().is_err(), "{bad}");
    }
}

#[tokio::test]
async fn a_query_that_is_sent_again_before_it_is_taken_back_is_told_no_and_its_connection_stands() {
    let served = Served::start(&tcp(), config()).await;
    let kept = Kept::start(dial(&served.address));
    let (_, link) = kept.connection(0).await;
    for returnable in [true, false] {
        let key = 5 + u64::from(returnable);
        let again = || {
            let again = QueryFrame { returnable, ..query(key, raw("again")) };
            link.send(ToNode::Query(Box::new(again)));
        };
        again();
        again();
        let find = |heard: &[(NodeId, FromNode)]| {
            heard.iter().find_map(|(_, frame)| match &frame.body {
                Body::HandedBack { key: found, why } if found.0 == key => Some((true, why.clone())),
                Body::Refused { key: found, refusal } if found.0 == key => Some((false, refusal.clone())),
                Body::HandedBack { .. }
                | Body::Refused { .. }
                | Body::Answer { .. }
                | Body::BadInput { .. }
                | Body::Declined { .. }
                | Body::Claim { .. }
                | Body::Report => None,
            })
        };
        let (back, why) = kept.gateway.heard.wait_for("a no to the second", find).await;
        assert!(back == returnable && matches!(why, Refusal::NothingRunnable { .. }), "{back} {why:?}");
        let first = queries(&served.node.told.all()).last().expect("the first came").key;
        link.send(ToNode::Cancel { key: QueryKey(key) });
        cancelled(&served.node, first).await;
        again();
        served.node.query(if returnable { 1 } else { 3 }).await;
    }
    assert_eq!(kept.joined.all().len(), 1);
    kept.stop().await;
    served.stop().await;
}

#[tokio::test]
async fn a_node_whose_status_is_too_large_says_so_and_is_joined_once_it_is_not() {
    let served = Served::start(&tcp(), config()).await;
    let grow = |bytes: usize| {
        served.status.send_modify(|status| status.warnings = vec!["w".repeat(bytes)]);
    };
    let kept = Kept::start(dial(&served.address));
    let (mut known, _) = kept.connection(0).await;
    let too_large = usize::try_from(limits::RARE_HEAD).expect("small");
    grow(too_large);
    let ends = async { while known.changed().await.is_ok() {} };
    timeout(PATIENCE, ends).await.expect("it is not joined any longer");
    let lost = greet(&dial(&served.address), None).await.err().expect("it cannot say what it is");
    assert!(lost.to_string().contains("a Status frame that must be told has 838"), "{lost}");
    grow(1);
    kept.connection(1).await;
    kept.stop().await;
    served.stop().await;
}
