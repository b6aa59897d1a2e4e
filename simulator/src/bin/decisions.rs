//! `decisions SCENARIO.toml [SHORT]`: how long single decisions take, as JSON on standard output: what runs next on a lane while 1,000 queries
//! wait, and a plan for 200 variants on 1,000 nodes.
//!
//! Dispatch is timed as its whole event, with all that a worker does at the end of a batch. Queues are as a load below, at and beyond what
//! the lane can do leaves them: all have 1,000 waiting, due from soon on to within the bound, half of the runs of one class, half of two.

use modelless_decision::Machine;
use modelless_decision::plan::{Input, Plan, PlanClass, PlanDevice, PlanVariant, plan};
use modelless_decision::query::{Class, Query};
use modelless_decision::worker::{
    Action, BatchId, DeviceConfig, Event, Outcome, Worker, WorkerConfig, WorkerVariant,
};
use modelless_simulator::Rng;
use modelless_simulator::scenario::file::File;
use modelless_types::{
    Accuracy, AppId, Bytes, CostPer1k, DeviceIx, Micros, NodeId, Prefer, PricePerHour, Priority, QueryKey,
    TaskId, TenantId, Time, VariantId, VariantSet, Within,
};
use std::collections::VecDeque;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

const WAITING: u64 = 1_000;
const NODES: u32 = 1_000;
const VARIANTS: u32 = 200;

