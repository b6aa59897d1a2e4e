//! How long things took on a node that was recorded (`up --record`), so that they take as long where it is simulated.
//!
//! Profiles are made while a node does nothing else, and what nodes correct them by is one ratio for a variant, of lately. A recording has each batch: what is taken
//! of it are the mean and the scatter of how much longer batches of a variant and about a size ran than profiled. Where few were seen it is
//! what other sizes of the variant say, and where none were, what other variants do; scatter is the profile's then, since that of one model says nothing of
//! another's. It has each input too: what is decoded is as large as whoever asks makes it, and nothing like what a profile decodes.

use super::profiles;
use modelless_decision::estimate::{Moments, RunModel};
use modelless_types::{BatchPoint, Micros, StageTime};
use serde_json::Value;
use std::collections::BTreeMap;

/// What is seen of a size weighs as much as what is known of the others once so many batches were seen.
const ENOUGH: f64 = 8.0;
/// From the mean to the 99th percentile of a normal distribution, in standard deviations.
const Z99: f64 = 2.326;

/// What a recorded node took for batches and for inputs; in microseconds. Variants and tasks are told by their numbers.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Timed {
    /// Batches by variant and size.
    ran: BTreeMap<(u64, u32), Vec<f64>>,
    /// By task: from when an input was sent to the node until its queue has it.
    decoded: BTreeMap<u64, Vec<f64>>,
    /// By variant: how many inputs a batch had, and what making them ready took.
    prepared: BTreeMap<u64, Vec<(f64, f64)>>,
    /// Which task variants are of.
    tasks: BTreeMap<u64, u64>,
}

impl Timed {
    /// Out of the lines of a router's and a worker's recording, of one clock. A batch's time begins when it is handed over or when the one before it on its lane
    /// ends, whichever is later.
    pub fn recorded(
        router: impl Iterator<Item = String>,
        worker: impl Iterator<Item = String>,
    ) -> Result<Self, String> {
        let mut sent: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        each(router, |now, line| {
            for action in line["actions"].as_array().into_iter().flatten() {
                if let Some(key) = action.get("Send").and_then(|send| send["key"].as_u64()) {
                    sent.entry(key).or_default().push(now);
                }
            }
        })
        .map_err(|why| format!("router.jsonl: {why}"))?;
        let mut node = Node { sent, ..Node::default() };
        each(worker, |now, line| node.hear(now, line)).map_err(|why| format!("worker.jsonl: {why}"))?;
        Ok(node.timed)
    }

    /// Beside what profiles say.
    pub(super) fn beside<'a>(&self, profiles: impl Iterator<Item = (u64, &'a Value)>) -> Beside<'_> {
        let mut ran: BTreeMap<u64, Vec<(u32, Seen)>> = BTreeMap::new();
        for (variant, profile) in profiles {
            let Some(model) = model(profile) else { continue };
            for ((_, size), took) in self.ran.range((variant, 0)..=(variant, u32::MAX)) {
                let profiled = model.uncorrected(*size).mean;
                if profiled > 0.0 {
                    let ratios: Vec<f64> = took.iter().map(|took| took / profiled).collect();
                    ran.entry(variant).or_default().push((*size, Seen::of(&ratios)));
                }
            }
        }
        Beside { timed: self, ran }
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
    sent: BTreeMap<u64, Vec<u64>>,
    open: BTreeMap<u64, Open>,
    free: BTreeMap<Lane, u64>,
    timed: Timed,
}

impl Node {
    fn hear(&mut self, now: u64, line: &Value) {
        let event = |name: &str| line["event"].get(name);
        let batch = |of: &Value| of["batch"].as_u64();
        for variant in event("Catalog").and_then(Value::as_array).into_iter().flatten() {
            if let (Some(id), Some(task)) = (variant["id"].as_u64(), variant["task"].as_u64()) {
                self.timed.tasks.insert(id, task);
            }
        }
        if let Some(query) = event("Arrive") {
            self.arrived(now, query);
        }
        if let Some(open) = event("Prepared").and_then(batch).and_then(|id| self.open.get(&id)) {
            let took = (f64::from(open.size), micros(now.saturating_sub(open.bound)));
            self.timed.prepared.entry(open.variant).or_default().push(took);
        }
        if let Some(done) = event("Done")
            && let Some(open) = batch(done).and_then(|id| self.open.remove(&id))
            && let Some(start) = open.start
        {
            let before = self.free.insert(open.lane, now).unwrap_or(0);
            if done["outcome"] == "Ran" {
                let took = micros(now.saturating_sub(start.max(before)));
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
            } else if let Some(id) = action.get("Discard").or_else(|| action.get("Suspect")).and_then(batch) {
                // A batch that runs too long gives its lane to others: when it ends says nothing of how long it ran.
                self.open.remove(&id);
            }
        }
    }

