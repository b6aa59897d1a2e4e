//! Clusters and queries for routing, made from a seed, the same on every machine. A package of its own, since it needs little
//! of the project: what a routing decision costs is measured without building all the rest.

use modelless_decision::query::Class;
use modelless_decision::route::{
    Limit, LoadView, NodeInfo, NodeIx, NodeReport, Offer, Ready, Snapshot, Table, TaskInfo, VariantInfo,
};
use modelless_decision::{Moments, Query, RunModel};
use modelless_simulator::fixtures::{FASHION, FASHION_SPACE, fashion_mnist};
use modelless_simulator::{Rng, VariantSpec};
use modelless_types::{
    AppId, BatchPoint, Bytes, ClassId, Goals, Micros, NodeId, Prefer, PricePerHour, Priority, QueryKey,
    TenantId, Time, VariantSet,
};

/// Replicas of one node.
pub const REPLICAS_A_NODE: usize = 10;

/// The sizes that are measured, in replicas.
pub const SIZES: [usize; 4] = [10, 100, 1_000, 10_000];

/// When the nodes spoke, and when queries are routed.
pub const REPORTED: Time = Time(1_000_000);
/// One millisecond later.
pub const NOW: Time = Time(1_001_000);

/// What is known of one node's load, as it was told: for choosing without the view that is measured.
#[derive(Clone, Debug)]
pub struct Told {
    /// Its last report; `None` for a node that is down.
    pub report: Option<NodeReport>,
    /// Work sent to it since, one entry a query.
    pub sent: Vec<Moments>,
}

/// Nodes with random replicas, speeds, prices and loads.
pub struct Fleet {
    /// Ready for questions, every class known.
    pub snapshot: Snapshot,
    /// What the gateway believes.
    pub load: LoadView,
    /// The same, as it was told.
    pub told: Vec<Told>,
    /// Queries with the number of their class.
    pub queries: Vec<(ClassId, Query)>,
}

fn between(rng: &mut Rng, low: f64, high: f64) -> f64 {
    low + (high - low) * rng.unit()
}

fn slower(variant: &VariantSpec, factor: f64) -> Option<RunModel> {
    let point = |p: &BatchPoint| BatchPoint {
        mean_us: p.mean_us * factor,
        var_us2: p.var_us2 * factor * factor,
        p99_us: p.p99_us * factor,
        ..*p
    };
    let points: Vec<BatchPoint> = variant.latency.iter().map(point).collect();
    RunModel::from_points(&points, Moments { mean: 1.0, var: 0.04 })
}

fn node(rng: &mut Rng, id: u32) -> NodeInfo {
    let mut variants = fashion_mnist().variants;
    while variants.len() > REPLICAS_A_NODE {
        variants.remove(rng.below(variants.len()));
    }
    let factor = between(rng, 0.6, 1.8);
    let offer = |v: &VariantSpec| {
        let run = slower(v, factor)?;
        Some(Offer { task: FASHION, ordinal: v.ordinal, ready: Ready::Resident, run, width: 1 })
    };
    NodeInfo {
        id: NodeId(id),
        rtt: Moments { mean: between(rng, 80.0, 400.0), var: between(rng, 10.0, 2_000.0) },
        price: PricePerHour(20_000 + rng.next_u64() % 80_000),
        offers: variants.iter().filter_map(offer).collect(),
    }
}

fn task() -> TaskInfo {
    let variants = fashion_mnist().variants.into_iter().map(|v| VariantInfo {
        id: v.id,
        model: v.model,
        ordinal: v.ordinal,
        space: v.space,
        accuracy: v.accuracy,
        max_batch: v.max_batch,
        candidate: false,
    });
    let variants = variants.collect();
    TaskInfo { id: FASHION, default_space: FASHION_SPACE, defaults: Goals::default(), variants }
}

fn told(rng: &mut Rng, classes: &[Class]) -> Told {
    if rng.chance(0.02) {
        return Told { report: None, sent: Vec::new() };
    }
    let moments = |rng: &mut Rng| {
        let mean = 3_000.0 * rng.exponential();
        Moments { mean, var: mean * mean * between(rng, 0.001, 0.2) }
    };
    let wait = moments(rng);
    let own = classes.iter().filter(|_| rng.chance(0.3)).copied().collect::<Vec<_>>();
    let waits = own.into_iter().map(|class| (class, moments(rng))).collect();
    let queries = u32::try_from(4 + rng.below(60)).unwrap_or(4);
    let sent = (0..rng.below(6)).map(|_| Moments { mean: between(rng, 20.0, 900.0), var: 400.0 }).collect();
    let limit = Limit { queries, bytes: Bytes::from_mib(16) };
    Told { report: Some(NodeReport { limit, wait, waits, ..NodeReport::default() }), sent }
}

impl Fleet {
    /// So many replicas, and queries that prefer one thing.
    pub fn new(replicas: usize, queries: usize, prefer: Prefer, seed: u64) -> Self {
        let mut rng = Rng::new(seed, "fleet");
        let nodes = (0..replicas.div_ceil(REPLICAS_A_NODE)).zip(1..).map(|(_, id)| node(&mut rng, id));
        let table = Table { tasks: vec![task()], nodes: nodes.collect() };
        let mut snapshot = Snapshot::new(table);
        let mut load = LoadView::new(snapshot.node_count());
        // One class per rung of the ladder, as floors give them.
        let ladder = task().variants;
        let floors = ladder.iter().map(|rung| -> VariantSet {
            ladder.iter().filter(|v| v.accuracy >= rung.accuracy).map(|v| v.ordinal).collect()
        });
        let mut classes: Vec<Class> = floors.map(|admits| Class { task: FASHION, admits }).collect();
        classes.sort_unstable();
        classes.dedup(); // two rungs are equally accurate
        let numbers: Vec<ClassId> = classes.iter().map(|class| snapshot.intern(*class)).collect();
        for number in &numbers {
            load.add_class(*number);
        }
        let mut rng = Rng::new(seed, "load");
        let told: Vec<Told> = (0..snapshot.node_count()).map(|_| told(&mut rng, &classes)).collect();
        for (ix, told) in (0..).map(NodeIx).zip(&told) {
            let Some(report) = &told.report else { continue };
            load.report(REPORTED, ix, report, true, |class| snapshot.class_id(class));
            told.sent.iter().for_each(|work| load.book(ix, Bytes(784), *work));
        }
        let mut rng = Rng::new(seed, "queries");
        let queries = (0..queries).map(|key| {
            let at = rng.below(classes.len());
            // Between half a millisecond and fifty, evenly on a logarithmic scale.
            let latency = Moments { mean: 500.0, var: 0.0 }.times(100.0_f64.powf(rng.unit())).mean();
            (numbers[at], query(key as u64, classes[at], latency, prefer))
        });
        let queries = queries.collect();
        Self { snapshot, load, told, queries }
    }
}

fn query(key: u64, class: Class, latency: Micros, prefer: Prefer) -> Query {
    Query {
        key: QueryKey(key),
        tenant: TenantId::DEFAULT,
        app: AppId::DEFAULT,
        class,
        arrived: NOW,
        deadline: NOW + latency,
        expires: NOW + latency,
        max_cost: None,
        prefer,
        priority: Priority::default(),
        best_effort: false,
        bytes: Bytes(784),
        returnable: false,
    }
}
