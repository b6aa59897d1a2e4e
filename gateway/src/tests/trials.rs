//! A version on trial: who is drawn, what counts, and that no query falls below its floor for it.

use super::world::{Does, Got, PNG, Running, Setup, World, ask, new_model};
use http::Method;
use modelless_decision::Moments;
use modelless_decision::query::Class;
use modelless_decision::trial::Counts;
use modelless_store::{MemStore, NewModel, NewTrial, Signed, Store as _, Trial, Trials as _, UnixMicros};
use modelless_types::{Micros, ModelId, Refusal, Share};
use modelless_wire::ToNode;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::time::timeout;

const TASK: &str = "/v1/tasks/fashion";
const TRIAL: &str = "/v1/tasks/fashion/trial";

/// A second version of `large`, less accurate than the first by two of a hundred.
async fn second(store: &MemStore) -> ModelId {
    let catalog = store.catalog().await.unwrap();
    let task = catalog.tasks.iter().find(|task| task.name == "fashion").unwrap();
    let mut new = NewModel { version: 2, ..new_model(task, "large", 900.0, 930) };
    new.variants[0].name = "large-v2-fp32".to_owned();
    store.register_model(new).await.unwrap().model.id
}

/// In a world where it is in memory like all others, and, with a share, on trial.
pub(super) async fn world(share: Option<u32>) -> (World, Option<Trial>) {
    world_of(share, false).await
}

async fn world_of(share: Option<u32>, shadow: bool) -> (World, Option<Trial>) {
    let store = World::new().await.store;
    let candidate = second(&store).await;
    let mut trial = None;
    if let Some(ppm) = share {
        let new = NewTrial {
            candidate,
            share: Share::from_ppm(ppm).unwrap(),
            shadow,
            lasts: Micros::from_secs(60),
            promote_when_good: false,
            forced: false,
            by: Signed { who: String::new(), at: UnixMicros::of(SystemTime::now()) },
        };
        trial = Some(store.begin_trial(new).await.unwrap());
    }
    (World::with(Setup { store: Some(Arc::clone(&store)), ..Setup::default() }).await, trial)
}

fn counts(world: &World) -> Counts {
    world.handle.trials()[0].counts
}

/// Whether it was drawn; and then the version on trial answered, and nobody else did else.
fn drawn(got: &Got) -> bool {
    assert_eq!(got.status, 200, "{got:?}");
    let drawn = got.headers.get("modelless-trial").is_some_and(|trial| trial == "trial-1");
    assert_eq!(drawn, got.header("modelless-variant") == "large-v2-fp32", "{got:?}");
    drawn
}

#[tokio::test]
async fn a_share_of_what_pins_nothing_is_drawn_and_none_below_its_floor() {
    let (world, _) = world(Some(300_000)).await;
    let post = async |goals: &str| world.post(&format!("{TASK}{goals}"), "image/png", PNG).await;
    let mut count = 0;
    for _ in 0..300 {
        count += u64::from(drawn(&post("?accuracy=0.92").await));
    }
    assert!((55..125).contains(&count), "{count} of 300 at 30 %");
    let seen = counts(&world);
    assert_eq!((seen.candidate.answered, seen.other.answered), (count, 300 - count));
    for goals in ["?accuracy=0.94", "?model=small", "?variant=small-fp32", "?model=large@1"] {
        for _ in 0..40 {
            assert!(!drawn(&post(goals).await), "{goals}");
        }
    }
    // Who pins is answered, and counts nowhere.
    let pinned = post("?model=large@2").await;
    assert_eq!(pinned.header("modelless-variant"), "large-v2-fp32");
    assert_eq!(pinned.headers.get("modelless-trial"), None);
    let refused = post("?accuracy=0.99").await;
    assert_eq!(refused.refusal(), (422, "floor_unreachable".to_owned()));
    assert_eq!(counts(&world), seen, "only those that could have been drawn");
    let explained =
        async |goals: &str| world.get(&format!("{TASK}/explain{goals}")).await.json()["trial"].clone();
    let told = explained("").await;
    assert_eq!((&told["id"], &told["may_be_drawn"]), (&json!("trial-1"), &json!(true)), "{told}");
    assert_eq!(explained("?accuracy=0.94").await["may_be_drawn"], json!(false));
}

#[tokio::test]
async fn what_the_version_has_no_time_for_is_answered_as_ever_and_counts_for_neither() {
    let (world, trial) = world(Some(500_000)).await;
    let post = async || world.post(&format!("{TASK}?latency_ms=500"), "image/png", PNG).await;
    let ordinal = world.status.borrow().info.offers.last().unwrap().ordinal;
    let class = Class { task: trial.unwrap().task, admits: [ordinal].into_iter().collect() };
    *world.node.waits.lock().unwrap() = vec![(class, Moments::exactly(Micros::from_secs(10)))];
    post().await; // with its answer the node tells how long others wait
    let before = counts(&world);
    for _ in 0..60 {
        assert!(!drawn(&post().await), "all are answered, none by the version");
    }
    assert_eq!(counts(&world), before);
    // It has time again.
    world.node.waits.lock().unwrap().clear();
    post().await;
    let mut count = 0;
    for _ in 0..60 {
        count += u64::from(drawn(&post().await));
    }
    assert!((10..50).contains(&count), "{count} of 60");
}