    /// It may have been sent before, and given back.
    fn arrived(&mut self, now: u64, query: &Value) {
        let (key, task) = (query["key"].as_u64(), query["class"]["task"].as_u64());
        let sent = key.and_then(|key| self.sent.get_mut(&key));
        if let (Some(sent), Some(task)) = (sent, task) {
            let before = sent.partition_point(|sent| *sent <= now);
            if let Some(last) = sent.drain(..before).next_back() {
                self.timed.decoded.entry(task).or_default().push(micros(now - last));
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
        let size = u32::try_from(prepare["queries"].as_array()?.len()).ok().filter(|size| *size > 0)?;
        let lane = (number("device")?, number("lane")?);
        Some((number("batch")?, Self { variant: number("variant")?, size, lane, bound, start: None }))
    }
}

/// What was seen of something: how often, the sum, and how far single ones were from the mean of those that are like them.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct Seen {
    count: f64,
    sum: f64,
    /// Sum of squares of these, and of how many it says anything.
    apart: f64,
    free: f64,
}

impl Seen {
    /// Of what is alike.
    fn of(values: &[f64]) -> Self {
        let count = f64::from(u32::try_from(values.len()).unwrap_or(u32::MAX));
        let sum: f64 = values.iter().sum();
        let mean = sum / count.max(1.0);
        let apart = values.iter().map(|value| (value - mean) * (value - mean)).sum();
        Self { count, sum, apart, free: (count - 1.0).max(0.0) }
    }

    fn add(&mut self, other: Self, weight: f64) {
        self.count += weight * other.count;
        self.sum += weight * other.sum;
        self.apart += weight * other.apart;
        self.free += weight * other.free;
    }

    fn mean(&self) -> Option<f64> {
        (self.count > 0.0).then(|| self.sum / self.count)
    }

    fn var(&self) -> Option<f64> {
        (self.free > 0.0).then(|| self.apart / self.free)
    }

    /// As much as was seen, and for the rest what is believed without.
    fn mean_or(&self, without: f64) -> f64 {
        let weight = self.count / (self.count + ENOUGH);
        self.mean().map_or(without, |mean| without + weight * (mean - without))
    }

    fn var_or(&self, without: f64) -> f64 {
        let weight = self.free / (self.free + ENOUGH);
        self.var().map_or(without, |var| without + weight * (var - without))
    }
}

/// A recording beside profiles of one class of devices.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Beside<'a> {
    timed: &'a Timed,
    /// How much longer batches ran than profiled, by variant and size.
    ran: BTreeMap<u64, Vec<(u32, Seen)>>,
}

impl Beside<'_> {
    /// Batches of all variants but one, or of all.
    fn together_but(&self, variant: Option<u64>) -> Seen {
        let mut all = Seen::default();
        for (_, sizes) in self.ran.iter().filter(|(of, _)| Some(**of) != variant) {
            for (_, seen) in sizes {
                all.add(*seen, 1.0);
            }
        }
        all
    }

    /// How many batches there were of variants that are known, and how much longer all together ran. `None` where there was none.
    pub(super) fn together(&self) -> Option<(f64, f64)> {
        let all = self.together_but(None);
        Some((all.count, all.mean()?))
    }

    /// What things took of a variant (`way` is simulated besides), at the sizes that its profile has. `None` where the profile has none.
    pub(super) fn seen(&self, variant: u64, profile: &Value, way: Micros) -> Option<profiles::Seen> {
        let profiled = |name: &str| serde_json::from_value::<StageTime>(profile[name].clone()).ok();
        let task = self.timed.tasks.get(&variant);
        let all = task.and_then(|task| self.timed.decoded.get(task)).map_or(&[][..], Vec::as_slice);
        let mut decoded: Vec<f64> = all.iter().map(|us| (us - micros(way.0)).max(0.0)).collect();
        decoded.sort_by(f64::total_cmp);
        let decode = Seen::of(&decoded);
        let decode = decode.mean().map(|mean_us| StageTime {
            mean_us,
            var_us2: decode.var().unwrap_or_default(),
            samples: samples(decode.count),
        });
        Some(profiles::Seen {
            latency: self.latency(variant, profile)?,
            decode: decode.or_else(|| profiled("decode"))?,
            decoded: parts(&decoded),
            prepare: self.prepared(variant).or_else(|| profiled("prepare"))?,
        })
    }

    fn latency(&self, variant: u64, profile: &Value) -> Option<Vec<BatchPoint>> {
        let model = model(profile)?;
        let sizes = self.ran.get(&variant).map_or(&[][..], Vec::as_slice);
        let others = self.together_but(Some(variant)).mean_or(1.0);
        let took = |mut point: BatchPoint| {
            // Of about this size, and of all others of the variant.
            let (mut near, mut far) = (Seen::default(), Seen::default());
            for (size, seen) in sizes {
                let octaves = (f64::from(*size) / f64::from(point.batch.max(1))).log2().abs();
                let weight = (1.0 - octaves).max(0.0);
                near.add(*seen, weight);
                far.add(*seen, 1.0 - weight);
            }
            let profiled = model.uncorrected(point.batch);
            let scatter = profiled.var / (profiled.mean * profiled.mean).max(f64::MIN_POSITIVE);
            let mean = profiled.mean * near.mean_or(far.mean_or(others));
            let var = profiled.mean * profiled.mean * near.var_or(far.var_or(scatter * others * others));
            (point.mean_us, point.var_us2, point.p99_us) = (mean, var, mean + Z99 * var.sqrt());
            point.samples = samples(near.count).max(1);
            point
        };
        Some(points(profile)?.into_iter().map(took).collect())
    }

    /// An input's share of making a batch ready.
    fn prepared(&self, variant: u64) -> Option<StageTime> {
        let all = self.timed.prepared.get(&variant)?;
        let (inputs, took) = all.iter().fold((0.0, 0.0), |sum, (n, us)| (sum.0 + n, sum.1 + us));
        let mean_us = took / inputs;
        let apart = |(n, us): &(f64, f64)| (us - n * mean_us) * (us - n * mean_us) / n;
        let batches = f64::from(u32::try_from(all.len()).unwrap_or(u32::MAX));
        let var_us2 = all.iter().map(apart).sum::<f64>() / batches;
        Some(StageTime { mean_us, var_us2, samples: samples(batches) })
    }
}

