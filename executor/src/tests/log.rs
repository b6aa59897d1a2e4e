//! What the log says of queries, and that it calls them as their clients do.

use super::*;
use modelless_decision::worker::Reason;
use serde_json::Value;
use std::sync::Once;

/// What this process logged. Batches end on threads of the engine, so it is one log for all tests.
static LINES: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct Lines;

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LINES.lock().expect("no panic").write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Has everything written down from now on.
fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let lines = tracing_subscriber::fmt().json().flatten_event(true).with_writer(|| Lines);
        lines.with_max_level(tracing::Level::DEBUG).init();
    });
}

/// A bed, and what its queries are called.
async fn heard(setup: Setup) -> (Bed, impl Fn(u64) -> String) {
    listen();
    let bed = bed_with(setup).await;
    let gateway = Arc::clone(&bed.gateway);
    (bed, move |key| gateway.number_of(QueryKey(key)).expect("it knows all").to_string())
}

/// Lines that say so, and name this query.
fn lines_of(query: &str, says: &str) -> Vec<Value> {
    let text = String::from_utf8(LINES.lock().expect("no panic").clone()).expect("text");
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("an object a line"));
    let names = |line: &Value| {
        let of = ["query", "queries"].map(|field| line[field].as_str().unwrap_or_default());
        of.iter().any(|names| names.split(' ').any(|name| name == query))
    };
    lines.filter(|line| names(line) && line["message"].as_str().is_some_and(|m| m.contains(says))).collect()
}

/// The one line that says so, at that level.
fn line(query: &str, says: &str, level: &str) -> Value {
    let lines = lines_of(query, says);
    let [line] = lines.as_slice() else { panic!("not one line of {query} with {says:?}: {lines:?}") };
    assert_eq!(line["level"], level, "{line}");
    line.clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_that_go_well_are_in_no_line() {
    let (mut bed, name) = heard(Setup::default()).await;
    for key in 0..50 {
        bed.ask(key);
    }
    assert_eq!(bed.wrong_of(50).await, 0);
    bed.end().await;
    for key in 0..50 {
        assert_eq!(lines_of(&name(key), ""), Vec::<Value>::new());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_a_model_fails_on_is_told_with_all_of_its_queries() {
    let (mut bed, name) = heard(Setup::default()).await;
    let bad = |_, items: u32| (items > 1).then(|| Fault::Model("one of these is bad".into()));
    bed.behave(&FakeModel { faults: Arc::new(bad), ..echo() });
    for key in 0..50 {
        bed.ask(key);
    }
    let (mut again, mut first) = (Vec::new(), Vec::new());
    for _ in 0..50 {
        let Body::Answer { key, answer } = bed.hear().await else { panic!("each is fine alone") };
        if answer.why == Reason::Rerun { again.push(key.0) } else { first.push(key.0) }
    }
    bed.end().await;
    assert!(!again.is_empty());
    for key in again {
        let failed = line(&name(key), "a batch failed", "DEBUG");
        let names = failed["queries"].as_str().expect("names").split(' ').count();
        assert_eq!(failed["count"], names, "{failed}");
        assert!(names > 1 && failed["batch"].is_u64(), "{failed}");
        assert!(failed["why"].as_str().is_some_and(|why| why.contains("one of these is bad")), "{failed}");
    }
    for key in first {
        assert_eq!(lines_of(&name(key), "failed"), Vec::<Value>::new());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_takes_a_runner_down_is_named_there_and_when_it_does_so_alone() {
    let (mut bed, name) = heard(Setup::default()).await;
    for model in [&bed.engine, &bed.ward] {
        let crash = |_, _| Some(Fault::Crash("made to".into()));
        for variant in &bed.variants {
            model.behave(variant.id, FakeModel { faults: Arc::new(crash), ..echo() });
        }
    }
    bed.ask(1);
    let said = bed.hear().await;
    assert!(matches!(said, Body::Refused { refusal: Refusal::InputCrashed { .. }, .. }), "{said:?}");
    bed.end().await;
    let query = name(1);
    let died = line(&query, "a runner died", "WARN");
    assert!(died["cause"].as_str().is_some_and(|cause| cause.contains("made to")), "{died}");
    let failed = line(&query, "a batch ended with its runner", "WARN");
    assert_eq!((&failed["count"], &failed["model"]), (&Value::from(1), &died["model"]));
    line(&query, "a query failed when it was run again, alone", "WARN");
    assert_eq!(line(&query, "refused", "DEBUG")["reason"], "input_crashed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_hangs_is_told_when_it_is_suspected_and_when_it_is_ended() {
    let hung_after = Micros::from_millis(200);
    let config = Config { hung_after, ..config() };
    let (mut bed, name) = heard(Setup { config, ..Setup::default() }).await;
    let other = hanging::another(&mut bed).await;
    bed.send(1, LONG, [bed.variants[0].ordinal].into_iter().collect(), distinct(1));
    assert_eq!(bed.wrong_of(1).await, 0, "it is in memory by now");
    bed.hang();
    bed.send(2, LONG, [bed.variants[0].ordinal].into_iter().collect(), distinct(2));
    // Who waits for the lane has it suspected.
    bed.send(3, LONG, [other.ordinal].into_iter().collect(), distinct(3));
    assert_eq!(bed.wrong_of(2).await, 0, "it does not hang alone");
    line(&name(2), "a query was run again, alone", "DEBUG");
    bed.end().await;
    line(&name(2), "far longer than it should", "INFO");
    let failed = line(&name(2), "a batch ended with its runner", "WARN");
    assert!(failed["why"].as_str().is_some_and(|why| why.contains("ran longer than")), "{failed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_what_is_handed_back_and_what_is_cancelled_are_told_to_who_wants_to_know() {
    let (mut bed, name) = heard(Setup::default()).await;
    bed.send(1, LONG, bed.all(), Input::Raw(vec![0; 7].into()));
    assert!(matches!(bed.hear().await, Body::BadInput { .. }));
    let parameters = Some(r#"{"topk": 3}"#.into());
    bed.send(2, LONG, bed.all(), Input::Json { inputs: "[1, 2]".into(), parameters });
    assert!(matches!(bed.hear().await, Body::BadInput { .. }));
    bed.send(3, Duration::from_micros(300), bed.all(), distinct(3));
    assert!(matches!(bed.hear().await, Body::Refused { .. }));
    bed.ask(4);
    assert_eq!(bed.wrong_of(1).await, 0);
    bed.hang();
    for key in 5..60 {
        bed.ask(key);
    }
    bed.handle.send(ToNode::Cancel { key: QueryKey(59) });
    bed.handle.hand_back(QueryKey(58), Refusal::Draining);
    let said = bed.hear().await;
    assert!(matches!(said, Body::HandedBack { key: QueryKey(58), .. }), "{said:?}");
    for key in [1, 2] {
        assert_eq!(line(&name(key), "refused", "DEBUG")["reason"], "bad_input");
    }
    assert_eq!(line(&name(3), "refused", "DEBUG")["reason"], "loading");
    assert_eq!(line(&name(58), "handed back", "DEBUG")["reason"], "draining");
    line(&name(59), "cancelled", "DEBUG");
    bed.behave(&echo());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_names_sixteen_queries_at_the_most() {
    let bed = bed(None).await;
    let keys: Vec<QueryKey> = (0..40).map(QueryKey).collect();
    let named = bed.handle.named(&keys).to_string();
    let all: Vec<String> =
        keys.iter().map(|key| bed.gateway.number_of(*key).expect("it knows all").to_string()).collect();
    assert_eq!(named, all[..16].join(" "));
    bed.end().await;
}
