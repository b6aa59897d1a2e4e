use super::*;
use modelless_decision::Moments;
use modelless_decision::RunModel;
use modelless_decision::query::Class;
use modelless_decision::route::{NodeInfo, Offer, Ready};
use modelless_store::{MemStore, NewModel, NewTask, NewTrial, NewVariant, Signed};
use modelless_types::{
    Accuracy, AccuracyMeasure, AccuracyRule, BatchPoint, Bytes, DeviceIx, Engine, Goals, Micros,
    PricePerHour, Profile, Provenance, Share, StageTime, TaskId, TaskKind, TenantId, Variant,
    VariantSettings,
};
use std::sync::Mutex;

mod ahead;

const HALF_LIFE: Duration = Duration::from_micros(modelless_decision::demand::HALF_LIFE.0);

#[derive(Default)]
struct Told(Mutex<Vec<Vec<(DeviceIx, VariantId)>>>);

impl NodeLink for Told {
    fn send(&self, frame: ToNode) {
        if let ToNode::Pin { pins, .. } = frame {
            self.0.lock().unwrap().push(pins);
        }
    }
}

fn profile(ppm: u32, us: f64) -> Profile {
    let accuracy = Accuracy::from_ppm(ppm).unwrap();
    Profile {
        device_class: "cpu:test:2".into(),
        latency: vec![BatchPoint { batch: 1, mean_us: us, var_us2: 1.0, p99_us: us, samples: 10 }],
        latency_provenance: Provenance::Measured,
        decode: StageTime::default(),
        prepare: StageTime::default(),
        memory: Bytes::from_mib(10),
        peak: None,
        load_time: Micros::from_millis(5),
        accuracy: AccuracyMeasure {
            value: accuracy,
            low: accuracy,
            high: accuracy,
            samples: 100,
            set: "made up".into(),
            provenance: Provenance::Measured,
            device_class: "cpu:test:2".into(),
            command: "none".into(),
        },
        also: Vec::new(),
        detail: modelless_types::Detail::default(),
    }
}

fn variant(name: &str, ppm: u32, us: f64) -> NewVariant {
    NewVariant {
        name: name.into(),
        settings: VariantSettings::new(Engine::Onnx, "fp32", 8),
        artefact: "0".repeat(64),
        artefact_bytes: Bytes(1),
        profiles: vec![profile(ppm, us)],
    }
}

pub(crate) async fn store_with_ladder() -> (Arc<dyn Store>, Vec<Variant>) {
    store_with(vec![
        variant("fast", 800_000, 10.0),
        variant("good", 900_000, 50.0),
        variant("bad", 700_000, 99.0),
    ])
    .await
}

fn new_model(task: TaskId, variants: Vec<NewVariant>) -> NewModel {
    NewModel {
        task,
        tenant: TenantId::DEFAULT,
        name: "m".into(),
        version: 1,
        architecture: "made up".into(),
        licence: "Apache-2.0".into(),
        owner: String::new(),
        promote: false,
        by: Signed::default(),
        space: None,
        adapter: "{}".into(),
        variants,
    }
}

async fn store_with(variants: Vec<NewVariant>) -> (Arc<dyn Store>, Vec<Variant>) {
    let store: Arc<dyn Store> = Arc::new(MemStore::new());
    let task = NewTask {
        tenant: TenantId::DEFAULT,
        name: "t".into(),
        kind: TaskKind::ImageClassification,
        metric: "top-1".into(),
        accuracy_rule: AccuracyRule::default(),
        live_accuracy: modelless_types::LiveRule::default(),
        declared_accuracy: modelless_types::DeclaredRule::default(),
        labels: vec!["a".into(), "b".into()],
        inputs: Vec::new(),
        outputs: Vec::new(),
        space: None,
        defaults: Goals::default(),
        batching: None,
        cache: modelless_types::CacheFor::OFF,
        keep: modelless_types::KeepFor::ALWAYS,
        ahead: modelless_types::Ahead::default(),
        description: String::new(),
    };
    let task = store.create_task(task).await.unwrap();
    let registered = store.register_model(new_model(task.id, variants)).await.unwrap();
    (store, registered.variants)
}

fn node(variants: &[Variant]) -> (watch::Sender<NodeStatus>, watch::Receiver<NodeStatus>) {
    node_of(1, 100, variants)
}