/// So many of what was seen are kept of decoding, at most.
const PARTS: usize = 256;

/// Those in the middle of evenly spaced parts of what rises.
fn parts(all: &[f64]) -> Vec<f64> {
    let count = all.len().min(PARTS);
    (0..count).map(|part| all[(2 * part + 1) * all.len() / (2 * count)]).collect()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a count, cut off at the most there is"
)]
fn samples(count: f64) -> u32 {
    count as u32
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
            json!({"now": 210, "event": done(4, "Revoked"), "actions": [prepare(5, 0, 1), start(5), prepare(6, 0, 1)]}),
            // One that was never handed over held nobody up.
            json!({"now": 220, "event": done(6, "Failed"), "actions": []}),
            json!({"now": 300, "actions": [{"Suspect": {"batch": 5}}, prepare(7, 0, 3), start(7)]}),
            json!({"now": 350, "event": done(5, "Ran"), "actions": []}),
            json!({"now": 400, "event": done(7, "Ran"), "actions": []}),
        ];
        let half = lines(&worker).chain(["{\"now\": 3".to_owned()]);
        let timed = Timed::recorded(lines(&[]), half).expect("a recording whose last line is half there");
        let ran = [((7, 1), vec![180.0, 40.0]), ((7, 2), vec![150.0]), ((7, 3), vec![100.0])];
        assert_eq!(timed.ran, BTreeMap::from(ran));
        let broken = ["{".to_owned()].into_iter().chain(lines(&worker));
        let broken = Timed::recorded(lines(&[]), broken).expect_err("half a line in the middle");
        assert!(broken.starts_with("worker.jsonl: line 1: "), "{broken}");
    }

    #[test]
    fn an_input_is_decoded_from_when_it_is_sent_and_made_ready_from_when_it_is_bound() {
        let send = |key: u64| json!({"Send": {"key": key, "node": 1}});
        let arrive = |key: u64, task: u64| json!({"Arrive": {"key": key, "class": {"task": task}}});
        let router = [
            json!({"now": 100, "actions": [send(1)]}),
            json!({"now": 200, "actions": [send(2)]}),
            // Given back, and sent again.
            json!({"now": 900, "actions": [send(3)]}),
            json!({"now": 1_000, "actions": [send(3)]}),
        ];
        let worker = [
            json!({"now": 1, "event": {"Catalog": [{"id": 7, "task": 1}, {"id": 8, "task": 2}, {"id": 9, "task": 3}]}, "actions": []}),
            json!({"now": 300, "event": arrive(2, 1), "actions": []}),
            json!({"now": 400, "event": arrive(1, 1), "actions": [prepare(1, 0, 2)]}),
            json!({"now": 440, "event": {"Prepared": {"batch": 1}}, "actions": [start(1), prepare(2, 0, 1)]}),
            json!({"now": 450, "event": {"Prepared": {"batch": 2}}, "actions": []}),
            json!({"now": 902, "event": arrive(3, 2), "actions": []}),
            json!({"now": 1_004, "event": arrive(3, 2), "actions": []}),
            // Of a gateway that was not recorded.
            json!({"now": 1_005, "event": arrive(4, 1), "actions": []}),
        ];
        let timed = Timed::recorded(lines(&router), lines(&worker)).expect("a recording");
        assert_eq!(timed.decoded, BTreeMap::from([(1, vec![100.0, 300.0]), (2, vec![2.0, 4.0])]));
        let profile = profile(&[(1, 100.0)]);
        let beside = timed.beside([(7, &profile), (8, &profile)].into_iter());
        let seen = |variant: u64| beside.seen(variant, &profile, Micros(2)).expect("a profile");
        assert_eq!((seen(7).decode.mean_us, seen(7).decode.var_us2), (198.0, 20_000.0));
        assert_eq!((seen(7).decoded, seen(9).decoded), (vec![98.0, 298.0], vec![]));
        // 50 us for three: 16.7 each, from which two together are 6.7 away, and one alone as far.
        assert!((seen(7).prepare.mean_us - 50.0 / 3.0).abs() < 1e-9, "{:?}", seen(7));
        assert!((seen(7).prepare.var_us2 - 400.0 / 9.0 * 0.75).abs() < 1e-9, "{:?}", seen(7));
        // Another task's inputs are others, and what was not seen is as profiled.
        assert_eq!(
            (seen(8).decode.mean_us, seen(8).prepare.mean_us, seen(9).decode.mean_us),
            (1.0, 1.0, 1.0)
        );
    }

    fn profile(means: &[(u32, f64)]) -> Value {
        let point = |(batch, mean_us): &(u32, f64)| json!({"batch": batch, "mean_us": mean_us, "var_us2": 4.0, "p99_us": mean_us + 9.0, "samples": 9});
        let stage = json!({"mean_us": 1.0, "var_us2": 0.0, "samples": 9});
        json!({"decode": stage, "prepare": stage, "latency": means.iter().map(point).collect::<Vec<_>>()})
    }

    fn took(timed: &Timed, variant: u64, profiles: &[(u64, &Value)]) -> Vec<(f64, f64)> {
        let beside = timed.beside(profiles.iter().copied());
        let profile = profiles.iter().find(|(of, _)| *of == variant).expect("its profile").1;
        let points = beside.latency(variant, profile).expect("points");
        points.iter().map(|point| (point.mean_us, point.var_us2)).collect()
    }

    fn near(seen: &[(f64, f64)], expected: &[(f64, f64)]) {
        let close = |a: f64, b: f64| (a / b - 1.0).abs() < 0.02;
        assert_eq!(seen.len(), expected.len());
        let all = seen.iter().zip(expected).all(|(a, b)| close(a.0, b.0) && close(a.1, b.1));
        assert!(all, "{seen:?}, not {expected:?}");
    }

    #[test]
    fn sizes_that_ran_are_as_slow_as_they_were_and_others_as_those_that_ran() {
        let (ran, idle) = (profile(&[(1, 100.0), (8, 400.0)]), profile(&[(1, 1_000.0)]));
        // Batches of one take half as long again, give or take a tenth of the profile; of eight none ran.
        let times = (0..2_000).map(|at| if at % 2 == 0 { 160.0 } else { 140.0 }).collect();
        let timed = Timed { ran: BTreeMap::from([((7, 1), times)]), ..Timed::default() };
        let both = [(7, &ran), (8, &idle)];
        near(&took(&timed, 7, &both), &[(150.0, 100.0), (600.0, 1_600.0)]);
        // Another variant is slower too, and scatters as it is known to.
        near(&took(&timed, 8, &both), &[(1_500.0, 4.0 * 2.25)]);
        let (batches, ratio) = timed.beside(both.into_iter()).together().expect("some ran");
        assert!((batches - 2_000.0).abs() < 1e-9 && (ratio - 1.5).abs() < 1e-9);
    }

    #[test]
    fn few_that_are_much_larger_are_among_the_parts_as_often_as_among_all() {
        let all: Vec<f64> = (0..10_000).map(|at| if at < 9_800 { 1.0 } else { 100.0 }).collect();
        let parts = parts(&all);
        assert_eq!((parts.len(), parts.iter().filter(|us| **us > 50.0).count()), (256, 5));
        assert_eq!(super::parts(&[1.0, 2.0, 3.0]), [1.0, 2.0, 3.0]);
        assert_eq!(super::parts(&[]), Vec::<f64>::new());
    }

    #[test]
    fn one_batch_says_a_ninth_of_its_size_and_nothing_of_scatter() {
        let profile = profile(&[(1, 100.0)]);
        let timed = Timed { ran: BTreeMap::from([((7, 1), vec![1_000.0])]), ..Timed::default() };
        near(&took(&timed, 7, &[(7, &profile)]), &[(200.0, 4.0)]);
        near(&took(&Timed::default(), 7, &[(7, &profile)]), &[(100.0, 4.0)]);
        assert_eq!(Timed::default().beside([(7, &profile)].into_iter()).together(), None);
    }
}
