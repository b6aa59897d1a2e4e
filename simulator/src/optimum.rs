//! The best placement that there is, for small cases: what no planner can pin better than.
//!
//! A placement's worth is the accuracy that it serves a second, summed over all queries: fluid, so queries are divisible and batches as full
//! as pays. Devices are given their sets one after the other. Only sets to which nothing more can be added matter, since more in
//! memory never serves less, and devices that are alike are not told apart. Where what is left could not catch up with the best so far even
//! with everything in memory, it is not tried: that makes the search short and leaves it exact.

use crate::simplex::Programme;
use modelless_decision::plan::{Input, Pin, PlanDevice, PlanVariant};
use modelless_types::{Accuracy, Micros, TaskId, VariantId};
use std::collections::BTreeSet;

/// Who asks for what, a second.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Asked {
    /// The task.
    pub task: TaskId,
    /// No answer may be less accurate.
    pub floor: Accuracy,
    /// Nothing may answer that takes longer when it is alone.
    pub within: Micros,
    /// Queries a second.
    pub rate: f64,
}

/// What is in memory of a device's variants, by position.
type Set = Vec<usize>;

/// Who asks is served where and by what.
type Way<'a> = (usize, usize, &'a PlanVariant);

/// The accuracy served a second, summed over queries, with these sets.
fn served(devices: &[PlanDevice], sets: &[Set], asked: &[Asked]) -> f64 {
    let may = |asked: &Asked, v: &PlanVariant| {
        v.task == asked.task && v.accuracy >= asked.floor && v.latency <= asked.within
    };
    let mut ways: Vec<Way<'_>> = Vec::new();
    for (who, one) in asked.iter().enumerate() {
        for (at, (device, set)) in devices.iter().zip(sets).enumerate() {
            let here = set.iter().map(|variant| &device.variants[*variant]);
            ways.extend(here.filter(|v| v.work > 0 && may(one, v)).map(|v| (who, at, v)));
        }
    }
    let accuracy = |v: &PlanVariant| f64::from(v.accuracy.ppm()) / 1e6;
    let mut programme = Programme::new(ways.iter().map(|(.., v)| accuracy(v)).collect());
    let rows = |wanted: &dyn Fn(&Way<'_>) -> Option<f64>| {
        ways.iter().enumerate().filter_map(|(at, way)| Some((at, wanted(way)?))).collect::<Vec<_>>()
    };
    for (who, one) in asked.iter().enumerate() {
        programme.at_most(rows(&|(by, ..)| (*by == who).then_some(1.0)), one.rate);
    }
    for device in 0..devices.len() {
        let seconds = |v: &PlanVariant| crate::outcome::ratio(v.work, 1_000_000_000);
        programme.at_most(rows(&|(_, at, v)| (*at == device).then(|| seconds(v))), 1.0);
    }
    // Whatever is not known to be the most must not pass for it.
    let Some(rates) = programme.solve() else { return f64::INFINITY };
    rates.iter().zip(&ways).map(|(rate, (.., v))| rate * accuracy(v)).sum()
}

/// The accuracy that pins serve a second.
pub fn worth(input: &Input, pins: &[Pin], asked: &[Asked]) -> f64 {
    let pins: BTreeSet<&Pin> = pins.iter().collect();
    let set = |device: &PlanDevice| {
        let pinned =
            |id: VariantId| pins.contains(&Pin { node: device.node, device: device.device, variant: id });
        (0..device.variants.len()).filter(|at| pinned(device.variants[*at].id)).collect()
    };
    let sets: Vec<Set> = input.devices.iter().map(set).collect();
    served(&input.devices, &sets, asked)
}

/// Every set that fits into what a plan may use of a device, and to which nothing can be added.
fn full_sets(device: &PlanDevice) -> Vec<Set> {
    let share = u64::from(1_000 - device.discretionary_permille.min(1_000));
    let room = device.memory.0 / 1_000 * share;
    let mut all = Vec::new();
    let mut grow = vec![(0, Set::new(), 0)];
    while let Some((at, set, taken)) = grow.pop() {
        let Some(variant) = device.variants.get(at) else {
            let addable = |at: usize| !set.contains(&at) && taken + device.variants[at].memory.0 <= room;
            if !(0..device.variants.len()).any(addable) {
                all.push(set);
            }
            continue;
        };
        if taken + variant.memory.0 <= room {
            grow.push((at + 1, [&set[..], &[at]].concat(), taken + variant.memory.0));
        }
        grow.push((at + 1, set, taken));
    }
    all
}

struct Search<'a> {
    devices: &'a [PlanDevice],
    asked: &'a [Asked],
    sets: Vec<Vec<Set>>,
    best: f64,
}

