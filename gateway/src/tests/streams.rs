use super::access::{locked, made, made_for};
use super::world::{Does, PNG, Running, Setup, World};
use modelless_store::{Access as _, EventKind, NewEvent, SecretKey, Store as _, UnixMicros, Visibility};
use modelless_testkit::{Connection, Request};
use modelless_types::{Refusal, Scope, Scopes, TaskId, TenantId};
use serde_json::{Value, json};
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
        task: None,
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
async fn a_decision_has_its_querys_number_who_asked_and_all_that_was_asked() {
    let run = World::new().await.run().await;
    let (mut told, address) = (watching(&run, "/v1/decisions").await, run.addresses.http);
    let goals = "prefer=cost&fallback=best_effort&model=small&variant=small-fp32&latency_ms=500";
    let ask = move |goals: &str| {
        let request =
            Request::post(&format!("/v1/tasks/fashion?{goals}")).header("content-type", "image/png");
        let answer = Connection::open(address).unwrap().exchange(&request.body(PNG)).unwrap();
        answer.header("modelless-query").unwrap().to_owned()
    };
    let (numbers, decisions) = blocking(move || {
        let numbers = [ask(goals), ask("accuracy=0.999")];
        (numbers, [told.data(), told.data()])
    })
    .await;
    for (number, decision) in numbers.iter().zip(&decisions) {
        assert_eq!(decision["query"], *number);
        assert_eq!((&decision["tenant"], &decision["app"]), (&json!("default"), &json!("default")));
    }
    let asked = &decisions[0]["asked"];
    assert_eq!((&asked["prefer"], &asked["fallback"]), (&json!("cost"), &json!("best_effort")));
    assert_eq!((&asked["model"], &asked["variant"]), (&json!("small@1"), &json!("small-fp32")));
    for name in ["prefer", "fallback", "model", "variant"] {
        assert_eq!(decisions[1]["asked"].get(name), None, "it was not asked for");
    }
    run.stop().await;
}

#[tokio::test]
async fn a_tenants_admin_watches_its_own_queries_and_nobody_elses() {
    let (world, all, _) = locked().await;
    let tenant = world.store.create_tenant("other").await.unwrap().id;
    world.store.share_model(TaskId(1), "small", Visibility::Public).await.unwrap();
    let theirs = made(&world, tenant, Scopes::ALL).await;
    let asks = made_for(&world, (tenant, "shop"), [Scope::Query].into_iter().collect()).await;
    let ours = made_for(&world, (TenantId::DEFAULT, "shop"), Scopes::ALL.without(Scope::Admin)).await;
    let run = World::with(Setup { store: Some(world.store), ..Setup::default() }).await.run().await;
    let (address, store) = (run.addresses.http, run.store.clone());
    let watch = |key: &SecretKey| {
        Request::get("/v1/decisions").header("accept", STREAM).header("api-key", key.expose())
    };
    let refused = async |request: Request| {
        blocking(move || Connection::open(address).unwrap().exchange(&request).unwrap().status).await
    };
    assert_eq!(refused(watch(&asks)).await, 403);
    assert_eq!(refused(watch(&ours)).await, 403);
    let opened = |key: &SecretKey| {
        let request = watch(key);
        blocking(move || Lines::open(address, &request))
    };
    let (mut own, mut every) = (opened(&theirs).await, opened(&all).await);
    let _three_more = [opened(&theirs).await, opened(&theirs).await, opened(&theirs).await];
    assert_eq!(refused(watch(&theirs)).await, 503, "one tenant leaves room for others");
    let _another_operators = opened(&all).await;
    let (own, every, mut lines) = blocking(move || {
        for key in [&ours, &ours, &asks] {
            let request = asked().header("api-key", key.expose());
            assert_eq!(Connection::open(address).unwrap().exchange(&request).unwrap().status, 200);
        }
        let every = [every.data(), every.data(), every.data()].map(|told| told["tenant"].clone());
        (own.data(), every, own)
    })
    .await;
    assert_eq!((&own["tenant"], &own["app"], &own["skipped"]), (&json!("other"), &json!("shop"), &json!(0)));
    assert_eq!(every, [json!("default"), json!("default"), json!("other")]);
    // Its key ends before what it began does.
    let key = store.doors().await.unwrap().keys.into_iter().find(|key| key.secret == theirs.kept()).unwrap();
    store.revoke_key(key.id, UnixMicros(1)).await.unwrap();
    blocking(move || while lines.next().is_some_and(|line| !line.starts_with("data")) {}).await;
    run.stop().await;
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
