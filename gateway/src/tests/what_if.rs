//! What would be planned, of variants and machines: as it is, and as if something were otherwise.

use super::world::{Setup, World, profile};
use modelless_decision::fleet::Pool;
use modelless_live::{Load, Member, Role};
use modelless_planning::PoolSetting;
use modelless_store::{MachineStep, NewMachine, PoolStands, Signed, Store as _, UnixMicros};
use modelless_types::{MachineState, Micros, PricePerHour};
use serde_json::{Value, json};

fn setting(least: u32, most: u32) -> PoolSetting {
    let rules = Pool {
        name: "p".to_owned(),
        least,
        most,
        price: PricePerHour(100_000),
        joins_within: Micros::ZERO,
        drains_within: Micros::from_secs(60),
        settles: Micros::from_secs(15),
        young: Micros::from_secs(60),
        lost_after: Micros::from_secs(30),
    };
    let (start_up, lanes) = (Micros::from_secs(5), Some(1));
    PoolSetting {
        rules,
        joins_within_is_set: false,
        start_up,
        device_class: Some(super::world::CLASS.to_owned()),
        lanes,
    }
}

/// As a scheduler says it.
async fn said(world: &World, setting: &PoolSetting) {
    let json =
        json!({"setting": setting, "listed": true, "busy": 0.5, "strain": 1.0, "budget_usd_per_hour": null});
    let stands = PoolStands { name: "p".to_owned(), json: json.to_string(), at: UnixMicros(7) };
    world.store.rented().put_pools(vec![stands]).await.unwrap();
}

/// A machine that has joined long ago, and its node.
async fn joined(world: &World, name: &str) -> Member {
    let by = || Signed { who: "s".to_owned(), at: UnixMicros(1_000_000) };
    let found = Some((name.to_owned(), format!("i-{name}")));
    let (price, why) = (PricePerHour(100_000), String::new());
    let new = NewMachine { pool: "p".to_owned(), found, price, most: 9, budget: None, why, by: by() };
    let machine = world.store.rented().add_machine(new).await.unwrap().unwrap();
    let (from, to) = (MachineState::Starting, MachineState::Joined);
    let step = MachineStep { machine: machine.id, from, to, instance: None, why: String::new(), by: by() };
    world.store.rented().move_machine(step).await.unwrap();
    Member { load: Load { lanes: 1, ..Load::default() }, ..Member::new(Role::Node, name, 1) }
}

async fn planned(world: &World, query: &str) -> Value {
    let got = world.get(&format!("/v1/plans/next{query}")).await;
    assert_eq!(got.status.as_u16(), 200, "{}", got.json());
    got.json()
}

fn steps(planned: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = planned["machines"]["steps"].as_array().unwrap().iter();
    all.map(|step| (text(&step["step"]), text(&step["machine"]))).collect()
}

#[tokio::test]
async fn machines_that_would_come_or_go_are_told_for_what_is_asked_or_would_be() {
    let world = World::new().await;
    assert_eq!(planned(&world, "").await["machines"], Value::Null, "no scheduler sees to any");
    said(&world, &setting(1, 9)).await;
    let short = planned(&world, "").await;
    assert_eq!(steps(&short), [("start".to_owned(), String::new())], "the minimum lacks: {short}");
    assert_eq!(short["machines"]["usd_per_hour"], json!({"now": 0.0, "then": 0.1}));
    world.handle.set_members(vec![joined(&world, "p-1").await]);
    assert!(steps(&planned(&world, "").await).is_empty(), "it is there");

    // Without it another one comes.
    let gone = planned(&world, "?without=p-1").await;
    assert_eq!(steps(&gone).len(), 1, "{gone}");
    let other = world.get("/v1/plans/next?without=p-2").await;
    assert_eq!(other.refusal(), (404, "unknown_node".to_owned()));

    // More than one does.
    let more = planned(&world, "?demand=fashion=3000").await;
    let (wanted, blocked) =
        (&more["machines"]["pools"][0]["wanted_least"], &more["machines"]["pools"][0]["blocked"]);
    assert!(wanted.as_u64() > Some(1) && steps(&more).len() as u64 + 1 == wanted.as_u64().unwrap(), "{more}");
    assert_eq!((blocked, &more["machines"]["demand_per_s"]), (&Value::Null, &json!(3_000.0)));
    let most = planned(&world, "?demand=fashion=1000000").await;
    assert_eq!(steps(&most).len(), 8, "no more than may be: {most}");
    let none = world.get("/v1/plans/next?demand=fashion=x10").await;
    assert_eq!(none.refusal(), (409, "nothing_asked".to_owned()));
    for wrong in ["demand=fashion", "demand=fashion=fast", "demand=fashion=-1"] {
        let got = world.get(&format!("/v1/plans/next?{wrong}")).await;
        assert_eq!(got.refusal(), (400, "malformed".to_owned()), "{wrong}");
    }
    let got = world.get("/v1/plans/next?demand=fashoin=5").await;
    assert_eq!(got.refusal(), (404, "unknown_task".to_owned()));
}

