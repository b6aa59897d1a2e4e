//! Sides that serve different stores, for which the same numbers mean other models.

use super::{Kept, PATIENCE, Served, config, dial};
use crate::codec::{self, Hello, Role};
use crate::gateway::greet;
use crate::lost::Lost;
use crate::{Address, Config, Dial, Key};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

fn of(store: Option<&str>, key: Option<&[u8]>) -> Config {
    let store = store.map(str::to_owned);
    let key = key.map(|key| Key::new(key).expect("long enough"));
    let (back_off, back_off_most) = (Duration::from_millis(1), Duration::from_millis(5));
    Config { back_off, back_off_most, key, store, ..config() }
}

async fn served(config: Config) -> Served {
    Served::start(&Address::Tcp("127.0.0.1:0".into()), config).await
}

#[tokio::test]
async fn who_serves_the_same_store_is_joined_and_who_serves_another_is_not() {
    let key = Some(&b"a key that nobody would guess"[..]);
    for (nodes, gateways, key) in [
        (Some("one"), Some("two"), None),
        (Some("one"), Some("two"), key),
        (Some("one"), None, None),
        (None, Some("one"), None),
    ] {
        let served = served(of(nodes, key)).await;
        let wrong = greet(&Dial { config: of(gateways, key), ..dial(&served.address) }, None).await;
        let lost = wrong.err().expect("it is not joined");
        assert!(matches!(lost, Lost::OtherStore), "{nodes:?} {gateways:?}: {lost}");
        let kept = Kept::start(Dial { config: of(nodes, key), ..dial(&served.address) });
        kept.connection(0).await;
        kept.stop().await;
        served.stop().await;
    }
}

#[tokio::test]
async fn a_node_tells_who_serves_another_store_so_and_nothing_of_itself() {
    let served = served(of(Some("one"), None)).await;
    let Address::Tcp(address) = served.address.clone() else { panic!("TCP was asked for") };
    let hello = Hello::new("stray", Role::Gateway, &of(Some("two"), None));
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    stream.write_all(&codec::hello(&hello).expect("small").head).await.expect("it reads");
    let mut all = Vec::new();
    let _ = timeout(PATIENCE, stream.read_to_end(&mut all)).await.expect("the connection ends");
    let text = String::from_utf8_lossy(&all).into_owned();
    assert!(text.contains("serves another database"), "{text}");
    assert!(!text.contains("memory_budget"), "{text}");
    served.stop().await;
}