fn node_of(
    number: u32,
    mib: u64,
    variants: &[Variant],
) -> (watch::Sender<NodeStatus>, watch::Receiver<NodeStatus>) {
    let offer = |v: &Variant| Offer {
        task: TaskId(1),
        ordinal: v.ordinal,
        ready: Ready::Cold { load: Micros::from_millis(5) },
        run: RunModel::from_profile(&v.profiles[0]).unwrap(),
        width: 1,
    };
    let id = NodeId(number);
    let info = NodeInfo {
        id,
        rtt: Moments::ZERO,
        price: PricePerHour(50_000),
        offers: variants.iter().map(offer).collect(),
    };
    watch::channel(NodeStatus {
        memory_budget: Bytes::from_mib(mib),
        ..NodeStatus::idle(info, "n", "cpu:test:2")
    })
}

#[test]
fn what_cannot_be_done_is_refused_by_name() {
    assert_eq!(Config::default().check(), Ok(()));
    let why = Config { interval_ms: 9, ..Config::default() }.check().unwrap_err();
    assert!(why.contains("`scheduler.interval_ms` is 9") && why.contains("10 or more"), "{why}");
    let why = Config { discretionary_permille: 1_001, ..Config::default() }.check().unwrap_err();
    assert!(why.contains("`scheduler.discretionary_permille` is 1001"), "{why}");
}

#[tokio::test]
async fn pins_the_frontier_once_and_says_it_once() {
    let (store, variants) = store_with_ladder().await;
    let (_keep, status) = node(&variants);
    let told = Arc::new(Told::default());
    let nodes = vec![Node { status, link: told.clone() }];
    let (mut service, _handle) = build(Config::default(), store.clone(), nodes);
    service.round().await.unwrap();
    let first = store.current_plan().await.unwrap().unwrap();
    service.round().await.unwrap();
    assert_eq!(store.current_plan().await.unwrap().unwrap().id, first.id, "planning again saved nothing");
    let expected: Vec<_> = [0, 1].map(|at| (DeviceIx(0), variants[at].id)).into();
    assert_eq!(*told.0.lock().unwrap(), vec![expected]);
}

/// What is told late must be known as older, so also those are told of a plan whom it changes nothing for.
#[tokio::test]
async fn a_node_is_told_the_number_of_every_plan() {
    #[derive(Default)]
    struct Numbers(Mutex<Vec<PlanId>>);
    impl NodeLink for Numbers {
        fn send(&self, frame: ToNode) {
            let ToNode::Pin { plan, .. } = frame else { panic!("{frame:?}") };
            self.0.lock().unwrap().push(plan);
        }
    }
    let (store, variants) = store_with_ladder().await;
    let (_keep, status) = node(&variants);
    let told = Arc::new(Numbers::default());
    let nodes = vec![Node { status, link: told.clone() }];
    let (mut service, _handle) = build(Config::default(), store.clone(), nodes);
    service.round().await.unwrap();
    let first = store.current_plan().await.unwrap().unwrap();
    let other = store.save_plan(Some(first.id), first.json, UnixMicros(7)).await.unwrap();
    service.round().await.unwrap();
    let second = store.current_plan().await.unwrap().unwrap().id;
    assert_eq!(other, SavePlan::Saved(second), "by another scheduler");
    assert_eq!(*told.0.lock().unwrap(), [first.id, second]);
}

#[tokio::test]
async fn a_scheduler_that_starts_later_tells_what_is_saved() {
    let (store, variants) = store_with_ladder().await;
    let (_keep, status) = node(&variants);
    for _ in 0..2 {
        let told = Arc::new(Told::default());
        let nodes = vec![Node { status: status.clone(), link: told.clone() }];
        let (mut service, _handle) = build(Config::default(), store.clone(), nodes);
        service.round().await.unwrap();
        assert_eq!(told.0.lock().unwrap().len(), 1);
    }
    assert_eq!(
        store.current_plan().await.unwrap().unwrap().parent,
        None,
        "the second found nothing to change"
    );
}

