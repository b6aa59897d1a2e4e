use super::world::{Got, PNG, Setup, World, ask, profile};
use crate::Config;
use crate::ids::QueryId;
use http::Method;
use modelless_decision::feedback::posterior;
use modelless_store::{Feedback, LiveAccuracy, Store as _, UnixMicros};
use modelless_testkit::Request;
use modelless_types::{Accuracy, Provenance, VariantId};
use serde_json::{Value, json};
use std::time::SystemTime;

pub(super) fn now() -> u64 {
    UnixMicros::of(SystemTime::now()).0
}

/// A query that the small model answered with `cat`.
fn query(world: &World, number: u64) -> String {
    world.handle.query_ids().issue(QueryId {
        variant: VariantId(1),
        at_unix_us: now(),
        number,
        arm: None,
        label: Some(0),
    })
}

async fn say(world: &World, query: &str, body: &Value) -> Got {
    let path = format!("/v1/queries/{query}/feedback");
    ask(world.service.router(), Method::POST, &path, "application/json", body.to_string().as_bytes()).await
}

#[tokio::test]
async fn an_answer_that_was_given_can_be_judged_by_its_own_name() {
    let world = World::new().await;
    let got = world.post("/v1/tasks/fashion?accuracy=0.94", "image/png", PNG).await;
    let id = got.header("modelless-query-id").to_owned();
    let told = say(&world, &id, &json!({"verdict": "wrong"})).await;
    assert_eq!(told.status, 200, "{told:?}");
    let told = told.json();
    assert_eq!(
        (&told["variant"], &told["verdict"], &told["stored"]),
        (&json!("large-fp32"), &json!("wrong"), &json!("new"))
    );
    assert_eq!((&told["live_accuracy"]["correct"], &told["live_accuracy"]["wrong"]), (&json!(0), &json!(1)));
    // The fake answers with a label that the task does not have.
    assert_eq!(say(&world, &id, &json!({"label": "cat"})).await.refusal(), (400, "no_label".to_owned()));
    let text = world.metrics.encode();
    assert!(text.contains(r#"modelless_feedback_total{task="fashion",verdict="wrong"} 1"#), "{text}");
}

#[tokio::test]
async fn the_right_label_is_compared_with_the_one_that_was_answered_and_the_last_word_stands() {
    let world = World::new().await;
    let id = query(&world, 1);
    for (body, verdict, stored, correct) in [
        (json!({"label": "cat"}), "correct", "new", 1),
        (json!({"verdict": "correct"}), "correct", "said before", 1),
        (json!({"label": "dog"}), "wrong", "changed", 0),
    ] {
        let told = say(&world, &id, &body).await.json();
        assert_eq!((&told["verdict"], &told["stored"]), (&json!(verdict), &json!(stored)), "{told}");
        assert_eq!(told["live_accuracy"]["correct"], json!(correct), "{told}");
        assert_eq!(told["live_accuracy"]["measured"], json!(0.9), "{told}");
    }
}

#[tokio::test]
async fn what_cannot_be_judged_is_refused_by_name() {
    let world = World::with(Setup {
        config: Config { feedback_within_s: 60, ..Config::default() },
        ..Setup::default()
    })
    .await;
    let ids = world.handle.query_ids();
    let at = |at_unix_us| {
        ids.issue(QueryId { variant: VariantId(1), at_unix_us, number: 1, arm: None, label: Some(0) })
    };
    let right = json!({"verdict": "correct"});
    for (query, body, wanted) in [
        ("nonsense".to_owned(), right.clone(), (400, "malformed")),
        (format!("B{}", &at(now())[1..]), right.clone(), (404, "unknown_query")),
        (at(now() - 61_000_000), right.clone(), (410, "query_expired")),
        (at(now() + 3_600_000_000), right.clone(), (410, "query_expired")),
        (
            ids.issue(QueryId {
                variant: VariantId(99),
                at_unix_us: now(),
                number: 1,
                arm: None,
                label: None,
            }),
            right,
            (410, "variant_gone"),
        ),
        (at(now()), json!({"label": "cart"}), (400, "unknown_label")),
        (at(now()), json!({"label": "cat", "verdict": "correct"}), (400, "malformed")),
        (at(now()), json!({}), (400, "malformed")),
        (at(now()), json!({"verdict": "maybe"}), (400, "malformed")),
    ] {
        let got = say(&world, &query, &body).await;
        assert_eq!(got.refusal(), (wanted.0, wanted.1.to_owned()), "{query} {body}");
    }
    let near = say(&world, &at(now()), &json!({"label": "cart"})).await.json();
    assert!(near["error"].as_str().unwrap().contains("cat"), "{near}");
    assert_eq!(world.store.live_accuracies().await.unwrap(), []);
}

#[tokio::test]
async fn what_answers_worse_than_measured_is_flagged_and_many_verdicts_at_once_all_count() {
    let world = World::new().await;
    let verdict = |right| json!({"verdict": if right { "correct" } else { "wrong" }});
    // 70 of 100 where 90 % were measured.
    let ids: Vec<String> = (0..100).map(|number| query(&world, number)).collect();
    let all = ids.iter().zip(0..).map(|(id, at)| {
        let (world, body) = (&world, verdict(at % 10 < 7));
        async move { say(world, id, &body).await.status.as_u16() }
    });
    let all = futures_util::future::join_all(all).await;
    assert!(all.iter().all(|status| *status == 200), "{all:?}");
    let live = world.store.live_accuracies().await.unwrap();
    assert_eq!((live[0].correct, live[0].wrong), (70, 30));
    let last = say(&world, &query(&world, 1_000), &verdict(true)).await.json();
    assert_eq!(last["live_accuracy"]["correct"], json!(71), "{last}");
    let flagged = world.store.live_accuracies().await.unwrap()[0].flagged.expect("it is flagged");
    assert!(flagged.ppm().abs_diff(posterior(70, 30).mean.ppm()) < 20_000, "{flagged}");
    assert_eq!(
        world.store.catalog().await.unwrap().live_accuracy(VariantId(1)).unwrap().flagged,
        Some(flagged)
    );
}

#[tokio::test]
async fn what_a_part_of_a_set_showed_is_no_reason_to_flag_what_reaches_its_lower_end() {
    let before = World::new().await;
    let mut coarse = profile(1_000.0, 32, 32);
    coarse.detail.part_of_set = true;
    coarse.accuracy.low = Accuracy::from_ppm(650_000).unwrap();
    before.store.put_profile(VariantId(1), coarse).await.unwrap();
    let world = World::with(Setup { store: Some(before.store.clone()), ..Setup::default() }).await;
    let say_all = async |numbers: std::ops::Range<u64>, right: &dyn Fn(u64) -> bool| {
        for number in numbers {
            let verdict = json!({"verdict": if right(number) { "correct" } else { "wrong" }});
            assert_eq!(say(&world, &query(&world, number), &verdict).await.status, 200);
        }
        world.store.live_accuracies().await.unwrap()[0]
    };
    let live = say_all(0..60, &|number| number % 5 != 0).await;
    assert_eq!((live.correct, live.wrong, live.flagged), (48, 12, None));
    let live = say_all(60..120, &|_| false).await;
    assert!(live.flagged.is_some(), "{live:?}");
    let why = &world.store.flag_changes(VariantId(1), 1).await.unwrap()[0].reason;
    assert!(why.ends_with("where 0.65 was measured"), "{why}");
}

#[tokio::test]
async fn a_task_that_is_there_can_be_told_to_count_live_accuracy_for_floors() {
    let run = World::new().await.run().await;
    let wrong = |number: u64| Feedback {
        query: format!("query {number}"),
        variant: VariantId(1),
        answered: UnixMicros(now()),
        correct: false,
    };
    let stored = run.store.put_feedback((0..40).map(wrong).collect(), UnixMicros(0)).await.unwrap();
    let live = LiveAccuracy { flagged: Accuracy::from_ppm(20_000), ..stored[39].live };
    assert!(run.store.flag_accuracy(live, UnixMicros(now()), "0 of 40 right").await.unwrap());
    run.with_connection(|mut connection| {
        let mut send = |request: Request| connection.exchange(&request).unwrap();
        let mut rules = |body: Value| {
            let changed = send(Request::new("PATCH", "/v1/tasks/fashion").json(&body));
            let floor = "/v1/tasks/fashion?variant=small-fp32&accuracy=0.9";
            let asked = send(Request::post(floor).header("content-type", "image/png").body(PNG.to_vec()));
            (changed.status, asked.status)
        };
        // In turns, so that what was cached of one rule cannot answer for the other.
        assert_eq!(rules(json!({"live_accuracy": "shown"})), (200, 200));
        assert_eq!(rules(json!({"live_accuracy": "floors"})), (200, 422));
        assert_eq!(rules(json!({})), (200, 422), "what is left out stays");
        assert_eq!(rules(json!({"live_accuracy": "maybe"})), (400, 422));
        assert_eq!(rules(json!({"labels": []})), (400, 422), "labels are what its models answer with");
        assert_eq!(rules(json!({"batching": null})), (400, 422), "it could mean two things");
        assert_eq!(rules(json!({"live_accuracy": "shown"})), (200, 200));
        let unknown =
            send(Request::new("PATCH", "/v1/tasks/fashon").json(&json!({"live_accuracy": "shown"})));
        assert_eq!(unknown.status, 404);
        let shown = send(Request::get("/v1/tasks/fashion")).json().unwrap();
        assert_eq!(shown["live_accuracy"], json!("shown"));
        let mut batching = |mode: &str| {
            let patch = Request::new("PATCH", "/v1/tasks/fashion").json(&json!({"batching": mode}));
            let told = send(patch);
            let shown = send(Request::get("/v1/tasks/fashion")).json().unwrap();
            (told.status, told.json().unwrap()["batching"].clone(), shown["batching"].clone())
        };
        let fixed = json!("fixed:4:1000ms");
        assert_eq!(batching("fixed:4:1000ms"), (200, fixed.clone(), fixed.clone()));
        let (status, _, shown) = batching("fixed:4");
        assert_eq!((status, shown), (400, fixed));
        assert_eq!(batching("node"), (200, Value::Null, Value::Null), "as each node is set");
    })
    .await;
    run.stop().await;
}

#[tokio::test]
async fn a_flag_is_taken_back_with_a_reason_which_is_kept() {
    let world = World::new().await;
    for number in 0..40 {
        assert_eq!(say(&world, &query(&world, number), &json!({"verdict": "wrong"})).await.status, 200);
    }
    let path = |what: &str| format!("/v1/variants/fashion/small-fp32/{what}");
    let unflag = async |body: Value| {
        world.post(&path("unflag"), "application/json", body.to_string().as_bytes()).await
    };
    assert_eq!(unflag(json!({"reason": ""})).await.refusal(), (400, "malformed".to_owned()));
    assert_eq!(unflag(json!({})).await.refusal(), (400, "malformed".to_owned()));
    let gone = unflag(json!({"reason": "the labels were wrong", "by": "ann"})).await;
    assert_eq!(gone.status, 200, "{gone:?}");
    let live = world.store.live_accuracies().await.unwrap()[0];
    assert_eq!((live.flagged, live.wrong), (None, 0));
    assert_eq!(unflag(json!({"reason": "again"})).await.refusal(), (409, "conflict".to_owned()));
    // One more wrong answer is one of one, not of 41.
    say(&world, &query(&world, 99), &json!({"verdict": "wrong"})).await;
    assert_eq!(world.store.live_accuracies().await.unwrap()[0].flagged, None);
    let told = world.get(&path("flags")).await.json();
    let (last, first) = (&told["history"][0], &told["history"].as_array().unwrap().last().unwrap());
    assert_eq!((&last["action"], &last["who"]), (&json!("cleared"), &json!("ann")), "{told}");
    assert_eq!(last["reason"], json!("the labels were wrong"), "{told}");
    assert_eq!(first["action"], json!("flagged"), "{told}");
    assert!(first["reason"].as_str().unwrap().contains("of 30 right"), "{told}");
    let unknown = world.get("/v1/variants/fashion/small-fp33/flags").await;
    assert_eq!(unknown.refusal(), (404, "unknown_variant".to_owned()));
    assert!(unknown.json()["error"].as_str().unwrap().contains("small-fp32"));
}

#[tokio::test]
async fn what_was_only_declared_says_so_and_is_not_what_answers_are_held_against() {
    let run = World::new().await.run().await;
    let mut profile = run.store.catalog().await.unwrap().variants[1].profiles[0].clone();
    profile.accuracy.provenance = Provenance::Declared;
    run.store.put_profile(VariantId(2), profile).await.unwrap();
    let ids: Vec<String> = (0..40)
        .map(|number| {
            let (variant, at_unix_us) = (VariantId(2), now());
            run.handle.query_ids().issue(QueryId { variant, at_unix_us, number, arm: None, label: Some(0) })
        })
        .collect();
    run.with_connection(move |mut connection| {
        let mut send = |request: Request| connection.exchange(&request).unwrap();
        let rules =
            |rule: &str| Request::new("PATCH", "/v1/tasks/fashion").json(&json!({"declared_accuracy": rule}));
        // Nothing new, but from then on requests see the profile.
        assert_eq!(send(rules("unless_measured")).status, 200);
        let mut ask = |goals: &str| {
            let request = Request::post(&format!("/v1/tasks/fashion?variant=large-fp32{goals}"));
            send(request.header("content-type", "image/png").body(PNG.to_vec()))
        };
        let answered = ask("");
        assert_eq!(answered.header("modelless-accuracy-provenance"), Some("declared"), "{answered}");
        assert_eq!(ask("&accuracy=0.5").status, 422, "beside what was measured it meets no floor");
        assert_eq!(send(rules("floors")).status, 200);
        let explain = || Request::get("/v1/tasks/fashion/explain");
        let noted = |page: Value, wanted: &str| {
            let all = page["candidates"].as_array().unwrap().clone();
            let large = all.into_iter().find(|of| of["variant"] == json!("large-fp32")).unwrap();
            assert_eq!(large["accuracy_provenance"], json!("declared"), "{page}");
            let notes = large["notes"].to_string();
            assert!(notes.contains("declared and never measured") && notes.contains(wanted), "{notes}");
        };
        noted(send(explain()).json().unwrap(), "has floors count that");
        assert_eq!(send(rules("unless_measured")).status, 200);
        noted(send(explain()).json().unwrap(), "counts for no floor beside");
        for id in ids {
            let path = format!("/v1/queries/{id}/feedback");
            let told = send(Request::post(&path).json(&json!({"verdict": "wrong"})));
            assert_eq!(told.status, 200, "{told}");
            assert_eq!(told.json().unwrap()["live_accuracy"]["measured"], json!(null));
        }
    })
    .await;
    let live = run.store.live_accuracies().await.unwrap()[0];
    assert_eq!((live.wrong, live.flagged), (40, None), "nobody measured what it could be worse than");
    run.stop().await;
}
