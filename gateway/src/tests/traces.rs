//! What a collector hears of queries, and what becomes of that when it does not listen.

use super::moved::moved_with;
use super::world::{Does, Got, PNG, Running, Setup, World, send};
use crate::decisions::Came;
use crate::traces::shown::{self, Shown};
use crate::{Config, TraceHeaders, TracesConfig};
use axum::body::Body;
use bytes::Bytes as Buffer;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use modelless_testkit::certificates;
use modelless_types::Refusal;
use modelless_wire::tls_files;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

const LONG: Duration = Duration::from_secs(20);
const TRACE: u128 = 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736;
const PARENT: [u8; 8] = [0x00, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7];

/// A server that takes what it is sent, or answers as it is told first.
struct Collector {
    endpoint: String,
    answers: Arc<Mutex<VecDeque<Response<Full<Buffer>>>>>,
    came: mpsc::Receiver<(String, HeaderMap, Buffer)>,
    _serving: JoinSet<()>,
}

impl Collector {
    async fn start() -> Self {
        Self::start_with(None).await
    }

    async fn start_with(tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let endpoint = format!("{scheme}://{}", listener.local_addr().unwrap());
        let (to, came) = mpsc::channel(1_000);
        let answers: Arc<Mutex<VecDeque<_>>> = Arc::default();
        let told = Arc::clone(&answers);
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (to, told) = (to.clone(), Arc::clone(&told));
                let serve = service_fn(move |request: Request<Incoming>| {
                    let (to, told) = (to.clone(), Arc::clone(&told));
                    async move {
                        let (head, body) = request.into_parts();
                        let body = body.collect().await.unwrap().to_bytes();
                        to.send((head.uri.to_string(), head.headers, body)).await.unwrap();
                        let answer = told.lock().unwrap().pop_front();
                        Ok::<_, Infallible>(answer.unwrap_or_default())
                    }
                });
                let http = hyper::server::conn::http1::Builder::new();
                let served = match &tls {
                    None => http.serve_connection(TokioIo::new(stream), serve).await,
                    // Who does not believe it does not get through the greeting.
                    Some(tls) => match tls.accept(stream).await {
                        Ok(stream) => http.serve_connection(TokioIo::new(stream), serve).await,
                        Err(_) => continue,
                    },
                };
                assert!(served.is_ok(), "{served:?}");
            }
        });
        Self { endpoint, answers, came, _serving: serving }
    }

    fn answers(&self, status: StatusCode) {
        let answer = Response::builder().status(status).header("retry-after", "0");
        self.answers.lock().unwrap().push_back(answer.body(Full::default()).unwrap());
    }

    fn config(&self) -> Config {
        let traces = TracesConfig {
            endpoint: Some(self.endpoint.clone()),
            resource: "service.name=search,zone=eu".to_owned(),
            headers: TraceHeaders::parse("x-token=secret").unwrap(),
            ..TracesConfig::default()
        };
        Config { traces, ..Config::default() }
    }

    async fn next(&mut self) -> Vec<Shown> {
        let (path, headers, body) = timeout(LONG, self.came.recv()).await.expect("in time").unwrap();
        assert_eq!(
            (path.as_str(), &headers["content-type"]),
            ("/v1/traces", &"application/x-protobuf".parse().unwrap())
        );
        assert_eq!(headers["x-token"], "secret");
        shown::of(&body)
    }
}

async fn running(collector: &Collector) -> (axum::Router, Running) {
    let world = World::with(Setup { config: collector.config(), ..Setup::default() }).await;
    let router = world.router();
    (router, world.run().await)
}

async fn ask(router: &axum::Router, target: &str, traced: Option<&str>) -> StatusCode {
    got(router, target, traced).await.status
}

async fn got(router: &axum::Router, target: &str, traced: Option<&str>) -> Got {
    let mut request = Request::post(target).header("content-type", "image/png");
    if let Some(flags) = traced {
        request = request.header("traceparent", format!("00-{TRACE:032x}-00f067aa0ba902b7-{flags}"));
        request = request.header("tracestate", "vendor=1");
    }
    send(router.clone(), request.body(Body::from(PNG)).unwrap()).await
}

