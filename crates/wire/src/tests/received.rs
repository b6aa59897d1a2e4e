//! What a process holds of large frames that are not whole yet, over all who send.

use super::{Body, Kept, Served, config, dial, query, raw};
use crate::sim::Host;
use crate::{Address, Config, Dial, FromNode, Input, Received, ToNode};
use bytes::Bytes as Buffer;
use modelless_types::{Bytes, NodeId, QueryKey, Refusal};
use std::sync::Arc;
use std::time::Duration;

const LARGE: usize = 700_000;
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
    let refused = |(_, frame): &(NodeId, FromNode)| match &frame.body {
        Body::Refused { key: QueryKey(1), refusal } => Some(refusal.clone()),
        Body::Refused { .. }
        | Body::Answer { .. }
        | Body::BadInput { .. }
        | Body::HandedBack { .. }
        | Body::Report => None,
    };
    let find = |heard: &[(NodeId, FromNode)]| heard.iter().find_map(refused);
    let why = tokio::select! {
        why = gateways[0].gateway.heard.wait_for("a refusal", find) => why,
        why = gateways[1].gateway.heard.wait_for("a refusal", find) => why,
    };
    assert_eq!(why, Refusal::BytesFull { limit: MOST });
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
async fn an_answer_that_there_is_no_room_for_becomes_a_refusal_of_its_own_query() {
    let host = Host::new(6, Duration::from_micros(500));
    let served = Served::start(&Address::Sim(host.clone()), config()).await;
    let received = Received::new(Bytes(100_000));
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
        let room = Refusal::BytesFull { limit: Bytes(100_000) };
        matches!(&frame.body, Body::Refused { key: QueryKey(1), refusal } if *refusal == room)
    };
    kept.gateway.heard.wait_for_one("a refusal", no_room).await;
    assert_eq!(kept.gateway.answer_to(2).await.body.len(), 90_000);
    assert_eq!(received.held(), Bytes(0));
    kept.stop().await;
    served.stop().await;
}
