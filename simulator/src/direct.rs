//! One worker with one variant on one lane, fed at given times as a load generator feeds an executor: within its credit,
//! the rest waiting in order of coming. No gateway, no links and no faults; for those there is the whole world of
//! [`crate::run`].

use crate::Error;
use crate::rng::Rng;
use crate::scenario::VariantSpec;
use modelless_decision::query::Class;
use modelless_decision::worker::{
    Action, BatchId, DeviceConfig, Event, Outcome, Worker, WorkerConfig, WorkerVariant,
};
use modelless_decision::{Machine, Query, RunModel};
use modelless_types::{
    AppId, Batching, Bytes, DeviceIx, Micros, Prefer, PricePerHour, Priority, QueryKey, TaskId, TenantId,
    Time, VariantId,
};
use std::collections::{BTreeMap, VecDeque};

/// The first arrival's earliest time: what is loaded is loaded before.
const START: Time = Time(1_000_000);

/// What a lane is made of.
pub(crate) struct Lane<'a> {
    pub(crate) spec: &'a VariantSpec,
    pub(crate) batching: Batching,
    pub(crate) bound: Micros,
    /// See [`crate::NodeSpec::handover`].
    pub(crate) handover: Micros,
    /// See [`crate::NodeSpec::timer_late`].
    pub(crate) timer_late: Micros,
    pub(crate) seed: u64,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ends {
    /// From coming to its answer, of each that was answered.
    pub(crate) latencies: Vec<Micros>,
    pub(crate) late: u64,
    pub(crate) refused: u64,
    pub(crate) batches: u64,
    /// Time on the device.
    pub(crate) busy: Micros,
}

struct Drive<'a> {
    lane: &'a Lane<'a>,
    at: &'a [Micros],
    worker: Worker,
    run: RunModel,
    class: Class,
    now: Time,
    /// Come and waiting for credit.
    waiting: VecDeque<usize>,
    open: u32,
    sizes: BTreeMap<BatchId, u32>,
    running: Option<(Time, BatchId)>,
    next: Option<BatchId>,
    timer: Option<Time>,
    told: VecDeque<Event>,
    rng: Rng,
    ends: Ends,
}

/// Queries that come at these times.
pub(crate) fn drive(lane: &Lane<'_>, at: &[Micros]) -> Result<Ends, Error> {
    let run =
        lane.spec.run_model().ok_or_else(|| Error::Scenario("the variant has no device time".into()))?;
    let (device, id) = (DeviceIx(0), lane.spec.id);
    let mut drive = Drive {
        worker: worker(lane, &run),
        class: Class { task: TaskId(1), admits: [lane.spec.ordinal].into_iter().collect() },
        lane,
        at,
        run,
        now: Time(3),
        waiting: VecDeque::new(),
        open: 0,
        sizes: BTreeMap::new(),
        running: None,
        next: None,
        timer: None,
        told: VecDeque::new(),
        rng: Rng::new(lane.seed, "runs"),
        ends: Ends::default(),
    };
    let (memory, took) = (lane.spec.memory, Micros(1));
    drive.feed(Event::Pin(vec![(device, id)]));
    drive.feed(Event::Loaded { device, variant: id, memory, took });
    drive.all()
}

fn worker(lane: &Lane<'_>, run: &RunModel) -> Worker {
    let device =
        DeviceConfig { lanes: 1, width: 1, memory: lane.spec.memory + Bytes(1), price: PricePerHour(50_000) };
    let batching = lane.batching;
    let mut worker = Worker::new(WorkerConfig { devices: vec![device], batching, ..WorkerConfig::default() });
    let spec = lane.spec;
    let variant = WorkerVariant {
        id: VariantId(spec.id.0),
        model: spec.model,
        engine: spec.engine,
        task: TaskId(1),
        ordinal: spec.ordinal,
        accuracy: spec.accuracy,
        max_batch: spec.max_batch,
        run: run.clone(),
        memory: spec.memory,
        load_time: spec.load_time,
        threads: spec.threads,
        batching: None,
        gpu: false,
        keep: None,
    };
    worker.handle(Time(1), Event::Catalog(vec![variant]));
    worker
}

