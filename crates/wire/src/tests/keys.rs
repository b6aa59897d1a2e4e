//! Connections in a cluster that has a key.

use super::{Kept, NODE, PATIENCE, Served, config, dial, query, raw};
use crate::codec::{self, Hello, Role};
use crate::gateway::greet;
use crate::{Address, Config, Dial, Key, ToNode};
use bytes::Bytes as Buffer;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

const KEY: &[u8] = b"a key that nobody would guess";

fn with(key: Option<&[u8]>) -> Config {
    let key = key.map(|key| Key::new(key).expect("long enough"));
    Config { key, back_off: Duration::from_millis(1), back_off_most: Duration::from_millis(5), ..config() }
}

async fn served(key: Option<&[u8]>) -> Served {
    Served::start(&Address::Tcp("127.0.0.1:0".into()), with(key)).await
}

#[tokio::test]
async fn who_has_the_clusters_key_is_served() {
    let served = served(Some(KEY)).await;
    let kept = Kept::start(Dial { config: with(Some(KEY)), ..dial(&served.address) });
    let (status, link) = kept.connection(0).await;
    assert_eq!(status.borrow().node, NODE);
    link.send(ToNode::Query(Box::new(query(1, raw("x")))));
    let asked = served.node.query(0).await;
    served.answer(asked.key, Buffer::from_static(b"[]"), 8);
    kept.gateway.answer_to(1).await;
    kept.stop().await;
    served.stop().await;
}

#[tokio::test]
async fn who_has_none_or_another_key_is_not_joined_on_either_side() {
    for (nodes, gateways) in [
        (Some(KEY), None),
        (Some(KEY), Some(&b"a key that somebody guessed"[..])),
        // A stranger who listens where a node was is not told any query.
        (None, Some(KEY)),
    ] {
        let served = served(nodes).await;
        let greeted = greet(&Dial { config: with(gateways), ..dial(&served.address) }, None).await;
        let lost = greeted.err().expect("it is not let in");
        // Said here, or by the other side in its last words.
        assert!(lost.to_string().contains("cluster's key"), "{nodes:?} {gateways:?}: {lost}");
        assert!(served.node.told.all().is_empty());
        served.stop().await;
    }
}

#[tokio::test]
async fn a_recorded_greeting_and_a_query_without_a_proof_are_turned_away_by_name() {
    let served = served(Some(KEY)).await;
    let Address::Tcp(address) = served.address.clone() else { panic!("TCP was asked for") };
    let hello = Hello { nonce: Some("00".into()), ..Hello::new("replayed", Role::Gateway, &config()) };
    let bytes = |encoded: Result<crate::frame::Encoded, _>| {
        let encoded: crate::frame::Encoded = encoded.expect("small");
        [encoded.head.as_slice(), &encoded.payload[0], &encoded.payload[1]].concat()
    };
    // What another connection proved holds for that connection's number only.
    let key = Key::new(KEY).expect("long enough");
    let old = key.proof(crate::key::Proves::Connecting, "11", "00", Role::Gateway);
    let asked = bytes(codec::to_node(&ToNode::Query(Box::new(query(1, raw("x"))))));
    for second in [bytes(codec::proof(old)), asked] {
        let mut stream = TcpStream::connect(&address).await.expect("it listens");
        stream.write_all(&bytes(codec::hello(&hello))).await.expect("it reads");
        stream.write_all(&second).await.expect("it reads");
        let mut all = Vec::new();
        let _ = timeout(PATIENCE, stream.read_to_end(&mut all)).await.expect("the connection ends");
        let text = String::from_utf8_lossy(&all).into_owned();
        assert!(text.contains("cluster's key") || text.contains("proof"), "{text}");
        assert!(!text.contains("memory_budget"), "nothing of the node is told before the proof: {text}");
    }
    assert!(served.node.told.all().is_empty());
    served.stop().await;
}
