//! How long things took on a node that was recorded (`up --record`), so that they take as long where it is simulated.
//!
//! Profiles are made while a node does nothing else, and what nodes correct them by is one ratio for a variant, of lately. A recording has each batch: what is taken
//! of it are the mean and the scatter of how much longer batches of a variant and about a size ran than profiled. Where few were seen it is
//! what other sizes of the variant say, and where none were, what all batches on that class of devices do. It has each input too: what is decoded
//! is as large as whoever asks makes it, and nothing like what a profile decodes.

use super::profiles;
use modelless_decision::estimate::{Moments, RunModel};
use modelless_types::{BatchPoint, Micros, StageTime};
use serde_json::Value;
use std::collections::BTreeMap;

/// What is seen of a size weighs as much as what is known of the others once so many batches were seen.
const ENOUGH: f64 = 8.0;
/// From the mean to the 99th percentile of a normal distribution, in standard deviations.
const Z99: f64 = 2.326;

/// What a recorded node took for batches, by variant and size, and for inputs; in microseconds.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Timed {
    ran: BTreeMap<(u64, u32), Vec<f64>>,
    /// From when an input was sent to the node until its queue has it.
    decoded: Seen,
    /// A batch's inputs, each by its share.
    prepared: Seen,
}

impl Timed {
    /// Out of the lines of a router's and a worker's recording, of one clock. A batch's time begins when it is handed over or when the one before it on its lane
    /// ends, whichever is later.
    pub fn recorded(
        router: impl Iterator<Item = String>,
        worker: impl Iterator<Item = String>,
    ) -> Result<Self, String> {
        let mut sent: BTreeMap<u64, u64> = BTreeMap::new();
        each(router, |now, line| {
            for action in line["actions"].as_array().into_iter().flatten() {
                if let Some(key) = action.get("Send").and_then(|send| send["key"].as_u64()) {
                    sent.insert(key, now);
                }
            }
        })
        .map_err(|why| format!("router: {why}"))?;
        let mut node = Node { sent, ..Node::default() };
        each(worker, |now, line| node.hear(now, line)).map_err(|why| format!("worker: {why}"))?;
        Ok(node.timed)
    }

    /// How many batches there are.
    pub fn batches(&self) -> usize {
        self.ran.values().map(Vec::len).sum()
    }

    /// Beside what profiles say.
    pub(super) fn beside<'a>(&self, profiles: impl Iterator<Item = (u64, &'a Value)>) -> Beside {
        let mut beside = Beside { decoded: self.decoded, prepared: self.prepared, ..Beside::default() };
        for (variant, profile) in profiles {
            let Some(model) = model(profile) else { continue };
            for ((_, size), took) in self.ran.range((variant, 0)..=(variant, u32::MAX)) {
                let profiled = model.uncorrected(*size).mean;
                if profiled > 0.0 {
                    let ratios = Seen::of(took.iter().map(|took| took / profiled));
                    beside.all.add(ratios, 1.0);
                    beside.of.entry(variant).or_default().push((*size, ratios));
                }
            }
        }
        beside
    }
}

/// Each line of a recording, and when it was.
fn each(lines: impl Iterator<Item = String>, mut tell: impl FnMut(u64, &Value)) -> Result<(), String> {
    let mut lines = lines.enumerate().peekable();
    while let Some((number, line)) = lines.next() {
        match serde_json::from_str::<Value>(&line) {
            Ok(line) => {
                if let Some(now) = line["now"].as_u64() {
                    tell(now, &line);
                }
            }
            // Of a server that is still recording the last line may be half there.
            Err(_) if lines.peek().is_none() => break,
            Err(error) => return Err(format!("line {}: {error}", number + 1)),
        }
    }
    Ok(())
}

fn micros(us: u64) -> f64 {
    Micros(us).as_millis_f64() * 1e3
}

/// A node as its recording goes by.
#[derive(Default)]
struct Node {
    sent: BTreeMap<u64, u64>,
    open: BTreeMap<u64, Open>,
    free: BTreeMap<Lane, u64>,
    timed: Timed,
}