impl Drive<'_> {
    fn all(mut self) -> Result<Ends, Error> {
        let mut arrivals = self.at.iter().map(|at| START + *at).enumerate().peekable();
        loop {
            let comes = arrivals.peek().map(|(_, at)| *at);
            let ends = self.running.map(|(at, _)| at);
            if comes.is_none() && self.open == 0 && self.waiting.is_empty() {
                break;
            }
            let Some(now) = [comes, ends, self.timer].into_iter().flatten().min() else {
                let open = self.open as usize + self.waiting.len();
                return Err(Error::DeadEnd { at_us: self.now.0, open, first: "in the lane".into() });
            };
            self.now = self.now.max(now);
            if ends == Some(now) {
                self.ran();
            } else if comes == Some(now) {
                self.waiting.extend(arrivals.next().map(|(key, _)| key));
            } else {
                self.timer = None;
                self.worker.handle_timeout(self.now);
                self.perform();
            }
            self.settle();
        }
        Ok(self.ends)
    }

    /// What is to be told now, until nothing is.
    fn settle(&mut self) {
        loop {
            if let Some(event) = self.told.pop_front() {
                self.feed(event);
            } else if !self.send() {
                break;
            }
        }
        if let Some(wake) = self.worker.poll_timeout() {
            let at = wake.at.max(self.now) + self.lane.timer_late;
            self.timer = Some(self.timer.map_or(at, |set| set.min(at)));
        }
    }

    /// Sends the next that waits if there is credit for it.
    fn send(&mut self) -> bool {
        if self.open >= self.worker.report(self.now).limit.queries {
            return false;
        }
        let Some(key) = self.waiting.pop_front() else { return false };
        let due = |key: usize| START + self.at[key] + self.lane.bound;
        let deadline = due(key);
        if deadline <= self.now {
            self.ends.refused += 1;
            return true;
        }
        self.open += 1;
        let (class, waiting) = (self.class, u32::try_from(self.waiting.len()).unwrap_or(u32::MAX));
        let first = self.waiting.front().map(|key| due(*key));
        self.feed(Event::Demand { class, waiting, first, among: 1 });
        self.feed(Event::Arrive(Query {
            key: QueryKey(key as u64),
            tenant: TenantId::DEFAULT,
            app: AppId::DEFAULT,
            class,
            arrived: START + self.at[key],
            deadline,
            expires: deadline,
            max_cost: None,
            prefer: Prefer::default(),
            priority: Priority::default(),
            best_effort: false,
            bytes: Bytes(1),
            returnable: false,
        }));
        true
    }

    fn feed(&mut self, event: Event) {
        self.worker.handle(self.now, event);
        self.perform();
    }

    fn perform(&mut self) {
        while let Some(action) = self.worker.poll_action() {
            match action {
                Action::Prepare { batch, queries, .. } => {
                    self.sizes.insert(batch, u32::try_from(queries.len()).unwrap_or(u32::MAX));
                    self.told.push_back(Event::Prepared { batch, dropped: Vec::new() });
                }
                Action::Start { batch } if self.running.is_some() => self.next = Some(batch),
                Action::Start { batch } => self.starts(batch, self.lane.handover),
                Action::Discard { batch } => {
                    self.sizes.remove(&batch);
                }
                Action::Deliver { batch, queries } => {
                    self.sizes.remove(&batch);
                    for key in queries {
                        let came = START + self.at[usize::try_from(key.0).unwrap_or(usize::MAX)];
                        let took = self.now - came;
                        self.open -= 1;
                        self.ends.late += u64::from(took > self.lane.bound);
                        self.ends.latencies.push(took);
                    }
                }
                Action::Refuse { .. } | Action::HandBack { .. } => {
                    self.open -= 1;
                    self.ends.refused += 1;
                }
                // Nobody cancels, and nothing is announced.
                Action::Revoke { .. }
                | Action::Claim { .. }
                | Action::Decline { .. }
                | Action::Suspect { .. }
                | Action::Quarantine { .. }
                | Action::Discharge { .. }
                | Action::QuarantineOver { .. }
                | Action::Recut { .. }
                | Action::Load { .. }
                | Action::Unload { .. }
                | Action::Narrow { .. }
                | Action::Drifted { .. }
                | Action::Steadied { .. }
                | Action::Transition { .. } => {}
            }
        }
    }

    fn starts(&mut self, batch: BatchId, handover: Micros) {
        let size = self.sizes.get(&batch).copied().unwrap_or(1);
        let took = handover + self.rng.duration(self.run.uncorrected(size));
        self.ends.busy += took;
        self.ends.batches += 1;
        self.running = Some((self.now + took, batch));
    }

    fn ran(&mut self) {
        let Some((_, batch)) = self.running.take() else { return };
        if let Some(next) = self.next.take() {
            self.starts(next, Micros::ZERO);
        }
        self.feed(Event::Done { batch, outcome: Outcome::Ran });
    }
}