#[tokio::test]
async fn a_saved_plan_that_cannot_be_read_is_an_error_and_is_left_alone() {
    let (store, variants) = store_with_ladder().await;
    let (_keep, status) = node(&variants);
    let _ = store.save_plan(None, r#"{"pins": 7}"#.into(), UnixMicros(1)).await.unwrap();
    let nodes = vec![Node { status, link: Arc::new(Told::default()) }];
    let (mut service, _handle) = build(Config::default(), store.clone(), nodes);
    assert!(matches!(service.round().await, Err(Error::Unreadable { .. })));
    assert_eq!(store.current_plan().await.unwrap().unwrap().json, r#"{"pins": 7}"#);
}

#[tokio::test]
async fn a_version_on_trial_is_judged_whatever_becomes_of_the_plan() {
    let (store, variants) = store_with_ladder().await;
    let (_keep, status) = node(&variants);
    let _ = store.save_plan(None, r#"{"pins": 7}"#.into(), UnixMicros(1)).await.unwrap();
    let ladder = store.catalog().await.unwrap().models.remove(0);
    let second = NewModel {
        version: 2,
        variants: vec![variant("other", 800_000, 10.0)],
        ..new_model(ladder.task, Vec::new())
    };
    let candidate = store.register_model(second).await.unwrap().model.id;
    for nodes in [vec![Node { status, link: Arc::new(Told::default()) }], Vec::new()] {
        let new = NewTrial {
            candidate,
            share: Share::from_ppm(50_000).unwrap(),
            shadow: false,
            lasts: Micros(1),
            promote_when_good: false,
            forced: true,
            by: Signed::default(),
        };
        store.on_trial().begin_trial(new).await.unwrap();
        let reached = !nodes.is_empty();
        let (mut service, _handle) = build(Config::default(), store.clone(), nodes);
        assert_eq!(service.round().await.is_err(), reached, "the plan cannot be read");
        assert!(store.catalog().await.unwrap().trials.is_empty(), "its time is over");
    }
}

#[tokio::test]
async fn a_node_that_is_there_again_is_told_again_and_one_that_is_gone_is_not_planned_for() {
    let (store, variants) = store_with_ladder().await;
    let (mut service, handle) = build(Config::default(), store.clone(), Vec::new());
    service.round().await.unwrap();
    assert!(store.current_plan().await.unwrap().is_none(), "nobody to plan for");
    for _ in 0..2 {
        let (_there, status) = node(&variants);
        let told = Arc::new(Told::default());
        handle.add_node(Node { status, link: told.clone() });
        service.round().await.unwrap();
        service.round().await.unwrap();
        assert_eq!(told.0.lock().unwrap().len(), 1, "each connection is told once");
    }
    let plan = store.current_plan().await.unwrap().unwrap();
    service.round().await.unwrap();
    let after = store.current_plan().await.unwrap().unwrap();
    assert_eq!(after.id, plan.id, "with nobody there the last plan stays");
}

#[tokio::test]
async fn a_node_whose_newest_connection_ends_is_told_over_an_older_one_that_stands() {
    let (store, variants) = store_with_ladder().await;
    let (mut service, handle) = build(Config::default(), store.clone(), Vec::new());
    let (_stands, older) = node(&variants);
    let (ends, newest) = node(&variants);
    let told: Vec<_> = [older, newest]
        .map(|status| {
            let told = Arc::new(Told::default());
            handle.add_node(Node { status, link: told.clone() });
            told
        })
        .into();
    service.round().await.unwrap();
    let counts = || [0, 1].map(|at| told[at].0.lock().unwrap().len());
    assert_eq!(counts(), [0, 1], "one connection is enough");
    drop(ends);
    service.round().await.unwrap();
    assert_eq!(counts(), [1, 1]);
}

/// What is asked of the second variant alone and of the third alone, as a gateway announces it.
fn asked(second: u64, third: u64) -> Vec<Member> {
    let class = |ordinal, arrived| modelless_live::Demand {
        class: Class { task: TaskId(1), admits: [ordinal].into_iter().collect() },
        arrived,
        in_time: 0,
        waiting: 0,
        within: Vec::new(),
    };
    let demand = [class(1, second), class(2, third)].into();
    vec![Member { demand, ..Member::new(modelless_live::Role::Gateway, "g", 1) }]
}

/// A store with a fast variant, the best, and two between them, and a node with room for three of the four.
async fn short_of_room() -> (Arc<dyn Store>, watch::Sender<NodeStatus>, watch::Receiver<NodeStatus>) {
    let ladder = vec![
        variant("fast", 800_000, 10.0),
        variant("second", 850_000, 30.0),
        variant("third", 870_000, 40.0),
        variant("best", 950_000, 90.0),
    ];
    let (store, variants) = store_with(ladder).await;
    let (keep, status) = node_of(1, 41, &variants); // 30 MiB beside the discretionary share
    (store, keep, status)
}

fn scheduler(store: &Arc<dyn Store>, status: &watch::Receiver<NodeStatus>) -> (Service, Handle) {
    let nodes = vec![Node { status: status.clone(), link: Arc::new(Told::default()) }];
    build(Config::default(), Arc::clone(store), nodes)
}

async fn planned(store: &Arc<dyn Store>) -> (PlanId, Plan) {
    let saved = store.current_plan().await.unwrap().unwrap();
    (saved.id, serde_json::from_str(&saved.json).unwrap())
}

/// A scheduler that has watched demand for long enough and then saw so much of it.
async fn sees((service, handle): &mut (Service, Handle), second: u64, third: u64) {
    handle.set_members(asked(0, 0));
    service.round().await.unwrap();
    tokio::time::advance(HALF_LIFE).await;
    service.round().await.unwrap();
    handle.set_members(asked(second, third));
    service.round().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn two_schedulers_that_count_differently_do_not_fight_over_the_plan_and_a_restart_moves_nothing() {
    let (store, _keep, status) = short_of_room().await;
    let (mut one, mut two) = (scheduler(&store, &status), scheduler(&store, &status));
    sees(&mut one, 0, 100).await;
    let (id, plan) = planned(&store).await;
    let pinned: Vec<u32> = plan.pins.iter().map(|pin| pin.variant.0).collect();
    assert_eq!(pinned, [1, 3, 4], "the fastest, the best, and of those between the one that is asked for");

    let mut fresh = scheduler(&store, &status);
    for _ in 0..3 {
        fresh.0.round().await.unwrap();
        one.0.round().await.unwrap();
        assert_eq!(planned(&store).await.0, id, "one that has just started knows nothing");
    }
    sees(&mut two, 120, 60).await;
    assert_eq!(planned(&store).await.0, id, "one level more for the other");
    for _ in 0..3 {
        one.0.round().await.unwrap();
        two.0.round().await.unwrap();
        assert_eq!(planned(&store).await.0, id);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_pinned_stays_while_the_live_state_is_away() {
    let (store, _keep, status) = short_of_room().await;
    let mut one = scheduler(&store, &status);
    sees(&mut one, 0, 100).await;
    let (id, _) = planned(&store).await;
    let (_answers, answers) = watch::channel(false);
    one.1.set_live(answers);
    one.1.set_members(Vec::new());
    for _ in 0..20 {
        tokio::time::advance(HALF_LIFE).await;
        one.0.round().await.unwrap();
    }
    assert_eq!(planned(&store).await.0, id);
    assert_eq!(one.0.asked.demands.level(modelless_types::TaskId(1), 2), 7);
}

#[tokio::test(start_paused = true)]
async fn what_is_pinned_on_nodes_that_are_not_reached_yet_stays_until_they_are_gone() {
    let (store, variants) = store_with_ladder().await;
    let nodes: Vec<_> = (1..=3).map(|number| node_of(number, 100, &variants)).collect();
    let all =
        nodes.iter().map(|(_, status)| Node { status: status.clone(), link: Arc::new(Told::default()) });
    let (mut first, _handle) = build(Config::default(), store.clone(), all.collect());
    first.round().await.unwrap();
    let (id, plan) = planned(&store).await;
    assert_eq!(plan.pins.len(), 6);

    let (mut later, handle) = scheduler(&store, &nodes[0].1);
    let node = |number| Member {
        node: Some(NodeId(number)),
        ..Member::new(modelless_live::Role::Node, &number.to_string(), 1)
    };
    handle.set_members(vec![node(1), node(2)]);
    later.round().await.unwrap();
    tokio::time::advance(absent::GONE_AFTER / 2).await;
    later.round().await.unwrap();
    assert_eq!(planned(&store).await.0, id, "the others may come yet");
    tokio::time::advance(absent::GONE_AFTER / 2).await;
    later.round().await.unwrap();
    let (_, plan) = planned(&store).await;
    let left: std::collections::BTreeSet<_> = plan.pins.iter().map(|pin| pin.node.0).collect();
    assert_eq!((plan.pins.len(), left), (4, [1, 2].into()), "the second is announced, the third is not");
    store.remove_model(variants[0].model, true, Signed::default()).await.unwrap();
    later.round().await.unwrap();
    assert_eq!(planned(&store).await.1.pins, [], "nor does what is not registered any more");
    drop(handle);
}

#[tokio::test(start_paused = true)]
async fn a_plan_is_told_with_what_it_changed_and_a_node_that_it_gives_up_is_told_as_lost() {
    let (store, variants) = store_with_ladder().await;
    let (keep, status) = node(&variants);
    let (_other, second) = node_of(2, 100, &variants);
    let (service, handle) = scheduler(&store, &status);
    let mut service = service.named("s");
    handle.add_node(Node { status: second, link: Arc::new(Told::default()) });
    service.round().await.unwrap();
    service.round().await.unwrap();
    let told = store.events(None, 9).await.unwrap();
    assert_eq!(told.len(), 1, "a plan that stays is not told again: {told:?}");
    let first = &told[0].about;
    assert_eq!((first.what.as_str(), first.who.as_str()), ("plan 1", "scheduler s"));
    assert!(
        first.cause.contains("4 pinned, 0 let go") && first.cause.contains("+ fast on n"),
        "{}",
        first.cause
    );
    drop(keep);
    service.round().await.unwrap();
    assert_eq!(store.events(None, 9).await.unwrap().len(), 1, "it may come back yet");
    tokio::time::advance(absent::GONE_AFTER).await;
    service.round().await.unwrap();
    let told = store.events(None, 9).await.unwrap();
    let shown: Vec<_> = told.iter().map(|event| (event.about.what.as_str(), event.about.node)).collect();
    assert_eq!(shown, [("plan 1", None), ("lost", Some(NodeId(1))), ("plan 2", None)]);
    assert!(told[2].about.cause.contains("0 pinned, 2 let go"), "{told:?}");
}

/// A gateway that has been there for so long, with when each query for the task came last, in seconds.
fn told_by_gateway(up_s: u64, asked_s: Option<u64>) -> Member {
    let task = modelless_types::TaskId(1);
    let asked = asked_s.map(|at| modelless_live::Asked { task, at: Micros::from_secs(at) });
    Member {
        up: Some(Micros::from_secs(up_s)),
        asked: asked.into_iter().collect(),
        tells_all_asked: true,
        ..Member::new(modelless_live::Role::Gateway, "g", 1)
    }
}

async fn turned(store: &dyn Store) -> Vec<(String, String)> {
    let events = store.events(None, 100).await.unwrap().into_iter().map(|event| event.about);
    let of_tasks = events.filter(|event| event.kind == modelless_store::EventKind::Task);
    of_tasks
        .inspect(|event| assert_eq!(event.task.map(|task| task.0), Some(1)))
        .map(|e| (e.what, e.cause))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_task_that_nobody_asks_for_falls_asleep_and_wakes_and_a_new_scheduler_moves_nothing() {
    let (store, variants) = store_with_ladder().await;
    let keep = modelless_types::KeepFor::seconds(60);
    let change = modelless_store::TaskChange { keep, ..modelless_store::TaskChange::default() };
    store.change_task(modelless_types::TaskId(1), change).await.unwrap();
    let (_keep, status) = node(&variants);
    let told = Arc::new(Told::default());
    let start = || {
        let nodes = vec![Node { status: status.clone(), link: told.clone() }];
        build(Config::default(), store.clone(), nodes)
    };
    let (mut service, handle) = start();
    let mut up = 1_000;
    // Nobody has asked for an hour by what the gateway says; but the scheduler has only begun to look.
    handle.set_members(vec![told_by_gateway(up, None)]);
    service.round().await.unwrap();
    let pins = || told.0.lock().unwrap().last().cloned().unwrap();
    assert_eq!((pins().len(), turned(&*store).await.len()), (2, 0));
    let mut pass = 0;
    while turned(&*store).await.is_empty() {
        pass += 1;
        up += 1;
        tokio::time::advance(Duration::from_secs(1)).await;
        handle.set_members(vec![told_by_gateway(up, None)]);
        service.round().await.unwrap();
        assert!(pass < 10, "it is known after a few seconds");
    }
    let slept = turned(&*store).await;
    assert!(slept[0].0 == "asleep" && slept[0].1.contains("kept for 1 min"), "{slept:?}");
    assert!(pins().is_empty());

    let saved = store.current_plan().await.unwrap().unwrap().id;
    let (mut service, handle) = start();
    service.round().await.unwrap();
    for _ in 0..20 {
        tokio::time::advance(Duration::from_secs(1)).await;
        // A gateway that has started again, too.
        handle.set_members(vec![told_by_gateway(3, None)]);
        service.round().await.unwrap();
    }
    assert_eq!(store.current_plan().await.unwrap().unwrap().id, saved, "nothing was moved");

    handle.set_members(vec![told_by_gateway(30, Some(29))]);
    service.round().await.unwrap();
    let turns = turned(&*store).await;
    assert!(turns.len() == 2 && turns[1].0 == "awake" && turns[1].1.contains("1 s ago"), "{turns:?}");
    assert_eq!(pins().len(), 2);
}