fn named<'a>(spans: &'a [Shown], name: &str) -> &'a Shown {
    spans.iter().find(|span| span.name == name).unwrap_or_else(|| panic!("no {name:?} in {spans:#?}"))
}

fn counted(world: &Running, outcome: &str) -> u64 {
    let series = format!("modelless_traces_total{{outcome=\"{outcome}\"}} ");
    let text = world.metrics.encode();
    text.lines().find_map(|line| line.strip_prefix(&series)).unwrap().parse().unwrap()
}

async fn counts(world: &Running, outcome: &str, queries: u64) {
    let reached = async {
        while counted(world, outcome) < queries {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LONG, reached).await.expect("in time");
    assert_eq!(counted(world, outcome), queries);
}

#[tokio::test]
async fn a_query_joins_its_clients_trace_from_the_gateway_to_the_runner() {
    let mut collector = Collector::start().await;
    let (router, world) = running(&collector).await;
    let target = "/v1/tasks/fashion?accuracy=0.94&latency_ms=2000&max_cost=1";
    let answer = got(&router, target, Some("01")).await;
    let spans = collector.next().await;

    assert!(spans.iter().all(|span| span.trace == TRACE && span.state == "vendor=1"), "{spans:#?}");
    let root = named(&spans, "query fashion");
    assert_eq!((root.parent.as_slice(), root.kind, root.flags), (&PARENT[..], 2, 0x301));
    for (name, value) in [
        ("modelless.query", answer.header("modelless-query")),
        ("modelless.task", "fashion"),
        ("modelless.door", "query"),
        ("modelless.model", "large"),
        ("modelless.variant", "large-fp32"),
        ("modelless.goal.accuracy", "0.94"),
        ("modelless.goal.latency_ms", "2000"),
        ("modelless.goal.max_cost", "1"),
        ("modelless.cost", "0.0015"),
        ("modelless.in_time", "true"),
        ("modelless.batch", "3"),
    ] {
        assert_eq!(root.attributes[name], value, "{name}");
    }
    let asks = named(&spans, "ask node-a");
    assert_eq!((&named(&spans, "wait for a node").parent, &asks.parent), (&root.id, &root.id));
    let answer = named(&spans, "answer");
    assert_eq!((&answer.parent, answer.kind, asks.kind), (&asks.id, 2, 3));
    // Who did it, as a map of services shows it.
    for (name, service, at) in [
        ("query fashion", "search-gateway", None),
        ("answer", "search-executor", Some("node-a")),
        ("decode", "search-executor", Some("node-a")),
        ("run", "search-runner", Some("node-a")),
    ] {
        let resource = &named(&spans, name).resource;
        assert_eq!((resource["service.name"].as_str(), resource["zone"].as_str()), (service, "eu"));
        assert_eq!(resource.get("service.instance.id").map(String::as_str), at, "{name}");
    }
    // What was laid into place by what the node told says so, and nothing else.
    let reconstructed = |span: &Shown| span.attributes.get("modelless.reconstructed").cloned();
    for span in &spans {
        let at_node = !span.resource["service.name"].ends_with("-gateway");
        assert_eq!(reconstructed(span), at_node.then(|| "true".to_owned()), "{span:#?}");
    }
    // As long as the node says (40, 250, 5 and 700 us), one after the other, within what is around them.
    let mut before = answer.start;
    for (name, took) in [("decode", 40), ("wait for a batch", 250), ("write the batch", 5), ("run", 700)] {
        let span = named(&spans, name);
        assert_eq!(&span.parent, &answer.id, "{name}");
        assert_eq!(span.start, before, "{name}");
        // The node of this test answers sooner than it says; what does not fit is cut off.
        assert!(span.end <= answer.end && span.end - span.start <= took * 1_000, "{name}: {span:#?}");
        before = span.end;
    }
    assert!(root.start <= asks.start && asks.start <= answer.start);
    assert!(answer.end <= asks.end && asks.end <= root.end);
    let now = u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos()).unwrap();
    assert!(root.end <= now && now - root.start < 20_000_000_000, "it happened just now");
    counts(&world, "sent", 1).await;
    world.stop().await;
}