#[tokio::test]
async fn what_becomes_of_machines_by_the_rules_of_others_is_not_told_as_if_it_were_by_ours() {
    let world = World::new().await;
    let setting = setting(1, 9);
    let json = json!({"setting": setting, "listed": true, "busy": 0.5, "strain": 1.0, "budget_usd_per_hour": null, "rules": "infaas"});
    let stands = PoolStands { name: "p".to_owned(), json: json.to_string(), at: UnixMicros(7) };
    world.store.rented().put_pools(vec![stands]).await.unwrap();
    let machines = planned(&world, "").await["machines"].clone();
    assert_eq!(
        (&machines["rules"], &machines["steps"], &machines["pools"]),
        (&json!("infaas"), &json!([]), &json!([]))
    );
    let supposed = json!({"pools": {"budget": null, "busy": 0.5, "pools": [setting]}});
    let got = world.post("/v1/plans/next", "application/json", supposed.to_string().as_bytes()).await.json();
    assert_eq!((&got["machines"]["rules"], steps(&got).len()), (&json!("modelless"), 1), "{got}");
}

#[tokio::test]
async fn a_machine_too_many_would_go_and_other_pools_can_be_supposed() {
    let world = World::new().await;
    said(&world, &setting(2, 9)).await;
    let there = [joined(&world, "p-1").await, joined(&world, "p-2").await];
    world.handle.set_members(there.to_vec());
    assert!(steps(&planned(&world, "").await).is_empty());
    let post = async |body: Value| {
        let got = world.post("/v1/plans/next", "application/json", body.to_string().as_bytes()).await;
        (got.status.as_u16(), got.json())
    };
    let pools = |setting: PoolSetting| json!({"pools": {"budget": null, "busy": 0.5, "pools": [setting]}});
    // Nothing is asked, and what is supposed is known for long enough.
    let mut fewer = pools(setting(0, 9));
    fewer["demand"] = json!({"fashion": "0"});
    let (status, planned) = post(fewer).await;
    assert_eq!(status, 200, "{planned}");
    let steps = steps(&planned);
    assert_eq!(
        steps.iter().map(|(what, _)| what.as_str()).collect::<Vec<_>>(),
        ["drain", "drain"],
        "{planned}"
    );
    assert_eq!(planned["machines"]["usd_per_hour"], json!({"now": 0.2, "then": 0.0}));
    let mut dear = setting(2, 9);
    dear.start_up = Micros(u64::MAX);
    assert_eq!(post(pools(dear)).await.0, 400);
    assert_eq!(post(pools(setting(3, 2))).await.0, 400);
    assert_eq!(post(json!({"pool": 1})).await.0, 400);
    // Nothing of it was done.
    assert_eq!(world.store.rented().machines().await.unwrap().len(), 2);
    assert!(world.store.rented().machine_changes(None, 99).await.unwrap().iter().all(|of| of.who == "s"));
}

#[tokio::test]
async fn another_profile_makes_other_words_of_plans_machines_and_explanations() {
    async fn told(world: &World) -> (Value, Value, Value) {
        said(world, &setting(0, 1_000)).await;
        let planned = planned(world, "?demand=fashion=3000").await;
        let explained = world.get("/v1/tasks/fashion/explain?accuracy=0.85").await.json();
        let wanted = planned["machines"]["pools"][0]["wanted_least"].clone();
        (planned["steps"].clone(), wanted, explained["candidates"].clone())
    }
    let world = World::new().await;
    let before = told(&world).await;
    assert_eq!(told(&world).await, before, "the same figures make the same words");
    let catalog = world.store.catalog().await.unwrap();
    let small = catalog.variants.iter().find(|variant| variant.name == "small-fp32").unwrap();
    // It takes three times as long.
    world.store.put_profile(small.id, profile(3_000.0, 900, 1_000)).await.unwrap();
    let after = told(&World::with(Setup { store: Some(world.store), ..Setup::default() }).await).await;
    assert_ne!(before.0, after.0, "the steps of a plan");
    assert!(after.1.as_u64() > before.1.as_u64(), "{} machines, and then {}", before.1, after.1);
    assert_ne!(before.2, after.2, "candidates");
}
