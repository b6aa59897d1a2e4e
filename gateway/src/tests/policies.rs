//! What holds for queries beside what they say.

use super::access::{locked, made, made_for, with_key};
use super::world::{Got, Setup, World};
use modelless_store::{Access as _, Visibility};
use modelless_types::{Scope, Scopes, TaskId, TenantId};
use serde_json::{Value, json};

const ASK: &[u8] = br#"{"inputs": "iVBORw0KGgo="}"#;

async fn asked(world: &World, key: &str, goals: &str) -> Got {
    with_key(world, "POST", &format!("/v1/tasks/fashion{goals}"), key, ASK).await
}

async fn set(world: &World, key: &str, policy: Value) -> (u16, Value) {
    let got = with_key(world, "PUT", "/v1/policies", key, policy.to_string().as_bytes()).await;
    (got.status.as_u16(), got.json())
}

/// The same world for a gateway that starts now: none of these runs, so none looks at the store again.
async fn anew(world: World) -> World {
    World::with(Setup { store: Some(world.store), ..Setup::default() }).await
}

async fn told(world: &World, key: &str, got: &Got) -> Value {
    let path = format!("/v1/queries/{}/explain", got.header("modelless-query"));
    with_key(world, "GET", &path, key, b"").await.json()["asked"].clone()
}

