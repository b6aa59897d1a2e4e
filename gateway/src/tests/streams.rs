use super::world::{Does, PNG, Running, World};
use modelless_store::{EventKind, NewEvent, Store as _, UnixMicros};
use modelless_testkit::{Connection, Request};
use modelless_types::Refusal;
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

const STREAM: &str = "text/event-stream";

/// An answer that goes on, line by line.
struct Lines(BufReader<TcpStream>);

impl Lines {
    fn open(address: SocketAddr, request: &Request) -> Self {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(&request.to_bytes()).unwrap();
        let mut lines = Self(BufReader::new(stream));
        assert!(lines.next().unwrap().contains("200"));
        // The head's other lines, and the first piece: from then on whatever happens is told.
        while !lines.next().unwrap().starts_with("retry:") {}
        lines
    }

    fn next(&mut self) -> Option<String> {
        let mut line = String::new();
        (self.0.read_line(&mut line).unwrap() > 0).then_some(line)
    }

    /// The rest of the next line that begins so.
    fn next_with(&mut self, begin: &str) -> String {
        loop {
            let line = self.next().expect("it ended");
            if let Some(rest) = line.strip_prefix(begin) {
                return rest.trim().to_owned();
            }
        }
    }

    fn data(&mut self) -> Value {
        serde_json::from_str(&self.next_with("data: ")).unwrap()
    }
}

#[tokio::test]
async fn who_does_not_ask_for_events_is_not_left_waiting_for_an_end() {
    let world = World::new().await;
    assert_eq!(world.get("/v1/decisions").await.refusal(), (406, "not_acceptable".to_owned()));
    assert_eq!(world.get("/v1/decisions?task=none").await.refusal(), (404, "unknown_task".to_owned()));
    assert_eq!(world.get("/v1/decisions?per_second=0").await.refusal(), (400, "malformed".to_owned()));
}

async fn blocking<T: Send + 'static>(what: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(what).await.unwrap()
}

fn event(what: &str) -> NewEvent {
    NewEvent {
        kind: EventKind::Plan,
        node: None,
        variant: None,
        what: what.to_owned(),
        cause: "a test".into(),
        who: "somebody".into(),
        at: UnixMicros(1),
    }
}

fn asked() -> Request {
    Request::post("/v1/tasks/fashion?accuracy=0.85&latency_ms=500")
        .header("content-type", "image/png")
        .body(PNG)
}

async fn watching(run: &Running, target: &str) -> Lines {
    let (address, request) = (run.addresses.http, Request::get(target).header("accept", STREAM));
    blocking(move || Lines::open(address, &request)).await
}

#[tokio::test]
async fn what_queries_come_to_is_told_to_those_who_watch() {
    let run = World::new().await.run().await;
    let address = run.addresses.http;
    let ask = move || Connection::open(address).unwrap().exchange(&asked()).unwrap().status;
    assert_eq!(blocking(ask).await, 200);
    let mut all = watching(&run, "/v1/decisions").await;
    let mut other = watching(&run, "/v1/decisions?task=arrays").await;
    assert_eq!(blocking(ask).await, 200);
    *run.node.does.lock().unwrap() = Does::Refuse(Refusal::TooLate { waited: modelless_types::Micros(70) });
    assert_eq!(blocking(ask).await, 504);
    let (answered, refused) = blocking(move || (all.data(), all.data())).await;
    assert_eq!(answered["outcome"], "answered", "what ended before is not told: {answered}");
    assert_eq!(
        (&answered["task"], &answered["variant"], &answered["node"], &answered["batch"]),
        (&"fashion".into(), &"small-fp32".into(), &"node-a".into(), &3.into()),
    );
    assert_eq!(
        (&answered["asked"]["accuracy"], &answered["asked"]["latency_ms"]),
        (&0.85.into(), &500.0.into())
    );
    assert_eq!(
        (&answered["why"], &answered["in_time"]),
        (&"only one that meets the goals".into(), &true.into())
    );
    assert_eq!((&refused["outcome"], &refused["skipped"]), (&"too_late".into(), &0.into()));
    // It ends with the gateway, and of another task nothing was told.
    run.stop().await;
    blocking(move || {
        while let Some(line) = other.next() {
            assert!(!line.starts_with("data"), "{line}");
        }
    })
    .await;
}

#[tokio::test]
async fn those_who_watch_get_no_more_in_a_second_than_they_ask_for() {
    let run = World::new().await.run().await;
    let address = run.addresses.http;
    let mut few = watching(&run, "/v1/decisions?per_second=1").await;
    let told = blocking(move || {
        let mut connection = Connection::open(address).unwrap();
        let first = tokio::time::Instant::now();
        let mut asked_for = 0;
        // Until one of a later second is told.
        while first.elapsed() < Duration::from_millis(1_300) {
            assert_eq!(connection.exchange(&asked()).unwrap().status, 200);
            asked_for += 1;
        }
        (few.data(), few.data(), asked_for)
    });
    let (first, second, asked_for) = told.await;
    assert_eq!(first["skipped"], 0);
    let skipped = second["skipped"].as_u64().unwrap();
    assert!(skipped > 0 && skipped < asked_for, "{second} of {asked_for}");
    run.stop().await;
}

#[tokio::test]
async fn events_are_told_as_they_happen_and_from_where_a_client_left_off() {
    let run = World::new().await.run().await;
    run.store.note_event(event("one")).await.unwrap();
    let mut lines = watching(&run, "/v1/events").await;
    let (number, one) = blocking(move || {
        let number = lines.next_with("id: ");
        let one = lines.data();
        (number, (one, lines))
    })
    .await;
    let (one, mut lines) = one;
    assert_eq!(one["what"], "one");
    run.store.note_event(event("two")).await.unwrap();
    assert_eq!(blocking(move || lines.data()).await["what"], "two");
    // As a browser that comes back says it.
    let (address, request) = (
        run.addresses.http,
        Request::get("/v1/events").header("accept", STREAM).header("last-event-id", number),
    );
    assert_eq!(blocking(move || Lines::open(address, &request).data()).await["what"], "two");
    let got = run
        .with_connection(|mut connection| {
            let request = Request::get("/v1/events").header("accept", STREAM).header("last-event-id", "x");
            connection.exchange(&request).unwrap()
        })
        .await;
    assert_eq!((got.status, got.json().unwrap()["reason"].clone()), (400, "malformed".into()));
    run.stop().await;
}
