//! What earlier days tell of a task is shown, and counts in what would be planned.

use super::world::World;
use http::Method;
use modelless_store::{SlotSeen, Store as _, UnixMicros};
use modelless_types::{Ahead, Bin, Slot, TaskId, Time};
use serde_json::json;
use std::time::SystemTime;

/// As if it had been asked at this time of day so many days ago.
async fn asked(world: &World, slot: Slot, days: &[u32]) {
    for day in days {
        let bin = Bin { peak_per_1000_s: 40_000, queries: 9_000 };
        let slot = slot.days_before(*day).unwrap();
        world
            .store
            .history()
            .put_slot(SlotSeen { slot, seen_s: 300, bins: [(TaskId(1), bin)].into() })
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn what_earlier_days_tell_of_a_task_is_shown_with_the_days() {
    let world = World::new().await;
    let forecast = async || {
        let got = world.get("/v1/tasks/fashion/forecast").await;
        assert_eq!(got.status.as_u16(), 200, "{got:?}");
        got.json()
    };
    let nothing = forecast().await;
    assert_eq!(
        (&nothing["ahead"], &nothing["expected"], &nothing["soon"]),
        (&json!("on"), &json!([]), &json!(null))
    );
    assert_eq!(nothing["known"]["since_unix_us"], json!(null));
    // Far enough from now and from midnight of the forecast that time may pass.
    let slot = Slot(Slot::of(Time(UnixMicros::of(SystemTime::now()).0)).0 + 100);
    asked(&world, slot, &[1, 2]).await;
    let shown = forecast().await;
    let expected = shown["expected"].as_array().unwrap();
    assert_eq!(expected.len(), 1, "{shown}");
    let peak = &expected[0];
    assert_eq!((&peak["at_unix_us"], &peak["per_s"]), (&json!(slot.starts().0), &json!(40.0)));
    assert_eq!(
        (&peak["queries"], &peak["on"], &peak["of"], &peak["like"]),
        (&json!(9_000), &json!(2), &json!(2), &json!("days"))
    );
    assert_eq!(peak["why"], json!(format!("asked 40/s at {slot} on 2 of the last 2 days")));
    assert_eq!((&shown["known"]["seconds"], &shown["known"]["slots"]), (&json!(600), &json!(2)));
    assert_eq!(world.get("/v1/tasks/nothing/forecast").await.status.as_u16(), 404);
}

#[tokio::test]
async fn whether_what_recurs_counts_is_changed_and_told() {
    let world = World::new().await;
    let change = async |body: &str| {
        world.ask(Method::PATCH, "/v1/tasks/fashion", "application/json", body.as_bytes()).await
    };
    assert_eq!(world.get("/v1/tasks/fashion").await.json()["ahead"], "on");
    assert_eq!(change(r#"{"ahead": "off"}"#).await.json()["ahead"], "off");
    assert_eq!(world.store.catalog().await.unwrap().tasks[0].ahead, Ahead::Off);
    assert_eq!(change(r#"{"ahead": "maybe"}"#).await.status.as_u16(), 400);
}

#[tokio::test]
async fn what_would_be_planned_goes_by_what_is_expected_too() {
    let world = World::new().await;
    let now = Slot::of(Time(UnixMicros::of(SystemTime::now()).0));
    // What runs, and the next one, so that time may pass.
    for slot in [now, Slot(now.0 + 1)] {
        asked(&world, slot, &[1, 2]).await;
    }
    let planned = world.get("/v1/plans/next").await.json();
    let steps = planned["steps"].as_array().unwrap();
    let of = |task: &str| {
        let step = steps.iter().find(|step| step["task"] == task).unwrap_or_else(|| panic!("{planned}"));
        step["why"].as_str().unwrap().to_owned()
    };
    assert!(of("fashion").contains("its task was asked 40/s at"), "{planned}");
    assert!(!of("arrays").contains("its task was asked"), "{planned}");
}