impl Node {
    fn hear(&mut self, now: u64, line: &Value) {
        let event = |name: &str| line["event"].get(name);
        let batch = |of: &Value| of["batch"].as_u64();
        if let Some(sent) = event("Arrive")
            .and_then(|query| self.sent.remove(&query["key"].as_u64()?))
            .filter(|sent| *sent <= now)
        {
            self.timed.decoded.add(Seen::of([micros(now - sent)].into_iter()), 1.0);
        }
        if let Some(open) = event("Prepared").and_then(batch).and_then(|id| self.open.get(&id)) {
            let each = micros(now.saturating_sub(open.bound)) / f64::from(open.size.max(1));
            self.timed.prepared.add(Seen::of([each].into_iter()), 1.0);
        }
        if let Some(done) = event("Done")
            && let Some(open) = batch(done).and_then(|id| self.open.remove(&id))
        {
            let before = self.free.insert(open.lane, now);
            if let Some(start) = open.start.filter(|_| done["outcome"] == "Ran") {
                let took = micros(now.saturating_sub(start.max(before.unwrap_or(0))));
                self.timed.ran.entry((open.variant, open.size)).or_default().push(took);
            }
        }
        for action in line["actions"].as_array().into_iter().flatten() {
            if let Some((id, open)) = action.get("Prepare").and_then(|prepare| Open::of(now, prepare)) {
                self.open.insert(id, open);
            } else if let Some(open) =
                action.get("Start").and_then(batch).and_then(|id| self.open.get_mut(&id))
            {
                open.start = Some(now);
            } else if let Some(id) = action.get("Discard").and_then(batch) {
                self.open.remove(&id);
            }
        }
    }
}

/// A device's and a lane's numbers.
type Lane = (u64, u64);

/// A batch that has not ended.
struct Open {
    variant: u64,
    size: u32,
    lane: Lane,
    bound: u64,
    start: Option<u64>,
}

impl Open {
    fn of(bound: u64, prepare: &Value) -> Option<(u64, Self)> {
        let number = |name: &str| prepare[name].as_u64();
        let size = u32::try_from(prepare["queries"].as_array()?.len()).ok()?;
        let lane = (number("device")?, number("lane")?);
        Some((number("batch")?, Self { variant: number("variant")?, size, lane, bound, start: None }))
    }
}

/// What was seen of something: how often, the sum, and that of the squares.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct Seen {
    count: f64,
    sum: f64,
    squares: f64,
}

impl Seen {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        values.fold(Self::default(), |seen, value| Self {
            count: seen.count + 1.0,
            sum: seen.sum + value,
            squares: seen.squares + value * value,
        })
    }

    fn add(&mut self, other: Self, weight: f64) {
        self.count += weight * other.count;
        self.sum += weight * other.sum;
        self.squares += weight * other.squares;
    }

    /// Mean and variance. `None` where nothing was.
    fn moments(self) -> Option<Moments> {
        let mean = (self.count > 0.0).then(|| self.sum / self.count)?;
        Some(Moments { mean, var: (self.squares / self.count - mean * mean).max(0.0) })
    }

    /// As much as was seen; for the rest what is believed without.
    fn or(self, without: Moments) -> Moments {
        let Some(Moments { mean, var }) = self.moments() else { return without };
        let weight = self.count / (self.count + ENOUGH);
        let between = |seen: f64, without: f64| without + weight * (seen - without);
        Moments { mean: between(mean, without.mean), var: between(var, without.var) }
    }
}

/// What batches took beside what was profiled, of one class of devices, as ratios; and what inputs took.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Beside {
    of: BTreeMap<u64, Vec<(u32, Seen)>>,
    all: Seen,
    decoded: Seen,
    prepared: Seen,
}

impl Beside {
    /// What all batches together did: how much longer they ran. `None` where none were seen.
    pub(super) fn together(&self) -> Option<f64> {
        self.all.moments().map(|all| all.mean)
    }