impl Search<'_> {
    fn alike(&self, a: usize, b: usize) -> bool {
        let (a, b) = (&self.devices[a], &self.devices[b]);
        a.memory == b.memory
            && a.discretionary_permille == b.discretionary_permille
            && a.variants == b.variants
    }

    /// Gives the devices from the next one on their sets; `from` is the first set that it may have.
    fn go(&mut self, given: &mut Vec<Set>, from: usize) {
        let at = given.len();
        let everything = self.devices[at..].iter().map(|device| (0..device.variants.len()).collect());
        let at_most =
            served(self.devices, &given.iter().cloned().chain(everything).collect::<Vec<_>>(), self.asked);
        if at == self.devices.len() {
            self.best = self.best.max(at_most);
            return;
        }
        if at_most <= self.best * (1.0 + 1e-9) {
            return;
        }
        for set in from..self.sets[at].len() {
            given.push(self.sets[at][set].clone());
            let next = if at + 1 < self.devices.len() && self.alike(at, at + 1) { set } else { 0 };
            self.go(given, next);
            given.pop();
        }
    }
}

/// The most that any placement serves. For a few devices with about a dozen variants.
pub fn best(input: &Input, asked: &[Asked]) -> f64 {
    let sets = input.devices.iter().map(full_sets).collect();
    let mut search = Search { devices: &input.devices, asked, sets, best: 0.0 };
    search.go(&mut Vec::new(), 0);
    search.best
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_types::{Bytes, CostPer1k, DeviceIx, NodeId};

    fn variant(id: u32, task: u32, percent: u32, a_second: u64) -> PlanVariant {
        PlanVariant {
            id: VariantId(id),
            task: TaskId(task),
            accuracy: Accuracy::from_ppm(10_000 * percent).expect("an accuracy"),
            latency: Micros(1_000),
            cost: CostPer1k(1),
            work: 1_000_000_000 / a_second,
            memory: Bytes(1_000),
            demand: 1,
            least: 0,
            candidate: false,
        }
    }

    fn input(devices: u32, room: u64, variants: &[PlanVariant]) -> Input {
        let device = |node| PlanDevice {
            node: NodeId(node),
            device: DeviceIx(0),
            memory: Bytes(1_000 * room),
            discretionary_permille: 0,
            variants: variants.to_vec(),
        };
        Input { devices: (1..=devices).map(device).collect(), ..Input::default() }
    }

    fn asked(task: u32, percent: u32, rate: f64) -> Asked {
        let floor = Accuracy::from_ppm(10_000 * percent).expect("one");
        Asked { task: TaskId(task), floor, within: Micros::from_secs(10), rate }
    }

    #[test]
    fn the_best_is_found_that_is_worked_out_by_hand() {
        let ladder = [variant(1, 1, 90, 100), variant(2, 1, 80, 400)];
        let near = |seen: f64, wanted: f64| assert!((seen - wanted).abs() < 1e-6, "{seen}, not {wanted}");
        // One of both: all 200 by the quick one is 160, 100 by the good one 90.
        near(best(&input(1, 1, &ladder), &[asked(1, 0, 200.0)]), 160.0);
        // On two devices one each: 100 by the good one, 200 by the quick one.
        near(best(&input(2, 1, &ladder), &[asked(1, 0, 300.0)]), 250.0);
        // A floor that only the good one keeps.
        near(best(&input(2, 1, &ladder), &[asked(1, 85, 150.0)]), 135.0);
        // Both in one memory: x by the good one takes x / 100 + (200 - x) / 400 of it, so 66.7.
        near(best(&input(1, 2, &ladder), &[asked(1, 0, 200.0)]), 66.666_667 * 0.9 + 133.333_333 * 0.8);
        // Nobody waits for anything that is slower than its bound.
        let slow = [PlanVariant { latency: Micros(20_000), ..ladder[0].clone() }, ladder[1].clone()];
        let within = |ms| Asked { within: Micros::from_millis(ms), ..asked(1, 0, 50.0) };
        near(best(&input(1, 1, &slow), &[within(20)]), 45.0);
        near(best(&input(1, 1, &slow), &[within(19)]), 40.0);
        // Two tasks, each with a device.
        let two = [variant(1, 1, 90, 100), variant(2, 2, 80, 400)];
        near(best(&input(2, 1, &two), &[asked(1, 0, 100.0), asked(2, 0, 100.0)]), 170.0);
    }

    #[test]
    fn no_set_of_pins_is_worth_more_than_the_best() {
        let ladder: Vec<PlanVariant> =
            (1..=4).map(|n| variant(n, n % 2, 70 + 5 * n, u64::from(500 / n))).collect();
        let asks = [asked(0, 0, 150.0), asked(1, 0, 300.0)];
        let two = input(2, 2, &ladder);
        let most = best(&two, &asks);
        let sets: Vec<[u32; 2]> = vec![[1, 2], [1, 3], [1, 4], [2, 3], [2, 4], [3, 4]];
        let pins = |node: u32, set: &[u32; 2]| {
            let pin = move |id: u32| Pin { node: NodeId(node), device: DeviceIx(0), variant: VariantId(id) };
            set.map(pin)
        };
        let all = sets.iter().flat_map(|a| sets.iter().map(move |b| [pins(1, a), pins(2, b)].concat()));
        let seen = all.map(|pins| worth(&two, &pins, &asks)).fold(0.0, f64::max);
        assert!((seen - most).abs() < 1e-6, "{seen} {most}");
    }
}