#[tokio::test]
async fn a_refusal_is_told_with_its_reason_and_who_wants_no_trace_has_none() {
    let mut collector = Collector::start().await;
    let (router, world) = running(&collector).await;
    assert_eq!(ask(&router, "/v1/tasks/fashion", Some("00")).await, 200);
    *world.node.does.lock().unwrap() = Does::Refuse(Refusal::Draining);
    let refused = got(&router, "/v1/tasks/fashion", None).await;
    assert_eq!(refused.status, 503);
    let spans = collector.next().await;
    assert!(spans.iter().all(|span| span.trace != TRACE), "{spans:#?}");
    let root = named(&spans, "query fashion");
    assert!(root.failed.is_some() && root.parent.is_empty() && root.flags == 0x101, "{root:#?}");
    assert_eq!(root.attributes["error.type"], "draining");
    assert_eq!(root.attributes["modelless.query"], refused.header("modelless-query"));
    assert_eq!(named(&spans, "ask node-a").failed.as_deref(), Some("draining"));
    counts(&world, "sent", 1).await;
    world.stop().await;
}

#[tokio::test]
async fn a_query_whose_client_went_away_is_told_of_like_any_other() {
    let mut collector = Collector::start().await;
    let (router, mut world) = running(&collector).await;
    *world.node.does.lock().unwrap() = Does::Keep;
    let mut watching = world.handle.core().decisions.listen();
    let mut asked = JoinSet::new();
    asked.spawn(async move { ask(&router, "/v1/tasks/fashion", None).await });
    world.next_query().await;
    asked.shutdown().await;
    let decision = timeout(LONG, watching.hears.recv()).await.expect("in time").unwrap();
    assert!(matches!(decision.came, Came::Refused("cancelled")), "{decision:?}");
    let spans = collector.next().await;
    assert_eq!(named(&spans, "query fashion").attributes["error.type"], "cancelled");
    assert_eq!(named(&spans, "ask node-a").failed.as_deref(), Some("cancelled"));
    world.stop().await;
}

#[tokio::test]
async fn a_node_that_a_query_was_taken_from_is_in_its_trace() {
    let mut collector = Collector::start().await;
    let (world, second, query, mut asked) = moved_with(collector.config()).await;
    second.node.answer(&query);
    while let Some(got) = asked.join_next().await {
        got.unwrap();
    }
    // The other one, which the first node kept past its time, is told of as well.
    let mut spans = Vec::new();
    while spans.iter().filter(|span: &&Shown| span.name == "query fashion").count() < 2 {
        spans.extend(collector.next().await);
    }
    let answered = named(&spans, "ask node-b");
    let left = spans.iter().find(|span| span.name == "ask node-a" && span.parent == answered.parent);
    let left = left.expect("the first node");
    assert!(left.failed.as_ref().is_some_and(|why| why.contains("taken")), "{left:#?}");
    assert_eq!(left.end, answered.start);
    assert_eq!(answered.failed, None);
    drop(world);
}

#[tokio::test]
async fn what_is_not_taken_is_sent_again_or_counted_and_the_rest_goes_at_the_end() {
    let mut collector = Collector::start().await;
    collector.answers(StatusCode::SERVICE_UNAVAILABLE);
    collector.answers(StatusCode::OK);
    collector.answers(StatusCode::BAD_REQUEST);
    let (router, world) = running(&collector).await;
    ask(&router, "/v1/tasks/fashion", None).await;
    let (first, again) = (collector.next().await, collector.next().await);
    assert_eq!(first[0].id, again[0].id);
    counts(&world, "sent", 1).await;
    ask(&router, "/v1/tasks/fashion", None).await;
    collector.next().await;
    counts(&world, "dropped_refused", 1).await;
    // What waits for company when the gateway ends is sent before it does.
    ask(&router, "/v1/tasks/fashion", None).await;
    world.stop().await;
    assert_eq!(collector.came.len(), 1, "once");
    named(&collector.next().await, "query fashion");
}