    /// What things took of a variant, at the sizes that its profile has. `None` where no batch says anything.
    pub(super) fn seen(&self, variant: u64, profile: &Value) -> Option<profiles::Seen> {
        let stage = |seen: Seen, name: &str| match seen.moments() {
            Some(Moments { mean, var }) => Some(StageTime { mean_us: mean, var_us2: var, samples: 0 }),
            None => serde_json::from_value(profile[name].clone()).ok(),
        };
        Some(profiles::Seen {
            latency: self.took(variant, profile)?,
            decode: stage(self.decoded, "decode")?,
            prepare: stage(self.prepared, "prepare")?,
        })
    }

    fn took(&self, variant: u64, profile: &Value) -> Option<Vec<BatchPoint>> {
        let sizes = self.of.get(&variant).map_or(&[][..], Vec::as_slice);
        let scatter = Moments { mean: 1.0, var: 0.0 };
        let common = (self.all.count > 0.0).then(|| self.all.or(scatter))?;
        let mut whole = Seen::default();
        for (_, seen) in sizes {
            whole.add(*seen, 1.0);
        }
        let whole = whole.or(common);
        let took = |mut point: BatchPoint| {
            let mut near = Seen::default();
            for (size, seen) in sizes {
                let octaves = (f64::from(*size) / f64::from(point.batch.max(1))).log2().abs();
                near.add(*seen, (1.0 - octaves).max(0.0));
            }
            let ratio = near.or(whole);
            point.var_us2 = ratio.var * point.mean_us * point.mean_us;
            point.mean_us *= ratio.mean;
            point.p99_us = point.mean_us + Z99 * point.var_us2.sqrt();
            point
        };
        Some(points(profile)?.into_iter().map(took).collect())
    }
}

fn points(profile: &Value) -> Option<Vec<BatchPoint>> {
    serde_json::from_value(profile["latency"].clone()).ok()
}

