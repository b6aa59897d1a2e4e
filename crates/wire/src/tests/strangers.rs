//! Who connects and proves nothing, and who is connected to and says nothing.

use super::{Kept, PATIENCE, Served, config, dial};
use crate::codec::{self, Hello, Role};
use crate::config::limits;
use crate::sim::Host;
use crate::{Address, Config, Dial, Key};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

fn with_key(handshake: Duration) -> Config {
    let key = Key::new(b"a key that nobody would guess").expect("long enough");
    Config { key: Some(key), handshake, ..config() }
}

async fn connect(served: &Served) -> TcpStream {
    TcpStream::connect(served.address.to_string()).await.expect("it listens")
}

/// All that is said until the end.
async fn last_words(mut stream: TcpStream) -> String {
    let mut all = Vec::new();
    let _ = timeout(PATIENCE, stream.read_to_end(&mut all)).await.expect("the connection ends");
    String::from_utf8_lossy(&all).into_owned()
}

fn hello() -> Vec<u8> {
    let hello = Hello { nonce: Some("00".into()), ..Hello::new("stranger", Role::Gateway, &config()) };
    codec::hello(&hello).expect("small").head
}

#[tokio::test]
async fn strangers_that_say_nothing_make_room_for_one_that_has_the_key() {
    // So much time that only their number ends them.
    let patient = with_key(Duration::from_mins(10));
    let served = Served::start(&Address::Tcp("127.0.0.1:0".into()), patient.clone()).await;
    let mut silent = Vec::new();
    for at in 0..=limits::STRANGERS {
        let mut stream = connect(&served).await;
        if at % 2 == 0 {
            stream.write_all(&hello()).await.expect("it reads"); // and proves nothing
        }
        silent.push(stream);
    }
    let oldest = silent.remove(0);
    let why = last_words(oldest).await;
    assert!(why.contains("64 connections have not greeted yet"), "{why}");
    let kept = Kept::start(Dial { config: patient, ..dial(&served.address) });
    kept.connection(0).await;
    // It has greeted, so its place is free again and nobody else had to go but the next oldest.
    let second = silent.remove(0);
    last_words(second).await;
    let mut third = silent.remove(0);
    let still = timeout(Duration::from_millis(50), third.read(&mut [0; 4_096])).await;
    assert!(!matches!(still, Ok(Ok(0))), "nobody needed its place");
    kept.stop().await;
    served.stop().await;
}

#[tokio::test]
async fn a_stranger_that_takes_too_long_is_told_so_however_much_it_says() {
    let hasty = with_key(Duration::from_millis(200));
    let served = Served::start(&Address::Tcp("127.0.0.1:0".into()), hasty).await;
    let (silent, mut greeted, mut slow) =
        (connect(&served).await, connect(&served).await, connect(&served).await);
    greeted.write_all(&hello()).await.expect("it reads");
    // One byte after the other is no greeting either.
    let mut dripping = JoinSet::new();
    dripping.spawn(async move {
        for byte in hello() {
            tokio::time::sleep(Duration::from_millis(20)).await;
            if slow.write_all(&[byte]).await.is_err() {
                break;
            }
        }
        last_words(slow).await
    });
    let dripped = dripping.join_next().await.expect("it ends").expect("no panic");
    for why in [last_words(silent).await, last_words(greeted).await, dripped] {
        assert!(why.contains("no greeting came within 200ms"), "{why}");
    }
    served.stop().await;
}

/// The longest wait, and half of it.
fn between(gap: Duration) -> bool {
    let most = config().back_off_most;
    gap >= most / 2 && gap <= most + Duration::from_millis(50)
}

#[tokio::test(start_paused = true)]
async fn a_node_that_accepts_and_says_nothing_is_tried_less_and_less_often() {
    let host = Host::new(5, Duration::from_micros(100));
    let listening = host.listen();
    let kept = Kept::start(dial(&Address::Sim(host)));
    let mut gaps = Vec::new();
    let mut held = Vec::new();
    let mut last = Instant::now();
    for _ in 0..12 {
        held.push(timeout(PATIENCE, listening.accept()).await.expect("it tries again"));
        // What the greeting took is no wait.
        gaps.push(last.elapsed().saturating_sub(config().handshake));
        last = Instant::now();
    }
    assert!(gaps[1] <= config().back_off + Duration::from_millis(50), "{gaps:?}");
    assert!(gaps[8..].iter().all(|gap| between(*gap)), "{gaps:?}");
    assert!(kept.joined.all().is_empty());
    kept.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_greets_and_then_says_nothing_is_tried_less_and_less_often_too() {
    let host = Host::new(5, Duration::from_micros(100));
    let served = Served::start(&Address::Sim(host.clone()), config()).await;
    let kept = Kept::start(dial(&served.address));
    let mut gaps = Vec::new();
    for count in 0..10 {
        let (mut watched, _) = kept.connection(count).await;
        host.silence(true);
        timeout(PATIENCE, async { while watched.changed().await.is_ok() {} }).await.expect("it is lost");
        host.silence(false);
        let lost = Instant::now();
        kept.connection(count + 1).await;
        gaps.push(lost.elapsed());
    }
    assert!(gaps[7..].iter().all(|gap| *gap >= config().back_off_most / 2), "{gaps:?}");
    // Once it was alive for a while, losing it again is nothing special.
    let (mut watched, _) = kept.connection(10).await;
    tokio::time::sleep(config().proven + Duration::from_secs(1)).await;
    host.cut();
    timeout(PATIENCE, async { while watched.changed().await.is_ok() {} }).await.expect("it is lost");
    let lost = Instant::now();
    kept.connection(11).await;
    assert!(lost.elapsed() <= config().back_off + Duration::from_millis(50), "{:?}", lost.elapsed());
    kept.stop().await;
    served.stop().await;
}