/// The sender goes without saying goodbye at the level of TLS where a test ends; so only what came counts.
#[tokio::test]
async fn a_collector_with_a_certificate_is_asked_for_it() {
    let folder = modelless_testkit::temp_dir("traces").unwrap();
    certificates::write(folder.path(), &["127.0.0.1"]).unwrap();
    let file = |name: &str| folder.path().join(name);
    let chain = tls_files::certificates("cert", &file("127.0.0.1.pem")).unwrap();
    let key = tls_files::private_key("key", &file("127.0.0.1.key")).unwrap();
    let config =
        rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
    let mut collector = Collector::start_with(Some(TlsAcceptor::from(Arc::new(config)))).await;
    let mut config = collector.config();
    config.traces.ca = Some(file("ca.pem"));
    let world = World::with(Setup { config, ..Setup::default() }).await;
    let router = world.router();
    let world = world.run().await;
    ask(&router, "/v1/tasks/fashion", None).await;
    named(&collector.next().await, "query fashion");
    counts(&world, "sent", 1).await;
    world.stop().await;

    // An authority that did not sign it.
    let other = modelless_testkit::temp_dir("traces").unwrap();
    certificates::write(other.path(), &["127.0.0.1"]).unwrap();
    let mut config = collector.config();
    config.traces.ca = Some(other.path().join("ca.pem"));
    let world = World::with(Setup { config, ..Setup::default() }).await;
    let router = world.router();
    let world = world.run().await;
    ask(&router, "/v1/tasks/fashion", None).await;
    world.stop().await; // it tries a last time
    assert!(collector.came.try_recv().is_err());
}

#[tokio::test]
async fn what_floods_is_sampled_and_nothing_is_traced_where_nobody_listens() {
    let mut collector = Collector::start().await;
    let mut config = collector.config();
    config.traces.per_second = 1;
    let world = World::with(Setup { config, ..Setup::default() }).await;
    let router = world.router();
    let world = world.run().await;
    for _ in 0..20 {
        assert_eq!(ask(&router, "/v1/tasks/fashion", None).await, 200);
    }
    assert_eq!(
        ask(&router, "/v1/tasks/fashion", Some("01")).await,
        200,
        "a client's own have room of their own"
    );
    world.stop().await; // all is sent by then
    let mut spans = Vec::new();
    while !collector.came.is_empty() {
        spans.extend(collector.next().await);
    }
    let roots: Vec<_> = spans.iter().filter(|span| span.name == "query fashion").collect();
    assert!(roots.len() < 10, "{}", roots.len());
    assert!(roots.iter().any(|root| root.trace == TRACE));

    let world = World::new().await;
    assert!(world.service.core().traces.is_none());
}

#[tokio::test]
async fn all_texts_of_a_request_are_in_one_trace() {
    let mut collector = Collector::start().await;
    let setup = Setup { config: collector.config(), texts: true, ..Setup::default() };
    let world = World::with(setup).await;
    let router = world.router();
    *world.node.does.lock().unwrap() = Does::Echo;
    let world = world.run().await;
    let request = Request::post("/v1/tasks/words").header("content-type", "application/json");
    let got = send(router, request.body(Body::from(r#"{"inputs": ["a", "b"]}"#)).unwrap()).await;
    assert_eq!(got.status, 200, "{got:?}");
    let spans = collector.next().await;
    let roots: Vec<_> = spans.iter().filter(|span| span.name == "query words").collect();
    assert_eq!(roots.len(), 2);
    assert_eq!(roots[0].trace, roots[1].trace);
    assert_ne!(roots[0].id, roots[1].id);
    world.stop().await;
}
