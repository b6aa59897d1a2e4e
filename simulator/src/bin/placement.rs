//! `placement [CASES]`: what plans of small random clusters serve, over the most that any placement could, as JSON on standard output.
//!
//! A case has a few devices with room for some of the variants of a few tasks, and is asked for between a third and once and a half of what it
//! could do; in half of the cases within bounds of once to sixteen times what the fastest takes that may answer. Both sides are worked out fluidly: queries are divisible, batches as full as pays, and nothing is loaded on demand, so that only what is
//! pinned counts.

use modelless_decision::demand::Lately;
use modelless_decision::plan::{Input, Plan, PlanClass, PlanDevice, PlanVariant, plan};
use modelless_decision::query::Class;
use modelless_simulator::Rng;
use modelless_simulator::optimum::{Asked, best, worth};
use modelless_types::{
    Accuracy, Bytes, CostPer1k, DeviceIx, Micros, NodeId, TaskId, VariantId, VariantSet, Within,
};
use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

const CASES: u64 = 200;
/// What is asked, over what everything in memory everywhere could serve.
const LOADS: [f64; 4] = [0.3, 0.7, 1.0, 1.5];

fn main() -> ExitCode {
    let cases = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(CASES);
    let rows: Vec<_> = (0..cases).map(|seed| case(seed).told()).collect();
    match writeln!(std::io::stdout(), "{}", serde_json::Value::Array(rows)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// A small cluster, and who asks it for what.
struct Case {
    seed: u64,
    load: f64,
    input: Input,
    asked: Vec<Asked>,
}

impl Case {
    #[expect(clippy::disallowed_methods, reason = "it measures a real process")]
    fn told(&self) -> serde_json::Value {
        let began = Instant::now();
        let planned = plan(&self.input, &Plan::default());
        let took = began.elapsed().as_secs_f64();
        let (seen, most) = (worth(&self.input, &planned.pins, &self.asked), best(&self.input, &self.asked));
        serde_json::json!({
            "seed": self.seed, "load": self.load, "devices": self.input.devices.len(),
            "variants": self.input.devices.first().map(|device| device.variants.len()),
            "share": if most > 0.0 { seen / most } else { 1.0 }, "planning_s": took,
        })
    }
}

fn float(n: u64) -> f64 {
    f64::from(u32::try_from(n).unwrap_or(u32::MAX))
}

fn case(seed: u64) -> Case {
    let mut rng = Rng::new(seed, "placement");
    let between = |rng: &mut Rng, least: u64, most: u64| {
        least + u64::try_from(rng.below(usize::try_from(most - least + 1).unwrap_or(1))).unwrap_or(0)
    };
    let (devices, tasks) = (between(&mut rng, 1, 3), between(&mut rng, 1, 3));
    let load = LOADS[usize::try_from(seed).unwrap_or(0) % LOADS.len()];
    let mut variants = Vec::new();
    for task in 1..=tasks {
        let count = between(&mut rng, 2, 4);
        let (mut accuracy, mut a_second) =
            (600_000 + between(&mut rng, 0, 150_000), between(&mut rng, 200, 2_000));
        for ordinal in 0..count {
            variants.push((task, ordinal, accuracy, a_second, between(&mut rng, 1, 3)));
            accuracy += between(&mut rng, 10_000, 60_000);
            // The next one takes between as long and four times as long.
            a_second = a_second * 10 / between(&mut rng, 10, 40);
        }
    }
    let of = |task: u64| variants.iter().filter(move |variant| variant.0 == task);
    let accuracy = |ppm: u64| Accuracy::from_ppm(u32::try_from(ppm).unwrap_or(0)).unwrap_or(Accuracy::ZERO);
    // Who asks: of each task those without a floor, and perhaps some with one.
    let mut asked = Vec::new();
    for task in 1..=tasks {
        let id = TaskId(u32::try_from(task).unwrap_or(0));
        let weight = 0.1 + rng.unit();
        let floored = if rng.chance(0.5) { rng.unit() * 0.5 } else { 0.0 };
        let within = Micros::from_secs(10);
        asked.push(Asked { task: id, floor: Accuracy::ZERO, within, rate: weight * (1.0 - floored) });
        if floored > 0.0 {
            let floor = of(task).nth(1).map_or(0, |variant| variant.2);
            asked.push(Asked { task: id, floor: accuracy(floor), within, rate: weight * floored });
        }
    }
    // A load of one keeps all devices busy with the quickest that may answer each.
    let quickest = |one: &Asked| {
        let may = of(u64::from(one.task.0)).filter(|variant| accuracy(variant.2) >= one.floor);
        may.map(|variant| variant.3).max().unwrap_or(1)
    };
    if seed / 4 % 2 == 1 {
        let mut rng = Rng::new(seed, "bounds");
        for one in &mut asked {
            one.within = Micros(1_000_000 / quickest(one) * between(&mut rng, 1, 16));
        }
    }
    let busy: f64 = asked.iter().map(|one| one.rate / float(quickest(one))).sum();
    for one in &mut asked {
        one.rate *= load * float(devices) / busy;
    }
    let mut lately = Lately::default();
    let class = |one: &Asked| {
        let admits = of(u64::from(one.task.0)).filter(|variant| accuracy(variant.2) >= one.floor);
        let admits: VariantSet = admits.map(|variant| u8::try_from(variant.1).unwrap_or(0)).collect();
        ((Class { task: one.task, admits }, Some(Within::of(one.within))), one.rate)
    };
    for task in 1..=tasks {
        let id = TaskId(u32::try_from(task).unwrap_or(0));
        let rates: Vec<_> = asked.iter().filter(|one| one.task == id).map(class).collect();
        lately.suppose(id, &rates);
    }
    let planned = |(number, &(task, ordinal, ppm, a_second, memory)): (u32, &(u64, u64, u64, u64, u64))| {
        let (id, at) = (TaskId(u32::try_from(task).unwrap_or(0)), u8::try_from(ordinal).unwrap_or(0));
        let known = |ordinal: u8| of(task).nth(ordinal.into()).map(|variant| accuracy(variant.2));
        PlanVariant {
            id: VariantId(number),
            task: id,
            accuracy: accuracy(ppm),
            latency: Micros(1_000_000 / a_second),
            cost: CostPer1k(1_000_000 / a_second),
            work: 1_000_000_000 / a_second,
            memory: Bytes(1_000_000_000 * memory),
            demand: lately.level(id, at),
            least: lately.level_at_least(id, at, known),
            candidate: false,
        }
    };
    let all: Vec<PlanVariant> = (1..).zip(&variants).map(planned).collect();
    let memory = Bytes(1_000_000_000 * between(&mut rng, 3, 6));
    let device = |node| PlanDevice {
        node: NodeId(node),
        device: DeviceIx(0),
        memory,
        discretionary_permille: 0,
        variants: all.clone(),
    };
    let devices = (1..=u32::try_from(devices).unwrap_or(1)).map(device).collect();
    let number = |task: TaskId, ordinal: u8| {
        let at = variants.iter().position(|v| v.0 == u64::from(task.0) && v.1 == u64::from(ordinal))?;
        all.get(at).map(|variant| variant.id)
    };
    let classes = PlanClass::of(&lately, number);
    Case { seed, load, input: Input { devices, classes, ..Input::default() }, asked }
}