fn main() -> ExitCode {
    match measured() {
        Ok(text) if writeln!(std::io::stdout(), "{text}").is_ok() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measured() -> Result<serde_json::Value, String> {
    let mut args = std::env::args().skip(1);
    let scenario = args.next().ok_or("name a scenario")?;
    let short = args.next().is_some();
    let world = File::load(Path::new(&scenario), 1.0).map_err(|error| error.to_string())?;
    let variants = world.catalog(&world.nodes.first().ok_or("a scenario without nodes")?.class);
    let mut times = Vec::new();
    for round in 0..if short { 20 } else { 2_000 } {
        times.extend(dispatch(&variants, round));
    }
    let told = |pick: fn(&(f64, f64)) -> f64| {
        let mut times: Vec<f64> = times.iter().map(pick).collect();
        times.sort_by(f64::total_cmp);
        let of = |permille: usize| times.get(times.len() * permille / 1_000).copied();
        serde_json::json!({ "p50": of(500), "p90": of(900), "p99": of(990), "most": times.last() })
    };
    let planning: Vec<(f64, f64)> = (0..if short { 1 } else { 5 }).map(|_| planned()).collect();
    Ok(serde_json::json!({
        "dispatches": times.len(),
        "dispatch_us": told(|(_, each)| *each),
        "event_us": told(|(all, _)| *all),
        "waiting": WAITING,
        "planning_s": planning.iter().map(|(_, after)| after).collect::<Vec<_>>(),
        "planning_anew_s": planning.iter().map(|(anew, _)| anew).collect::<Vec<_>>(),
        "planned": { "nodes": NODES, "variants": VARIANTS },
    }))
}

#[expect(clippy::disallowed_methods, reason = "it measures a real process")]
#[inline(never)]
fn timed(worker: &mut Worker, now: Time, event: Event) -> f64 {
    let began = Instant::now();
    worker.handle(now, event);
    began.elapsed().as_secs_f64() * 1e6
}

/// What a worker wants done.
#[derive(Default)]
struct Wants {
    loads: Vec<(DeviceIx, VariantId)>,
    batches: VecDeque<BatchId>,
    given_up: u32,
}

impl Wants {
    fn hear(&mut self, worker: &mut Worker) {
        while let Some(action) = worker.poll_action() {
            if let Action::Load { device, variant } = action {
                self.loads.push((device, variant));
            } else if let Action::Prepare { batch, .. } = action {
                self.batches.push_back(batch);
            } else if let Action::Refuse { .. } | Action::HandBack { .. } = action {
                self.given_up += 1;
            }
        }
    }
}

/// Microseconds of the events that end a batch and bind the next, with everything resident; and for each decision taken in it, of who is
/// given up and of the batch.
fn dispatch(variants: &[WorkerVariant], round: u64) -> Vec<(f64, f64)> {
    let mut rng = Rng::new(round, "decisions");
    let memory = Bytes(variants.iter().map(|v| v.memory.0).sum());
    let device = DeviceConfig { lanes: 1, width: 1, memory, price: PricePerHour(3_000_000) };
    let config = WorkerConfig { devices: vec![device], queue: 4 * 1_024, ..WorkerConfig::default() };
    let mut worker = Worker::new(config);
    let mut now = Time(1);
    worker.handle(now, Event::Catalog(variants.to_vec()));
    worker.handle(now, Event::Pin(variants.iter().map(|v| (DeviceIx(0), v.id)).collect()));
    let mut wants = Wants::default();
    wants.hear(&mut worker);
    while !wants.loads.is_empty() {
        for (device, variant) in std::mem::take(&mut wants.loads) {
            let memory = variants.iter().find(|v| v.id == variant).map_or(Bytes(1), |v| v.memory);
            worker.handle(now, Event::Loaded { device, variant, memory, took: Micros(1) });
        }
        wants.hear(&mut worker);
    }
    let all: VariantSet = variants.iter().map(|v| v.ordinal).collect();
    let best: VariantSet = {
        let mut sorted: Vec<&WorkerVariant> = variants.iter().collect();
        sorted.sort_by_key(|v| std::cmp::Reverse(v.accuracy));
        sorted.iter().take(2).map(|v| v.ordinal).collect()
    };
    let task = variants.first().map_or(TaskId(1), |v| v.task);
    let bound = Micros::from_millis([200, 500, 2_000][usize::try_from(round % 3).unwrap_or(0)]);
    let mut key = 0;
    let mut arrive = |worker: &mut Worker, now: Time, late: Micros| {
        key += 1;
        let admits = if round % 2 == 1 && rng.chance(0.3) { best } else { all };
        let arrived = Time(now.0.saturating_sub(late.0));
        let query = Query {
            key: QueryKey(key),
            tenant: TenantId::DEFAULT,
            app: AppId::DEFAULT,
            class: Class { task, admits },
            arrived,
            deadline: arrived + bound,
            expires: arrived + bound,
            max_cost: None,
            prefer: Prefer::Accuracy,
            priority: Priority::default(),
            best_effort: false,
            bytes: Bytes(1),
            returnable: false,
        };
        worker.handle(now, Event::Arrive(query));
    };
    // They came evenly over half of the bound.
    now = Time(10_000_000);
    let gap = bound.0 / 2 / WAITING;
    for _ in 0..WAITING + 64 {
        now = now + Micros(gap);
        arrive(&mut worker, now, Micros::ZERO);
        wants.hear(&mut worker);
    }
    let mut seen = Vec::new();
    for _ in 0..4 {
        // What was bound runs; the slot behind it is filled with the next event.
        let Some(batch) = wants.batches.pop_front() else { break };
        worker.handle(now, Event::Prepared { batch, dropped: Vec::new() });
        wants.hear(&mut worker);
        now = now + Micros::from_millis(15);
        while (worker.open() as u64) < WAITING + 64 {
            arrive(&mut worker, now, Micros(gap));
            wants.hear(&mut worker);
        }
        (wants.given_up, wants.batches) = (0, VecDeque::new());
        let took = timed(&mut worker, now, Event::Done { batch, outcome: Outcome::Ran });
        wants.hear(&mut worker);
        if !wants.batches.is_empty() {
            // Each who is given up is a decision of its own: after it the queue is another.
            seen.push((took, took / f64::from(1 + wants.given_up)));
        }
    }
    seen
}

/// Seconds of a plan where nothing was, and of one that follows it.
#[expect(clippy::disallowed_methods, reason = "it measures a real process")]
fn planned() -> (f64, f64) {
    let variant = |id: u32| PlanVariant {
        id: VariantId(id),
        task: TaskId(id % 20),
        accuracy: Accuracy::from_ppm(700_000 + 1_000 * (id / 20)).unwrap_or(Accuracy::ZERO),
        latency: Micros(1_000 + u64::from(id) * 37 % 9_000 + u64::from(id / 20) * 500),
        cost: CostPer1k(1_000 + u64::from(id / 20) * 300),
        work: 1_000_000 + u64::from(id) * 7_919 % 500_000,
        memory: Bytes::from_mib(500),
        demand: u8::try_from(id % 7).unwrap_or(0),
        least: 0,
        candidate: false,
    };
    let variants: Vec<PlanVariant> = (1..=VARIANTS).map(variant).collect();
    let device = |node: u32| PlanDevice {
        node: NodeId(node),
        device: DeviceIx(0),
        // Machines of one type differ by some pages.
        memory: Bytes(Bytes::from_mib(40_000).0 + 4_096 * u64::from(node % 97)),
        discretionary_permille: 250,
        variants: variants.clone(),
    };
    // Of each task those who take any and those who want one of the better half, each within a tight bound and a loose one.
    let class = |(task, floor, ms): (u32, u32, u64)| {
        let may = variants.iter().filter(|v| v.task == TaskId(task) && v.accuracy.ppm() >= floor);
        PlanClass {
            task: TaskId(task),
            admits: may.map(|v| v.id).collect(),
            within: Some(Within::of(Micros::from_millis(ms))),
            steps: 271 + 4 * u16::try_from(task).unwrap_or(0),
        }
    };
    let who = |task| [(task, 0, 50), (task, 0, 500), (task, 705_000, 50), (task, 705_000, 500)];
    let classes = (0..20).flat_map(who).map(class).collect();
    let input = Input { devices: (1..=NODES).map(device).collect(), classes, ..Input::default() };
    let began = Instant::now();
    let before = plan(&input, &Plan::default());
    let anew = began.elapsed().as_secs_f64();
    let began = Instant::now();
    let next = plan(&input, &before);
    let took = began.elapsed().as_secs_f64();
    (anew, if next.asks_the_same(&before) { took } else { f64::NAN })
}