#[tokio::test]
async fn goals_come_from_the_query_its_application_its_tenant_and_the_task_in_this_order() {
    let (world, all, _) = locked().await;
    let shop = made_for(&world, (TenantId::DEFAULT, "shop"), Scopes::ALL).await;
    let shop = shop.expose().to_owned();
    let all = all.expose().to_owned();
    let of_tenant =
        json!({"goals": {"accuracy": 0.5, "latency_ms": 400, "prefer": "cost"}, "bounds": {"max_cost": 0.5}});
    assert_eq!(set(&world, &all, of_tenant).await.0, 200);
    let of_app = json!({"app": "shop", "task": "fashion", "goals": {"accuracy": 0.91}});
    let (status, said) = set(&world, &all, of_app).await;
    assert_eq!(
        (status, &said["goals"]["accuracy"], &said["app"], &said["task"]),
        (200, &json!(0.91), &json!("shop"), &json!("fashion"))
    );
    let world = anew(world).await;

    let got = asked(&world, &shop, "").await;
    assert_eq!(
        (got.status.as_u16(), got.header("modelless-variant")),
        (200, "large-fp32"),
        "the floor of the application"
    );
    let goals = told(&world, &shop, &got).await;
    assert_eq!(
        (&goals["accuracy"], &goals["latency_ms"], &goals["max_cost"]),
        (&json!(0.91), &json!(400.0), &json!(0.5))
    );
    let from =
        json!({"accuracy": "application", "latency_ms": "tenant", "max_cost": "tenant", "prefer": "tenant"});
    assert_eq!(goals["from"], from);

    // A query's own goals go first; but a ceiling holds.
    let got = asked(&world, &shop, "?accuracy=0.85&max_cost=0.7&prefer=latency").await;
    let goals = told(&world, &shop, &got).await;
    assert_eq!(
        (&goals["accuracy"], &goals["max_cost"], &goals["prefer"]),
        (&json!(0.85), &json!(0.5), &json!("latency"))
    );
    assert_eq!(goals["from"]["accuracy"], "query");
    assert_eq!(goals["from"]["max_cost"], "tenant", "its own was higher than may be");
    let got = asked(&world, &shop, "?max_cost=0.3").await;
    assert_eq!(told(&world, &shop, &got).await["max_cost"], 0.3, "a lower one is its own");
    // Other applications have what is their tenant's.
    let got = asked(&world, &all, "").await;
    assert_eq!(told(&world, &all, &got).await["accuracy"], 0.5);
    let explained =
        with_key(&world, "POST", "/v1/tasks/fashion/explain", &shop, br#"{"goals": {}}"#).await.json();
    assert_eq!(
        (&explained["goals"]["accuracy"], &explained["goals"]["from"]["accuracy"]),
        (&json!(0.91), &json!("application"))
    );
    // Taken away.
    assert_eq!(set(&world, &all, json!({"app": "shop", "task": "fashion"})).await.0, 200);
    let listed = with_key(&world, "GET", "/v1/policies", &all, b"").await.json();
    assert_eq!(listed["policies"].as_array().unwrap().len(), 1, "{listed}");
}

#[tokio::test]
async fn no_query_goes_below_a_bound_on_floors_and_what_is_pinned_answers() {
    let (world, all, _) = locked().await;
    let all = all.expose().to_owned();
    assert_eq!(set(&world, &all, json!({"bounds": {"accuracy": 0.92}})).await.0, 200);
    let world = anew(world).await;
    for goals in ["", "?accuracy=0.1", "?prefer=cost"] {
        let got = asked(&world, &all, goals).await;
        assert_eq!((got.status.as_u16(), got.header("modelless-variant")), (200, "large-fp32"), "{goals}");
    }
    assert_eq!(told(&world, &all, &asked(&world, &all, "?accuracy=0.1").await).await["accuracy"], 0.92);
    let refused = asked(&world, &all, "?variant=small-fp32").await;
    assert_eq!(
        refused.refusal(),
        (422, "floor_unreachable".to_owned()),
        "also where it is asked for by name"
    );

    let pins = json!({"task": "fashion", "model": "small"});
    assert_eq!(set(&world, &all, json!({})).await.0, 200);
    assert_eq!(set(&world, &all, pins).await.0, 200);
    let world = anew(world).await;
    let got = asked(&world, &all, "").await;
    assert_eq!(got.header("modelless-variant"), "small-fp32");
    let goals = told(&world, &all, &got).await;
    assert_eq!((&goals["model"], &goals["from"]["pin"]), (&json!("small@1"), &json!("tenant")));
    assert_eq!(asked(&world, &all, "?model=small").await.status.as_u16(), 200, "the same by name");
    let other = asked(&world, &all, "?model=large").await;
    assert_eq!(other.refusal(), (403, "pinned_otherwise".to_owned()));
    assert!(!other.header("modelless-query").is_empty(), "it has a number as other refusals have");
}

#[tokio::test]
async fn who_pins_a_variant_where_a_model_answers_or_the_reverse_is_told_that_another_is_pinned() {
    let (mut world, all, _) = locked().await;
    let all = all.expose().to_owned();
    for (pinned, [same, other]) in [
        (json!({"task": "fashion", "model": "small"}), ["?variant=small-fp32", "?variant=large-fp32"]),
        (json!({"task": "fashion", "variant": "small-fp32"}), ["?model=small", "?model=large"]),
    ] {
        assert_eq!(set(&world, &all, pinned.clone()).await.0, 200, "{pinned}");
        world = anew(world).await;
        let got = asked(&world, &all, same).await;
        assert_eq!((got.status.as_u16(), got.header("modelless-variant")), (200, "small-fp32"), "{pinned}");
        let refused = asked(&world, &all, other).await;
        assert_eq!(refused.refusal(), (403, "pinned_otherwise".to_owned()), "{pinned}");
    }
}

#[tokio::test]
async fn a_ceiling_holds_also_for_who_takes_the_best_that_can_be_done() {
    let (world, all, _) = locked().await;
    let all = all.expose().to_owned();
    let ask = async |world: &World| asked(world, &all, "?fallback=best_effort").await;
    assert_eq!(set(&world, &all, json!({"goals": {"max_cost": 0.000_01}})).await.0, 200);
    let world = anew(world).await;
    assert_eq!(ask(&world).await.status.as_u16(), 200, "a goal gives way");
    assert_eq!(set(&world, &all, json!({"bounds": {"max_cost": 0.000_01}})).await.0, 200);
    let world = anew(world).await;
    assert_eq!(ask(&world).await.refusal(), (422, "cost_unreachable".to_owned()));
}

#[tokio::test]
async fn who_may_say_it_and_what_makes_no_sense_is_refused() {
    let (world, all, without) = locked().await;
    let tenant = world.store.create_tenant("other").await.unwrap().id;
    world.store.share_model(TaskId(1), "small", Visibility::Public).await.unwrap();
    let theirs = made(&world, tenant, Scopes::ALL).await;
    world.store.app(tenant, "shop").await.unwrap();
    let world = anew(world).await;
    let (all, theirs) = (all.expose(), theirs.expose());
    let goals = json!({"accuracy": 0.5});
    let (status, said) = set(&world, theirs, json!({"goals": goals})).await;
    assert_eq!(
        (status, &said["reason"]),
        (403, &json!("missing_scope")),
        "of all of a tenant only operators say it"
    );
    assert_eq!(set(&world, theirs, json!({"app": "shop", "goals": goals})).await.0, 200);
    assert_eq!(set(&world, theirs, json!({"tenant": "default", "app": "shop", "goals": goals})).await.0, 404);
    assert_eq!(set(&world, all, json!({"tenant": "other", "goals": goals})).await.0, 200);
    let seen = async |key: &str| {
        let listed = with_key(&world, "GET", "/v1/policies", key, b"").await.json();
        listed["policies"].as_array().unwrap().len()
    };
    assert_eq!((seen(theirs).await, seen(all).await), (2, 2));
    assert_eq!(set(&world, all, json!({"bounds": {"accuracy": 0.1}})).await.0, 200);
    assert_eq!((seen(theirs).await, seen(all).await), (2, 3), "nobody sees another tenant's");
    for (scope, key) in without.iter().filter(|(scope, _)| *scope == Scope::Admin) {
        assert_eq!(set(&world, key.expose(), json!({"app": "shop"})).await.0, 403, "{scope:?}");
    }
    for wrong in [
        json!({"goals": {"accuracy": 1.5}}),
        json!({"goals": {"priority": 1}}),
        json!({"bounds": {"latency_ms": 5}}),
        json!({"goal": {}}),
        json!({"model": "small"}),
    ] {
        assert_eq!(set(&world, all, wrong.clone()).await.0, 400, "{wrong}");
    }
    assert_eq!(set(&world, all, json!({"task": "fashoin", "goals": goals})).await.0, 404);
    let (status, said) = set(&world, theirs, json!({"app": "shpo", "goals": goals})).await;
    assert_eq!((status, &said["reason"]), (404, &json!("unknown_app")));
    assert!(said["error"].as_str().unwrap().contains("did you mean \"shop\"?"), "{said}");
    let doors = world.store.doors().await.unwrap();
    assert!(doors.apps.iter().all(|app| app.name != "shpo"), "none is made for a slip of the pen");
    assert_eq!(set(&world, all, json!({"task": "fashion", "model": "big"})).await.0, 422);
}
