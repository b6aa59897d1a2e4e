//! Random tables, queries and logs that every test here shares.

use modelless_decision::query::Class;
use modelless_decision::route::{NodeInfo, Offer, Ready, Table, TaskInfo, VariantInfo};
use modelless_decision::worker::WorkerVariant;
use modelless_decision::{Machine, Moments, Query, RunModel};
use modelless_types::{
    Accuracy, AppId, BatchPoint, Bytes, CostPer1k, Engine, Fallback, Goals, Micros, ModelId, NodeId, Prefer,
    PricePerHour, Priority, QueryKey, SpaceId, TaskId, TenantId, Time, VariantId, VariantSet,
};
use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub(crate) const TASK: TaskId = TaskId(7);

pub(crate) fn prefer() -> impl Strategy<Value = Prefer> {
    prop_oneof![Just(Prefer::Accuracy), Just(Prefer::Cost), Just(Prefer::Latency)]
}

pub(crate) fn run_model() -> impl Strategy<Value = RunModel> {
    let price =
        prop_oneof![4 => Just(None), 1 => (0_u64..5_000_000).prop_map(|price| Some(PricePerHour(price)))];
    (10.0..50_000.0_f64, 0.0..0.5_f64, 0.05..1.0_f64, 0.0..100.0_f64, 0.0..500.0_f64, price).prop_map(
        |(one, scatter, share, prepare, decode, price)| {
            let point = |batch: u32, mean_us: f64| BatchPoint {
                batch,
                mean_us,
                var_us2: (scatter * mean_us) * (scatter * mean_us),
                p99_us: mean_us,
                samples: 9,
            };
            let points = [point(1, one), point(8, one * (1.0 + 7.0 * share))];
            let per_item = Moments { mean: prepare, var: prepare };
            let model = RunModel::from_points(&points, per_item).expect("two points");
            model.with_decode(Moments { mean: decode, var: 0.0 }).with_price(price)
        },
    )
}

/// One task with up to six variants of up to three models in two output spaces.
pub(crate) fn task() -> impl Strategy<Value = TaskInfo> {
    let variant = (0_u32..=10, 1_u32..=3, 1_u32..=8);
    (proptest::collection::vec(variant, 1..=6), goals()).prop_map(|(variants, defaults)| TaskInfo {
        id: TASK,
        default_space: SpaceId(1),
        defaults: Goals { model: None, variant: None, accuracy: None, ..defaults },
        variants: variants
            .into_iter()
            .zip(0_u8..)
            .map(|((tenths, model, max_batch), at)| VariantInfo {
                id: VariantId(100 + u32::from(at)),
                model: ModelId(model),
                ordinal: at * 3,
                // A model answers in one space.
                space: SpaceId(if model == 3 { 2 } else { 1 }),
                accuracy: Accuracy::from_ppm(tenths * 100_000).expect("at most one"),
                max_batch,
                // A version answers or is tried as a whole.
                candidate: model == 2,
            })
            .collect(),
    })
}

fn ready() -> impl Strategy<Value = Ready> {
    prop_oneof![
        4 => Just(Ready::Resident),
        1 => (0_u64..200_000).prop_map(|at| Ready::Loading { at: Time(at) }),
        1 => (0_u64..200_000).prop_map(|load| Ready::Cold { load: Micros(load) }),
    ]
}

/// Nodes that offer some of a task's variants.
pub(crate) fn nodes(task: TaskInfo) -> impl Strategy<Value = Table> {
    let offer = (0..task.variants.len(), ready(), run_model());
    let node = (proptest::collection::vec(offer, 0..=4), 0.0..2_000.0_f64, 0_u64..5_000_000);
    proptest::collection::vec(node, 0..=5).prop_map(move |nodes| Table {
        tasks: vec![task.clone()],
        nodes: nodes
            .into_iter()
            .zip(1..)
            .map(|((mut offers, rtt, price), id)| {
                offers.sort_by_key(|(at, _, _)| *at);
                offers.dedup_by_key(|(at, _, _)| *at);
                let offer = |(at, ready, run): (usize, Ready, RunModel)| Offer {
                    task: TASK,
                    ordinal: task.variants[at].ordinal,
                    ready,
                    run,
                    width: 1,
                };
                NodeInfo {
                    id: NodeId(id),
                    rtt: Moments { mean: rtt, var: rtt },
                    price: PricePerHour(price),
                    offers: offers.into_iter().map(offer).collect(),
                }
            })
            .collect(),
    })
}

pub(crate) fn table() -> impl Strategy<Value = Table> {
    task().prop_flat_map(nodes)
}

