use super::*;
use crate::config::Config;
use axum::routing::{get, post};
use std::sync::atomic::AtomicUsize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

/// Counts what reaches the socket.
struct Counted<S> {
    stream: S,
    writes: Arc<AtomicUsize>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        // As a socket does, and unlike the stream inside: all parts at once.
        let whole: Vec<u8> = parts.iter().flat_map(|part| part.to_vec()).collect();
        Pin::new(&mut self.stream).poll_write(cx, &whole)
    }
    fn is_write_vectored(&self) -> bool {
        true
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

struct Served {
    client: DuplexStream,
    writes: Arc<AtomicUsize>,
    stop: CancellationToken,
    tasks: tokio::task::JoinSet<()>,
}

fn routes() -> Way {
    let answers = get(|| async { "hello" });
    Way::to(Router::new().route("/", answers).route("/", post(|body: String| async { body })))
}

fn led(way: Way) -> Served {
    served(way, Config::default())
}

fn serving(config: Config) -> Served {
    served(routes(), config)
}

fn served(way: Way, config: Config) -> Served {
    let (client, server) = duplex(1 << 20);
    let writes = Arc::new(AtomicUsize::new(0));
    let stop = CancellationToken::new();
    let (counted, stopped) = (Counted { stream: server, writes: Arc::clone(&writes) }, stop.clone());
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(async move {
        serve(counted, way, &config, Arc::default(), stopped).await;
    });
    Served { client, writes, stop, tasks }
}

impl Served {
    async fn exchange(&mut self, request: &str) -> String {
        self.client.write_all(request.as_bytes()).await.unwrap();
        let mut answer = vec![0; 4096];
        let read = self.client.read(&mut answer).await.unwrap();
        String::from_utf8(answer[..read].to_vec()).unwrap()
    }

    /// How long until the server hangs up.
    async fn closed_after(mut self) -> Duration {
        let started = Instant::now();
        self.tasks.join_next().await.unwrap().unwrap();
        started.elapsed()
    }
}

const GET: &str = "GET / HTTP/1.1\r\nhost: x\r\n\r\n";

#[tokio::test]
async fn an_answer_is_one_write() {
    let mut served = serving(Config::default());
    for at in 1..=5 {
        let answer = served.exchange(GET).await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("hello"), "{answer}");
        assert_eq!(served.writes.load(Ordering::Relaxed), at);
    }
}

#[tokio::test(start_paused = true)]
async fn a_head_that_trickles_in_is_given_up_after_its_time() {
    let mut served = serving(Config::default());
    served.client.write_all(b"GET / HTTP/1.1\r\nhos").await.unwrap();
    let after = served.closed_after().await;
    assert!((Duration::from_secs(10)..Duration::from_secs(12)).contains(&after), "{after:?}");
}

#[tokio::test(start_paused = true)]
async fn every_byte_does_not_buy_a_head_more_time() {
    let mut served = serving(Config::default());
    assert!(served.exchange(GET).await.ends_with("hello"));
    let started = Instant::now();
    let mut sent = 0;
    // A byte a second: the head began with the first of them.
    while served.client.write_all(b"G").await.is_ok() {
        sleep(Duration::from_secs(1)).await;
        sent += 1;
        assert!(sent < 60, "it is never given up");
    }
    let after = started.elapsed();
    assert!((Duration::from_secs(10)..Duration::from_secs(13)).contains(&after), "{after:?}");
}

#[tokio::test(start_paused = true)]
async fn of_one_address_only_some_heads_may_come_slowly() {
    let places = Places::new(1);
    let from: IpAddr = "192.0.2.1".parse().unwrap();
    let slow = || Way { slow: Some((Arc::clone(&places), from)), ..Way::to(Router::new()) };
    let (mut first, mut second) = (led(slow()), led(slow()));
    let mut quick = led(Way { slow: Some((Arc::clone(&places), from)), ..routes() });
    for _ in 0..3 {
        assert!(quick.exchange(GET).await.ends_with("hello"), "a head that comes at once takes no place");
        first.client.write_all(b"G").await.unwrap();
        sleep(Duration::from_millis(500)).await;
    }
    let started = Instant::now();
    while second.client.write_all(b"G").await.is_ok() {
        sleep(Duration::from_millis(500)).await;
        assert!(started.elapsed() < Duration::from_secs(5), "it is never given up");
    }
    assert!(first.client.write_all(b"G").await.is_ok(), "that one was there before");
}

#[tokio::test(start_paused = true)]
async fn who_says_nothing_is_slow_too() {
    let places = Places::new(1);
    let from: IpAddr = "192.0.2.1".parse().unwrap();
    let slow = || Way { slow: Some((Arc::clone(&places), from)), ..Way::to(Router::new()) };
    let (first, second) = (led(slow()), led(slow()));
    let (first, second) = tokio::join!(first.closed_after(), second.closed_after());
    let seconds = |least: u64| Duration::from_secs(least)..Duration::from_secs(least + 1);
    assert!(seconds(1).contains(&second), "{second:?}");
    assert!(seconds(10).contains(&first), "{first:?}");
}

#[tokio::test(start_paused = true)]
async fn a_connection_may_rest_between_requests_for_longer_but_not_for_ever() {
    let mut served = serving(Config::default());
    for _ in 0..3 {
        assert!(served.exchange(GET).await.ends_with("hello"));
        sleep(Duration::from_mins(1)).await;
    }
    assert!(served.exchange(GET).await.ends_with("hello"));
    let after = served.closed_after().await;
    assert!((Duration::from_secs(75)..Duration::from_secs(78)).contains(&after), "{after:?}");
}

#[tokio::test(start_paused = true)]
async fn whoever_connects_and_says_nothing_is_closed() {
    let after = serving(Config::default()).closed_after().await;
    assert!((Duration::from_secs(10)..Duration::from_secs(12)).contains(&after), "{after:?}");
}

#[tokio::test(start_paused = true)]
async fn a_stop_ends_idle_connections_at_once() {
    let mut served = serving(Config::default());
    assert!(served.exchange(GET).await.ends_with("hello"));
    served.stop.cancel();
    let after = served.closed_after().await;
    assert!(after <= Duration::from_secs(1), "{after:?}");
}

#[test]
fn the_phase_counts_its_changes() {
    let phase = Phase(AtomicU32::new(At::Head as u32));
    assert_eq!(phase.now(), (At::Head, 0));
    for (times, at) in [(1, At::Busy), (2, At::Idle), (3, At::Head), (4, At::Busy)] {
        phase.set(at);
        assert_eq!(phase.now(), (at, times));
    }
}