#[tokio::test]
async fn failures_and_verdicts_count_where_they_belong_and_refusals_that_say_nothing_do_not() {
    let (world, _) = world(Some(500_000)).await;
    let post = async || world.post(TASK, "image/png", PNG).await;
    for given in [
        Refusal::OverQuota,
        Refusal::Loading { ready_in: Micros(1), bound: Micros(2) },
        Refusal::OutOfMemory { needs: modelless_types::Bytes(1), budget: modelless_types::Bytes(1) },
    ] {
        *world.node.does.lock().unwrap() = Does::Refuse(given);
        post().await;
    }
    assert_eq!(counts(&world), Counts::default());
    *world.node.does.lock().unwrap() = Does::Refuse(Refusal::ModelError { why: "it failed".to_owned() });
    for _ in 0..40 {
        post().await;
    }
    let failed = counts(&world);
    assert_eq!(failed.candidate.failed + failed.other.failed, 40);
    assert!(failed.candidate.failed > 5 && failed.other.failed > 5, "{failed:?}");
    *world.node.does.lock().unwrap() = Does::Answer;
    let mut said = [0, 0];
    for _ in 0..40 {
        let got = post().await;
        let (drawn, query) = (drawn(&got), got.header("modelless-query-id").to_owned());
        said[usize::from(drawn)] += 1;
        let verdict: &[u8] = if drawn { br#"{"verdict":"wrong"}"# } else { br#"{"verdict":"correct"}"# };
        for _ in 0..2 {
            let path = format!("/v1/queries/{query}/feedback");
            assert_eq!(world.post(&path, "application/json", verdict).await.status, 200);
        }
    }
    let seen = counts(&world);
    assert_eq!([seen.other.right, seen.candidate.wrong], said, "each verdict once");
    assert_eq!((seen.other.wrong, seen.candidate.right), (0, 0));
    assert_eq!((seen.accuracy.even, seen.accuracy.better), (0, 0));
    assert!(seen.accuracy.worse > 3, "{seen:?}");
    // A verdict on what was pinned is nobody's.
    let pinned = world.post(&format!("{TASK}?model=large@2"), "image/png", PNG).await;
    let path = format!("/v1/queries/{}/feedback", pinned.header("modelless-query-id"));
    assert_eq!(world.post(&path, "application/json", br#"{"verdict":"wrong"}"#).await.status, 200);
    assert_eq!(counts(&world), seen);
}

#[tokio::test]
async fn a_copy_is_asked_beside_its_original_compared_with_it_and_thrown_away() {
    let (world, _) = world_of(Some(500_000), true).await;
    let router = world.router();
    let ordinal = world.status.borrow().info.offers.last().unwrap().ordinal;
    let mut run = world.run().await;
    for _ in 0..60 {
        assert!(!drawn(&ask(router.clone(), Method::POST, TASK, "image/png", PNG).await));
        tokio::task::yield_now().await;
    }
    for _ in 0..20 {
        // Of what the version does not keep, and of what is pinned, there are no copies.
        for goals in ["?accuracy=0.94", "?model=small"] {
            ask(router.clone(), Method::POST, &format!("{TASK}{goals}"), "image/png", PNG).await;
        }
    }
    let handle = run.handle.clone();
    let settled = async {
        loop {
            let counts = handle.trials()[0].counts;
            if counts.candidate.answered > 5 && handle.open_queries() == 0 {
                return counts;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let counts = timeout(Duration::from_secs(20), settled).await.expect("in time");
    assert_eq!(counts.candidate.answered, counts.other.answered, "a copy and its original");
    assert!(counts.agreed > 5 && counts.differed == 0, "{counts:?}");
    assert_eq!(counts.candidate.failed + counts.candidate.unanswered + counts.candidate.late, 0);
    let (mut copies, mut originals) = (0, 0);
    while let Ok(frame) = run.seen.try_recv() {
        if let ToNode::Query(frame) = frame {
            if frame.priority.is_spare() {
                copies += 1;
                assert_eq!(frame.class.admits.iter().collect::<Vec<_>>(), [ordinal]);
            } else {
                originals += 1;
                assert!(!frame.class.admits.contains(ordinal));
            }
        }
    }
    assert!(originals == 100 && copies < 60 && copies > 5, "{originals} {copies}");
    run.stop().await;
}

#[tokio::test]
async fn nothing_is_drawn_while_the_version_is_in_no_memory_and_a_node_is_asked_to_load_it() {
    let (world, _) = world(Some(500_000)).await;
    let ordinal = world.status.borrow().info.offers.last().unwrap().ordinal;
    world.status.send_modify(|status| {
        let cold = modelless_decision::route::Ready::Cold { load: Micros::from_millis(80) };
        let its = status.info.offers.iter_mut().filter(|offer| offer.ordinal == ordinal);
        its.for_each(|offer| offer.ready = cold);
    });
    let router = world.router();
    let mut run = world.run().await;
    let woken = async {
        loop {
            drawn(&ask(router.clone(), Method::POST, TASK, "image/png", PNG).await);
            if let Ok(ToNode::Wake { ordinal, .. }) = run.seen.try_recv() {
                return ordinal;
            }
        }
    };
    assert_eq!(timeout(Duration::from_secs(20), woken).await.expect("in time"), ordinal);
    for _ in 0..50 {
        assert!(!drawn(&ask(router.clone(), Method::POST, TASK, "image/png", PNG).await));
    }
    run.stop().await;
}

async fn said(run: &Running, method: &'static str, target: &'static str, body: Value) -> (u16, Value) {
    let answer = run.with_connection(move |mut connection| {
        let request = modelless_testkit::Request::new(method, target);
        let request = if body.is_null() { request } else { request.json(&body) };
        let answer = connection.exchange(&request).unwrap();
        (answer.status, answer.json().unwrap())
    });
    answer.await
}

#[tokio::test]
async fn a_trial_is_begun_shown_and_stopped_and_what_cannot_be_is_refused_by_name() {
    let (world, _) = world(None).await;
    let router = world.router();
    let run = world.run().await;
    let good = json!({"model": "large", "version": 2, "share": 0.5, "for_ms": 60_000, "by": "ann"});
    let with = |name: &str, value: Value| {
        let mut body = good.clone();
        body[name] = value;
        body
    };
    let mut both = with("shadow", json!(true));
    both["promote_when_good"] = json!(true);
    for (body, status, reason) in [
        (with("share", json!(0.6)), 400, "malformed"),
        (with("share", json!(0)), 400, "malformed"),
        (with("for_ms", json!(1)), 400, "malformed"),
        (with("model", json!("none")), 404, "unknown_model"),
        (with("version", json!(7)), 404, "unknown_model"),
        (with("version", json!(1)), 409, "nothing_to_compare"),
        (with("promote_when_good", json!(true)), 409, "floors_lost"),
        (with("colour", json!(1)), 400, "malformed"),
        (both, 400, "malformed"),
    ] {
        let (got, told) = said(&run, "POST", TRIAL, body.clone()).await;
        assert_eq!((got, told["reason"].as_str().unwrap()), (status, reason), "{body}: {told}");
    }
    let (status, told) = said(&run, "GET", TRIAL, Value::Null).await;
    assert_eq!((status, &told["reason"]), (404, &json!("no_trial")), "{told}");
    let (status, told) = said(&run, "DELETE", TRIAL, Value::Null).await;
    assert_eq!((status, &told["reason"]), (404, &json!("no_trial")), "{told}");

    let mut forced = with("promote_when_good", json!(true));
    forced["force"] = json!(true);
    let (status, told) = said(&run, "POST", TRIAL, forced).await;
    assert_eq!(status, 201, "{told}");
    let notes = told["told"].as_array().unwrap();
    assert!(notes.iter().any(|note| note.as_str().unwrap().contains("keeps floors up to 0.93")), "{told}");
    assert_eq!(
        (&told["trial"]["state"], &told["trial"]["against"]),
        (&json!("running"), &json!(1)),
        "{told}"
    );
    let (status, told) = said(&run, "POST", TRIAL, good.clone()).await;
    assert_eq!((status, &told["reason"]), (409, &json!("conflict")), "{told}");
    // The very next queries are drawn.
    let mut count = 0;
    for _ in 0..60 {
        count += u64::from(drawn(&ask(router.clone(), Method::POST, TASK, "image/png", PNG).await));
    }
    assert!(count > 10, "{count} of 60");
    let (_, told) = said(&run, "GET", TRIAL, Value::Null).await;
    let trial = &told["trial"];
    assert_eq!(
        (&trial["candidate"]["answered"], &trial["other"]["answered"]),
        (&json!(count), &json!(60 - count)),
        "{told}"
    );
    assert_eq!(
        (&trial["verdict"]["verdict"], &trial["began_by"]),
        (&json!("too_few_yet"), &json!("ann")),
        "{told}"
    );
    assert!(trial["candidate"]["median_ms"].as_f64().is_some(), "{told}");

    let (status, told) = said(&run, "DELETE", "/v1/tasks/fashion/trial?by=bob", Value::Null).await;
    assert_eq!((status, &told["trial"]["state"]), (200, &json!("stopped")), "{told}");
    assert_eq!(
        (&told["trial"]["ended_by"], &told["trial"]["candidate"]["answered"]),
        (&json!("bob"), &json!(count))
    );
    for _ in 0..30 {
        assert!(!drawn(&ask(router.clone(), Method::POST, TASK, "image/png", PNG).await));
    }
    let (_, told) = said(&run, "GET", "/v1/trials?task=fashion", Value::Null).await;
    assert_eq!(told["trials"].as_array().unwrap().len(), 1, "{told}");
    assert_eq!(told["trials"][0]["other"]["answered"], json!(60 - count), "what was counted is kept");
    run.stop().await;
}