fn model(profile: &Value) -> Option<RunModel> {
    RunModel::from_points(&points(profile)?, Moments::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn prepare(batch: u64, lane: u64, queries: usize) -> Value {
        json!({"Prepare": {"batch": batch, "device": 0, "lane": lane, "variant": 7, "queries": vec![1; queries]}})
    }

    fn start(batch: u64) -> Value {
        json!({"Start": {"batch": batch}})
    }

    fn done(batch: u64, outcome: &str) -> Value {
        json!({"Done": {"batch": batch, "outcome": outcome}})
    }

    fn lines(all: &[Value]) -> impl Iterator<Item = String> {
        all.iter().map(Value::to_string).collect::<Vec<_>>().into_iter()
    }

    #[test]
    fn a_batch_runs_from_when_its_lane_is_free_for_it_until_it_ends() {
        let worker = [
            json!({"now": 10, "actions": [prepare(1, 0, 2), start(1), prepare(9, 1, 1), start(9)]}),
            json!({"now": 60, "actions": [prepare(2, 0, 1), start(2), prepare(3, 0, 4), {"Discard": {"batch": 3}}]}),
            json!({"now": 160, "event": done(1, "Ran"), "actions": []}),
            // The other lane keeps no one waiting.
            json!({"now": 190, "event": done(9, "Ran"), "actions": []}),
            json!({"now": 200, "event": done(2, "Ran"), "actions": [prepare(4, 0, 1), start(4)]}),
            json!({"now": 210, "event": done(4, "Revoked"), "actions": []}),
        ];
        let half = lines(&worker).chain(["{\"now\": 3".to_owned()]);
        let timed = Timed::recorded(lines(&[]), half).expect("a recording whose last line is half there");
        assert_eq!(timed.ran, BTreeMap::from([((7, 1), vec![180.0, 40.0]), ((7, 2), vec![150.0])]));
        let broken = ["{".to_owned()].into_iter().chain(lines(&worker));
        let broken = Timed::recorded(lines(&[]), broken).expect_err("half a line in the middle");
        assert!(broken.starts_with("worker: line 1: "), "{broken}");
    }

    #[test]
    fn an_input_is_decoded_from_when_it_is_sent_and_made_ready_from_when_it_is_bound() {
        let send = |key: u64| json!({"Send": {"key": key, "node": 1}});
        let arrive = |key: u64| json!({"Arrive": {"key": key}});
        let router = [
            json!({"now": 100, "actions": [send(1)]}),
            json!({"now": 200, "actions": [send(2)]}),
            // Given back, and sent again.
            json!({"now": 900, "actions": [send(3)]}),
            json!({"now": 1_000, "actions": [send(3)]}),
        ];
        let worker = [
            json!({"now": 300, "event": arrive(2), "actions": []}),
            json!({"now": 400, "event": arrive(1), "actions": [prepare(1, 0, 2)]}),
            json!({"now": 440, "event": {"Prepared": {"batch": 1}}, "actions": [start(1)]}),
            json!({"now": 1_002, "event": arrive(3), "actions": []}),
            // Of a gateway that was not recorded.
            json!({"now": 1_003, "event": arrive(4), "actions": []}),
        ];
        let timed = Timed::recorded(lines(&router), lines(&worker)).expect("a recording");
        assert_eq!(timed.decoded, Seen::of([100.0, 300.0, 2.0].into_iter()));
        assert_eq!(timed.prepared, Seen::of([20.0].into_iter()));
        // Both are beside the profile only where batches say anything.
        let profile = profile(&[(1, 100.0)]);
        assert_eq!(timed.beside([(7, &profile)].into_iter()).seen(7, &profile), None);
        let ran = Timed { ran: BTreeMap::from([((7, 1), vec![100.0])]), ..timed };
        let seen = ran.beside([(7, &profile)].into_iter()).seen(7, &profile).expect("one ran");
        assert_eq!((seen.decode.mean_us, seen.prepare.mean_us), (134.0, 20.0));
    }

    fn profile(means: &[(u32, f64)]) -> Value {
        let point = |(batch, mean_us): &(u32, f64)| json!({"batch": batch, "mean_us": mean_us, "var_us2": 4.0, "p99_us": mean_us + 9.0, "samples": 9});
        let stage = json!({"mean_us": 1.0, "var_us2": 0.0, "samples": 9});
        json!({"decode": stage, "prepare": stage, "latency": means.iter().map(point).collect::<Vec<_>>()})
    }

    fn took(beside: &Beside, variant: u64, profile: &Value) -> Vec<BatchPoint> {
        beside.took(variant, profile).expect("some ran")
    }

    fn near(seen: impl Iterator<Item = f64>, expected: &[f64]) {
        let seen: Vec<f64> = seen.collect();
        assert_eq!(seen.len(), expected.len());
        assert!(seen.iter().zip(expected).all(|(a, b)| (a / b - 1.0).abs() < 0.02), "{seen:?}");
    }

    #[test]
    fn sizes_that_ran_are_as_slow_as_they_were_and_others_as_all_that_ran() {
        let (ran, idle) = (profile(&[(1, 100.0), (8, 400.0)]), profile(&[(1, 1_000.0)]));
        // Batches of one take half as long again, give or take a tenth of the profile; of eight none ran.
        let times = (0..2_000).map(|at| if at % 2 == 0 { 160.0 } else { 140.0 }).collect();
        let batches = Timed { ran: BTreeMap::from([((7, 1), times)]), ..Timed::default() };
        let beside = batches.beside([(7, &ran), (8, &idle)].into_iter());
        assert!((beside.together().expect("some ran") - 1.5).abs() < 1e-9);
        let here = took(&beside, 7, &ran);
        near(here.iter().map(|point| point.mean_us), &[150.0, 600.0]);
        near(here.iter().map(|point| point.var_us2), &[100.0, 1_600.0]);
        near(here.iter().map(|point| point.p99_us), &[173.26, 693.0]);
        near(took(&beside, 8, &idle).iter().map(|point| point.mean_us), &[1_500.0]);
    }

    #[test]
    fn few_batches_say_little_and_none_nothing() {
        let profile = profile(&[(1, 100.0)]);
        let batches = Timed { ran: BTreeMap::from([((7, 1), vec![1_000.0])]), ..Timed::default() };
        let few = took(&batches.beside([(7, &profile)].into_iter()), 7, &profile);
        assert!((110.0..400.0).contains(&few[0].mean_us), "{few:?}");
        assert_eq!(Timed::default().beside([(7, &profile)].into_iter()).took(7, &profile), None);
    }
}