pub(crate) fn goals() -> impl Strategy<Value = Goals> {
    let seldom = |n: u32| prop_oneof![5 => Just(None), 1 => (0..n).prop_map(Some)];
    (
        proptest::option::of(0_u32..=1_000_000),
        proptest::option::of(1_u64..300_000),
        proptest::option::of(0_u64..20_000_000),
        proptest::option::of(prefer()),
        any::<bool>(),
        seldom(4),
        seldom(7),
        0_u8..=9,
    )
        .prop_map(|(floor, latency, cost, prefer, best_effort, model, variant, level)| Goals {
            accuracy: floor.and_then(Accuracy::from_ppm),
            latency: latency.map(Micros),
            max_cost: cost.map(CostPer1k),
            prefer,
            priority: Priority::new(level).expect("0 to 9"),
            fallback: if best_effort { Fallback::BestEffort } else { Fallback::Reject },
            model: model.map(ModelId),
            variant: variant.map(|v| VariantId(100 + v)),
            among: None,
        })
}

/// A query as a gateway would make it now.
pub(crate) fn query(key: u64, now: Time, admits: VariantSet, latency: Micros) -> Query {
    Query {
        key: QueryKey(key),
        tenant: TenantId::DEFAULT,
        app: AppId::DEFAULT,
        class: Class { task: TASK, admits },
        arrived: now,
        deadline: now + latency,
        expires: now + latency,
        max_cost: None,
        prefer: Prefer::Accuracy,
        priority: Priority::default(),
        best_effort: false,
        bytes: Bytes(100),
        returnable: false,
    }
}

/// A machine, and a log of everything it was told and wanted: for feeding it again.
pub(crate) struct Logged<M: Machine> {
    pub(crate) machine: M,
    log: Vec<(Time, Option<String>, Vec<String>)>,
}

fn json<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(value: &T) -> String {
    let text = serde_json::to_string(value).expect("writes");
    let back: T = serde_json::from_str(&text).expect("reads what was written");
    assert_eq!(&back, value, "JSON changed it: {text}");
    text
}

impl<M: Machine> Logged<M>
where
    M::Event: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug,
    M::Action: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug,
{
    pub(crate) fn new(machine: M) -> Self {
        Self { machine, log: Vec::new() }
    }

    pub(crate) fn handle(&mut self, now: Time, event: M::Event) -> Vec<M::Action> {
        let text = json(&event);
        self.machine.handle(now, event);
        self.drain(now, Some(text))
    }

    pub(crate) fn timeout(&mut self, now: Time) -> Vec<M::Action> {
        self.machine.handle_timeout(now);
        self.drain(now, None)
    }

    fn drain(&mut self, now: Time, event: Option<String>) -> Vec<M::Action> {
        let actions: Vec<M::Action> = std::iter::from_fn(|| self.machine.poll_action()).collect();
        self.log.push((now, event, actions.iter().map(json).collect()));
        actions
    }

    /// Feeds the log to a fresh machine: it must want the same.
    pub(crate) fn replays_in(&self, mut fresh: M) {
        for (now, event, wanted) in &self.log {
            match event {
                Some(event) => fresh.handle(*now, serde_json::from_str(event).expect("an event")),
                None => fresh.handle_timeout(*now),
            }
            let actions = std::iter::from_fn(|| fresh.poll_action()).map(|a| json(&a));
            assert_eq!(&actions.collect::<Vec<_>>(), wanted, "at {now:?} after {event:?}");
        }
    }
}

/// A table of so many nodes, alike but for their names: one variant, in memory, that takes so long.
pub(crate) fn alike(nodes: u32, mean_us: f64) -> Table {
    let point = BatchPoint { batch: 1, mean_us, var_us2: 0.0, p99_us: mean_us, samples: 9 };
    let run = RunModel::from_points(&[point], Moments::ZERO).expect("a point");
    let variant = VariantInfo {
        id: VariantId(1),
        model: ModelId(1),
        ordinal: 0,
        space: SpaceId(1),
        accuracy: Accuracy::ONE,
        max_batch: 1,
        candidate: false,
    };
    let task =
        TaskInfo { id: TASK, default_space: SpaceId(1), defaults: Goals::default(), variants: vec![variant] };
    let offers = vec![Offer { task: TASK, ordinal: 0, ready: Ready::Resident, run, width: 1 }];
    let node =
        |id| NodeInfo { id: NodeId(id), rtt: Moments::ZERO, price: PricePerHour(1), offers: offers.clone() };
    Table { tasks: vec![task], nodes: (1..=nodes).map(node).collect() }
}

/// A variant as a worker knows it, in memory as soon as it is wanted: number `at` of its task, which answers one at a time.
pub(crate) fn worker_variant(at: u8, run: RunModel) -> WorkerVariant {
    WorkerVariant {
        id: VariantId(at.into()),
        model: ModelId(at.into()),
        engine: Engine::Onnx,
        task: TASK,
        ordinal: at,
        accuracy: Accuracy::ONE,
        max_batch: 1,
        run,
        memory: Bytes(10),
        load_time: Micros(1_000),
        threads: 1,
        batching: None,
        gpu: false,
        keep: None,
    }
}