#[cfg(test)]
mod tests {
    use crate::batching::Given;
    use crate::rng::Rng;
    use modelless_decision::Moments;
    use modelless_types::{BatchPoint, Batching, Micros};
    use proptest::prelude::*;

    fn given(one: f64, each: f64, scatter: f64, at: Vec<Micros>, times_single: f64) -> Given {
        let point = |batch: u32| {
            let mean_us = one + each * f64::from(batch - 1);
            BatchPoint { batch, mean_us, var_us2: (scatter * mean_us).powi(2), p99_us: mean_us, samples: 9 }
        };
        Given {
            model: "a model".into(),
            arrivals: "given".into(),
            latency: vec![point(1), point(8)],
            max_batch: 8,
            at,
            bound: Moments { mean: one * times_single, var: 0.0 }.mean(),
            handover: Micros::ZERO,
        }
    }

    fn random(rate: f64, cv: f64, queries: usize, seed: u64) -> Vec<Micros> {
        let (mut rng, mut at, mean) = (Rng::new(seed, "test"), 0.0, 1e6 / rate);
        let mut next = || {
            at += rng.gamma(Moments { mean, var: cv * cv * mean * mean });
            Moments { mean: at, var: 0.0 }.mean()
        };
        (0..queries).map(|_| next()).collect()
    }

    fn ways() -> [Batching; 4] {
        let fixed = Batching::Fixed { size: 4, wait: Micros(100) };
        [Batching::Deadline, Batching::Aimd, fixed, Batching::Off]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn no_way_of_batching_misses_less_than_the_least(
            gaps in prop::collection::vec(0_u64..400, 1..200),
            one in 20.0..500.0_f64,
            share in 0.1..1.0_f64,
            times_single in 1.0..8.0_f64,
        ) {
            let at = gaps.iter().scan(0, |at, gap| { *at += gap; Some(Micros(*at)) }).collect();
            let given = given(one, one * share, 0.0, at, times_single);
            let least = given.least().expect("device times");
            for way in ways() {
                let row = given.simulate(way, 1).expect("no dead end");
                prop_assert!(row.missed >= least, "{way}: {} of at least {least}", row.missed);
            }
        }
    }

    /// Load, coefficient of variation, and how far above the least `deadline` may be.
    #[test]
    fn batching_by_deadline_misses_little_more_than_must_be_missed() {
        for (each, load, cv, above) in
            [(1.0, 0.7, 1.0, 0.005), (0.65, 0.7, 1.0, 0.02), (0.65, 0.7, 4.0, 0.05), (0.65, 2.0, 1.0, 0.07)]
        {
            let (one, per_query) = (1_000.0, (1_000.0 + 7_000.0 * each) / 8.0);
            let at = random(load * 1e6 / per_query, cv, 4_000, 5);
            let given = given(one, one * each, 0.0, at, 5.0);
            let row = given.simulate(Batching::Deadline, 1).expect("no dead end");
            let least = row.least.expect("one lane");
            assert!(row.missed <= least + above, "{each} {load} {cv}: {} over {least}", row.missed);
            assert!(row.late <= 0.005, "{each} {load} {cv}: {} late", row.late);
        }
    }

    #[test]
    fn the_same_arrivals_and_seed_give_the_same() {
        let given = given(1_000.0, 650.0, 0.1, random(900.0, 4.0, 500, 2), 5.0);
        let row = || given.simulate(Batching::Deadline, 7).expect("no dead end");
        assert_eq!(row(), row());
    }
}
