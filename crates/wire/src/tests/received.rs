//! What a process holds of large frames that are not whole yet, over all who send.

use super::{Body, Kept, PATIENCE, Served, config, dial, query, raw};
use crate::codec::{self, Frame, Hello, Role};
use crate::config::limits;
use crate::frame::{Bound, Encoded, Header, STREAM};
use crate::link::Link;
use crate::reader::Reader;
use crate::sim::Host;
use crate::stream::Stream;
use crate::{Address, Config, Dial, FromNode, Input, QueryFrame, Received, ToNode};
use bytes::Bytes as Buffer;
use modelless_types::{Bytes, Micros, NodeId, QueryKey, Refusal};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, interval, timeout};

const LARGE: usize = 400_000;
const MOST: Bytes = Bytes(1_000_000);

fn bounded() -> (Config, Arc<Received>) {
    let received = Received::new(MOST);
    (Config { received: Arc::clone(&received), ..config() }, received)
}

fn large(key: u64) -> ToNode {
    ToNode::Query(Box::new(query(key, Input::Raw(Buffer::from(vec![7; LARGE])))))
}

#[tokio::test(start_paused = true)]
async fn gateways_that_each_keep_their_bound_do_not_take_a_nodes_memory_together() {
    let host = Host::new(5, Duration::from_micros(500));
    let (config, received) = bounded();
    let served = Served::start(&Address::Sim(host.clone()), config).await;
    let gateways = [Kept::start(dial(&served.address)), Kept::start(dial(&served.address))];
    let mut links = Vec::new();
    for gateway in &gateways {
        links.push(gateway.connection(0).await.1);
    }
    host.throttle(1_000_000);
    for link in &links {
        link.send(large(1));
    }
    // One of them gets in; the other hears why it does not, by name, and its connection stands.
    let back = |(_, frame): &(NodeId, FromNode)| match &frame.body {
        Body::HandedBack { key: QueryKey(1), why } => Some(why.clone()),
        Body::Refused { .. }
        | Body::Answer { .. }
        | Body::BadInput { .. }
        | Body::HandedBack { .. }
        | Body::Declined { .. }
        | Body::Claim { .. }
        | Body::Report => None,
    };
    let find = |heard: &[(NodeId, FromNode)]| heard.iter().find_map(back);
    let why = tokio::select! {
        why = gateways[0].gateway.heard.wait_for("one that is handed back", find) => why,
        why = gateways[1].gateway.heard.wait_for("one that is handed back", find) => why,
    };
    assert_eq!(why, Refusal::BytesFull { limit: MOST }, "another node may have room");
    let came = served.node.query(0).await;
    assert!(
        matches!(&came.input, Input::Raw(bytes) if bytes.len() == LARGE && bytes.iter().all(|b| *b == 7))
    );
    assert_eq!(received.held(), Bytes(0), "what was handed over, or dropped, is held no longer");
    // There is room again.
    for (at, link) in links.iter().enumerate() {
        link.send(large(2));
        served.node.query(at + 1).await;
    }
    for gateway in gateways {
        assert_eq!(gateway.joined.all().len(), 1, "no connection ended over it");
        gateway.stop().await;
    }
    served.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_input_that_there_is_no_room_for_is_refused_where_no_other_node_may_have_it() {
    let host = Host::new(8, Duration::from_micros(500));
    let small = Config { received: Received::new(Bytes(100_000)), ..config() };
    let served = Served::start(&Address::Sim(host), small).await;
    let kept = Kept::start(dial(&served.address));
    let (_, link) = kept.connection(0).await;
    let input = Input::Raw(Buffer::from(vec![7; LARGE]));
    link.send(ToNode::Query(Box::new(QueryFrame { returnable: false, ..query(1, input) })));
    let no_room = |(_, frame): &(NodeId, FromNode)| {
        let room = Refusal::BytesFull { limit: Bytes(100_000) };
        matches!(&frame.body, Body::Refused { key: QueryKey(1), refusal } if *refusal == room)
    };
    kept.gateway.heard.wait_for_one("a refusal", no_room).await;
    kept.stop().await;
    served.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_there_is_no_room_for_becomes_a_refusal_of_its_own_query() {
    let host = Host::new(6, Duration::from_micros(500));
    let served = Served::start(&Address::Sim(host.clone()), config()).await;
    let received = Received::new(Bytes(200_000));
    let config = Config { received: Arc::clone(&received), ..config() };
    let kept = Kept::start(Dial { config, ..dial(&served.address) });
    let (_, link) = kept.connection(0).await;
    for key in [1, 2] {
        link.send(ToNode::Query(Box::new(query(key, raw("x")))));
        let came = served.node.query(usize::try_from(key).expect("small") - 1).await;
        let body = Buffer::from(vec![9; if key == 1 { LARGE } else { 90_000 }]);
        served.answer(came.key, body, 8);
    }
    let no_room = |(_, frame): &(NodeId, FromNode)| {
        let room = Refusal::BytesFull { limit: Bytes(200_000) };
        matches!(&frame.body, Body::Refused { key: QueryKey(1), refusal } if *refusal == room)
    };
    kept.gateway.heard.wait_for_one("a refusal", no_room).await;
    assert_eq!(kept.gateway.answer_to(2).await.body.len(), 90_000);
    assert_eq!(received.held(), Bytes(0));
    kept.stop().await;
    served.stop().await;
}

/// As they are, between other frames.
fn as_is(head: Vec<u8>) -> Encoded {
    Encoded { head, payload: [Buffer::new(), Buffer::new()], bound: Bound::Own }
}

fn part(bytes: usize) -> Encoded {
    as_is([Header::of_part(1, bytes).to_vec(), vec![7; bytes]].concat())
}

#[tokio::test(start_paused = true)]
async fn a_large_frame_that_does_not_get_on_is_dropped_and_refused_by_name_and_its_connection_stands() {
    let host = Host::new(7, Duration::from_micros(500));
    let (config, received) = bounded();
    let served = Served::start(&Address::Sim(host), config).await;
    let link = Link::new(Stream::connect(&served.address).await.expect("a node"));
    let mut reader = Reader::new(Arc::clone(&link), Received::new(MOST));
    reader.greeted();
    link.say(codec::hello(&Hello::new("stalls", Role::Gateway, &super::config())));
    let mut begun = codec::to_node(&large(1)).expect("small enough").head;
    begun[STREAM].copy_from_slice(&1_u16.to_le_bytes());
    link.send(as_is(begun));
    link.send(part(limits::PART));
    let began = Instant::now();
    // Everything else is as it should be.
    let mut beat = interval(Duration::from_millis(250));
    let refused = async {
        loop {
            tokio::select! {
                lost = link.drain() => panic!("its connection ended: {lost}"),
                _ = beat.tick() => link.say(codec::ping(0, Micros(0))),
                came = reader.next() => {
                    let Frame::FromNode(frame) = came.expect("a frame").frame else { continue };
                    if let Body::Refused { key, refusal } = frame.body {
                        return (key, refusal);
                    }
                }
            }
            if began.elapsed() > Duration::from_secs(1) && began.elapsed() < limits::STALLED {
                assert_eq!(received.held(), Bytes(limits::PART as u64));
            }
        }
    };
    let (key, refusal) = timeout(PATIENCE, refused).await.expect("a refusal");
    assert!(key == QueryKey(1) && matches!(refusal, Refusal::TooLate { .. }), "{key} {refusal:?}");
    let took = began.elapsed();
    assert!(took >= limits::STALLED && took < limits::STALLED + Duration::from_secs(1), "{took:?}");
    assert_eq!(received.held(), Bytes(0));
    // The rest of it comes after all, and then others.
    let mut left = LARGE - limits::PART;
    while left > 0 {
        let now = left.min(limits::PART);
        link.send(part(now));
        left -= now;
    }
    link.send(codec::to_node(&ToNode::Query(Box::new(query(2, raw("x"))))).expect("small"));
    let came = tokio::select! {
        lost = link.drain() => panic!("its connection ended: {lost}"),
        came = served.node.query(0) => came,
    };
    assert_eq!((came.input, received.held()), (raw("x"), Bytes(0)));
    served.stop().await;
}
