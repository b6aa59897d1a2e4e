//! What a placement serves, worked out fluidly: queries are divisible, batches as full as pays, and what is not pinned serves nobody.
//!
//! Devices that are alike and have the same pinned are one: so a cluster of many nodes is no larger than what is different in it.

use super::classes::Asked;
use super::{Input, Pin, Plan, PlanDevice, PlanVariant};
use crate::frontier::{Point, dominated};
use crate::simplex::Table;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;
use modelless_types::{Micros, TaskId, VariantId};

/// A variant as it may serve on a kind of device.
pub(super) struct Server {
    pub(super) id: VariantId,
    pub(super) task: TaskId,
    pub(super) memory: u64,
    pub(super) accuracy: f64,
    /// Device time a query.
    pub(super) seconds: f64,
    /// Of which classes, by position.
    pub(super) classes: Vec<usize>,
    /// Alone about as fast as the fastest of its task, where it is not told of all who ask within what.
    pub(super) quick: bool,
}

/// Devices with the same room that run the same.
pub(super) struct Kind {
    pub(super) room: u64,
    pub(super) servers: Vec<Server>,
}

/// Devices of a kind that have the same in memory.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Group {
    pub(super) kind: usize,
    /// By position in the input, rising.
    pub(super) devices: Vec<usize>,
    /// By position in the kind's servers, rising.
    pub(super) pinned: BTreeSet<usize>,
}

/// What is to be placed, and for whom.
pub(super) struct Fluid<'a> {
    pub(super) asked: Vec<Asked>,
    pub(super) kinds: Vec<Kind>,
    devices: &'a [PlanDevice],
    kind_of: Vec<usize>,
}

/// What a placement serves.
pub(super) struct Served {
    /// Accuracy a second, summed over queries.
    pub(super) worth: f64,
    /// Of each group's pins, in their order, how much of that.
    pub(super) by: Vec<BTreeMap<usize, f64>>,
    /// What one more query a second of each class would gain that took no time.
    classes: Vec<f64>,
    /// What a second more of each group would gain.
    times: Vec<f64>,
    /// How much was worked out for it.
    pub(super) effort: u64,
    /// Whether nothing more could be served by what is pinned.
    pub(super) ended: bool,
}

impl<'a> Fluid<'a> {
    pub(super) fn new(input: &'a Input, asked: Vec<Asked>, plan: &Plan) -> Self {
        let fastest = fastest(input);
        let (mut kinds, mut known, mut kind_of) = (Vec::<Kind>::new(), Vec::<&PlanDevice>::new(), Vec::new());
        for device in &input.devices {
            let alike = |of: &&PlanDevice| {
                about(of.room().0) == about(device.room().0) && of.variants == device.variants
            };
            let at = known.iter().position(alike).unwrap_or_else(|| {
                known.push(device);
                kinds.push(kind(device, &asked, plan, &fastest));
                kinds.len() - 1
            });
            kinds[at].room = kinds[at].room.min(device.room().0);
            kind_of.push(at);
        }
        Self { asked, kinds, devices: &input.devices, kind_of }
    }

    /// What no placement could be beyond: everybody answered as well as may be.
    pub(super) fn at_best(&self) -> f64 {
        let best = |of: usize| {
            let servers = self.kinds.iter().flat_map(|kind| &kind.servers);
            let may = servers.filter(move |server| server.classes.contains(&of));
            may.map(|server| server.accuracy).fold(0.0, f64::max)
        };
        self.asked.iter().enumerate().map(|(at, asked)| asked.per_s * best(at)).sum()
    }

    /// Devices as they are pinned; what serves nobody is left out.
    pub(super) fn groups(&self, pins: &[Pin]) -> Vec<Group> {
        let mut groups: BTreeMap<(usize, BTreeSet<usize>), Vec<usize>> = BTreeMap::new();
        for (at, device) in self.devices.iter().enumerate() {
            let kind = self.kind_of[at];
            let is_pinned = |id: VariantId| {
                let pin = Pin { node: device.node, device: device.device, variant: id };
                pins.binary_search(&pin).is_ok()
            };
            let servers = self.kinds[kind].servers.iter().enumerate();
            let pinned = servers.filter(|(_, server)| is_pinned(server.id)).map(|(at, _)| at).collect();
            groups.entry((kind, pinned)).or_default().push(at);
        }
        grouped(groups)
    }

    /// Devices with everything in memory, whether it fits or not.
    pub(super) fn everything(&self) -> Vec<Group> {
        let mut groups: BTreeMap<(usize, BTreeSet<usize>), Vec<usize>> = BTreeMap::new();
        for (at, kind) in self.kind_of.iter().enumerate() {
            let all = (0..self.kinds[*kind].servers.len()).collect();
            groups.entry((*kind, all)).or_default().push(at);
        }
        grouped(groups)
    }

    /// Groups with no more pinned than what is about as fast as the fastest of its task.
    pub(super) fn bare(&self, groups: &[Group]) -> Vec<Group> {
        let mut bare: BTreeMap<(usize, BTreeSet<usize>), Vec<usize>> = BTreeMap::new();
        for group in groups {
            let servers = &self.kinds[group.kind].servers;
            let pinned = group.pinned.iter().filter(|at| servers[**at].quick).copied().collect();
            bare.entry((group.kind, pinned)).or_default().extend(&group.devices);
        }
        grouped(bare)
    }

    /// The pins of groups that serve anybody.
    pub(super) fn pins(&self, groups: &[Group], served: &Served) -> BTreeSet<Pin> {
        let mut pins = BTreeSet::new();
        let mut quick: BTreeSet<TaskId> = BTreeSet::new();
        for (group, by) in groups.iter().zip(&served.by) {
            let servers = by.keys().map(|at| &self.kinds[group.kind].servers[*at]);
            quick.extend(servers.filter(|server| server.quick).map(|server| server.task));
        }
        for (group, by) in groups.iter().zip(&served.by) {
            let servers = &self.kinds[group.kind].servers;
            for device in group.devices.iter().map(|at| &self.devices[*at]) {
                let pin =
                    |at: &usize| Pin { node: device.node, device: device.device, variant: servers[*at].id };
                pins.extend(by.keys().map(pin));
                let held = |at: &&usize| servers[**at].quick && !quick.contains(&servers[**at].task);
                pins.extend(group.pinned.iter().filter(held).map(pin));
            }
        }
        pins
    }

    /// Whether it takes more to weigh these than a plan may take.
    pub(super) fn is_too_large(&self, groups: &[Group]) -> bool {
        let ways = groups.iter().map(|group| {
            let servers = &self.kinds[group.kind].servers;
            group.pinned.iter().map(|pin| servers[*pin].classes.len()).sum::<usize>()
        });
        (self.asked.len() + groups.len() + 1).saturating_mul(ways.sum::<usize>() + 1) > CELLS
    }

    /// What they serve.
    pub(super) fn served(&self, groups: &[Group]) -> Served {
        let classes = self.asked.len();
        let mut bounds = vec![1.0; classes];
        bounds.extend(groups.iter().map(|group| float(group.devices.len())));
        let mut ways = Vec::new();
        for (at, group) in groups.iter().enumerate() {
            for pin in &group.pinned {
                let server = &self.kinds[group.kind].servers[*pin];
                ways.extend(server.classes.iter().map(|class| (*class, at, *pin, server)));
            }
        }
        let gain = |(class, _, _, server): &(usize, usize, usize, &Server)| {
            self.asked[*class].per_s * server.accuracy
        };
        let gains: Vec<f64> = ways.iter().map(gain).collect();
        let mut table = Table::new(&bounds, &gains);
        for (column, (class, at, _, server)) in ways.iter().enumerate() {
            table.add(*class, column, 1.0);
            table.add(classes + at, column, self.asked[*class].per_s * server.seconds);
        }
        let solution = table.solve_within(SOLVE);
        let mut by = vec![BTreeMap::new(); groups.len()];
        for ((_, at, pin, _), (share, gain)) in ways.iter().zip(solution.values.iter().zip(&gains)) {
            if *share > SOME {
                *by[*at].entry(*pin).or_insert(0.0) += share * gain;
            }
        }
        let (of_classes, times) = solution.prices.split_at(classes);
        Served {
            worth: solution.gained,
            by,
            classes: of_classes.to_vec(),
            times: times.to_vec(),
            effort: solution.effort,
            ended: solution.ended,
        }
    }

    /// What it could gain at the most if a group had this in memory too.
    pub(super) fn at_most(&self, served: &Served, at: usize, server: &Server) -> f64 {
        let gain = |class: &usize| {
            let one = server.accuracy - served.times[at] * server.seconds;
            (one * self.asked[*class].per_s - served.classes[*class]).max(0.0)
        };
        server.classes.iter().map(gain).sum()
    }
}

/// Cells of the largest programme that is weighed. Where a cluster has so many different devices that it takes more, ranks decide.
const CELLS: usize = 500_000;
/// And so many are worked out for one at the most; by then what is known is near the best.
const SOLVE: u64 = 50_000_000;

/// A size to about a thousandth. Machines of one type differ in their memory by some pages.
fn about(bytes: u64) -> u64 {
    let low = bytes.checked_ilog2().unwrap_or(0).saturating_sub(10);
    bytes >> low << low
}

/// What the fastest variant of each task takes alone, wherever that is.
fn fastest(input: &Input) -> BTreeMap<TaskId, Micros> {
    let mut fastest: BTreeMap<TaskId, Micros> = BTreeMap::new();
    for variant in input.devices.iter().flat_map(|device| &device.variants).filter(|v| !v.candidate) {
        let known = fastest.entry(variant.task).or_insert(variant.latency);
        *known = (*known).min(variant.latency);
    }
    fastest
}

/// Devices of a kind with the same pinned, as groups.
pub(super) fn grouped(groups: BTreeMap<(usize, BTreeSet<usize>), Vec<usize>>) -> Vec<Group> {
    let group = |((kind, pinned), mut devices): ((usize, BTreeSet<usize>), Vec<usize>)| {
        devices.sort_unstable();
        Group { kind, devices, pinned }
    };
    groups.into_iter().map(group).collect()
}

/// A smaller share of a class is none.
const SOME: f64 = 1e-6;

/// Where nobody told within what is asked, what takes alone no more than so many times as long as the fastest of its task is as good.
const NEAR: u64 = 4;

#[expect(clippy::cast_precision_loss, reason = "a count of devices")]
fn float(n: usize) -> f64 {
    n as f64
}

/// What a device could serve with: what answers by itself and is beaten by nothing.
fn kind(device: &PlanDevice, asked: &[Asked], plan: &Plan, fastest: &BTreeMap<TaskId, Micros>) -> Kind {
    let mut of_task: BTreeMap<TaskId, Vec<&PlanVariant>> = BTreeMap::new();
    let room = device.room().0;
    for variant in device.variants.iter().filter(|v| !v.candidate && !plan.sleeps(v.task)) {
        of_task.entry(variant.task).or_default().push(variant);
    }
    let mut servers = Vec::new();
    for (task, mut variants) in of_task {
        variants.sort_by_key(|v| (v.latency, core::cmp::Reverse(v.accuracy), v.id));
        let points: Vec<Point> = variants.iter().map(|v| v.point()).collect();
        let on = variants.iter().zip(dominated(&points)).filter(|(_, by)| by.is_none());
        let on: Vec<&PlanVariant> = on.map(|(variant, _)| *variant).collect();
        let near = fastest.get(&task).map_or(0, |fastest| fastest.0.saturating_mul(NEAR));
        let untold = asked.iter().any(|asked| asked.task == task && asked.within.is_none());
        let classes = classes_of(&on, asked);
        for (variant, classes) in on.into_iter().zip(classes) {
            if variant.work > 0 && !classes.is_empty() && variant.memory.0 <= room {
                servers.push(server(variant, classes, untold && variant.latency.0 <= near));
            }
        }
    }
    servers.sort_by_key(|server| server.id);
    Kind { room, servers }
}

/// Which classes each of a task's variants may answer: who is in time when it is alone, or who is as fast as any where nobody is in time.
fn classes_of(variants: &[&PlanVariant], asked: &[Asked]) -> Vec<Vec<usize>> {
    let mut classes = vec![Vec::new(); variants.len()];
    for (class, asked) in asked.iter().enumerate() {
        let may = |at: &usize| asked.admits.contains(&variants[*at].id);
        let admitted: Vec<usize> = (0..variants.len()).filter(may).collect();
        let fastest = admitted.iter().map(|at| variants[*at].latency).min();
        let within = asked.within.max(asked.within.and(fastest));
        for at in
            admitted.into_iter().filter(|at| within.is_none_or(|within| variants[*at].latency <= within))
        {
            classes[at].push(class);
        }
    }
    classes
}

#[expect(clippy::cast_precision_loss, reason = "a time in nanoseconds")]
fn server(variant: &PlanVariant, classes: Vec<usize>, quick: bool) -> Server {
    Server {
        id: variant.id,
        task: variant.task,
        memory: variant.memory.0,
        accuracy: f64::from(variant.accuracy.ppm()) / 1e6,
        seconds: variant.work as f64 / 1e9,
        classes,
        quick,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_types::{Accuracy, Bytes, CostPer1k, DeviceIx, Micros, NodeId};

    fn variant(id: u32, percent: u32, a_second: u64) -> PlanVariant {
        PlanVariant {
            id: VariantId(id),
            task: TaskId(1),
            accuracy: Accuracy::from_ppm(10_000 * percent).expect("an accuracy"),
            latency: Micros(1_000_000 / a_second),
            cost: CostPer1k(1),
            work: 1_000_000_000 / a_second,
            memory: Bytes::from_mib(10),
            demand: 1,
            least: 0,
            candidate: false,
        }
    }

    /// What so many devices serve that have these of two in memory.
    fn worth(devices: u32, pinned: &[(u32, u32)], asked: &[(&[u32], f64)]) -> f64 {
        worth_within(devices, pinned, asked, None)
    }

    fn worth_within(
        devices: u32,
        pinned: &[(u32, u32)],
        asked: &[(&[u32], f64)],
        within: Option<Micros>,
    ) -> f64 {
        let device = |node| PlanDevice {
            node: NodeId(node),
            device: DeviceIx(0),
            memory: Bytes::from_mib(100),
            discretionary_permille: 0,
            variants: vec![variant(1, 90, 100), variant(2, 80, 400)],
        };
        let input = Input { devices: (1..=devices).map(device).collect(), ..Input::default() };
        let who = |(admits, per_s): &(&[u32], f64)| Asked {
            task: TaskId(1),
            admits: admits.iter().map(|id| VariantId(*id)).collect(),
            within,
            per_s: *per_s,
        };
        let fluid = Fluid::new(&input, asked.iter().map(who).collect(), &Plan::default());
        let pin = |(node, id): &(u32, u32)| Pin {
            node: NodeId(*node),
            device: DeviceIx(0),
            variant: VariantId(*id),
        };
        let pins: Vec<Pin> = pinned.iter().map(pin).collect();
        fluid.served(&fluid.groups(&pins)).worth
    }

    #[test]
    fn what_is_served_is_as_worked_out_by_hand() {
        let near = |seen: f64, wanted: f64| assert!((seen - wanted).abs() < 1e-6, "{seen}, not {wanted}");
        near(worth(1, &[(1, 2)], &[(&[1, 2], 200.0)]), 160.0);
        near(worth(2, &[(1, 1), (2, 2)], &[(&[1, 2], 300.0)]), 250.0);
        // Only the good one may answer, and it is on one of two.
        near(worth(2, &[(1, 1), (2, 2)], &[(&[1], 150.0)]), 90.0);
        // Both in one memory: x by the good one takes x / 100 + (200 - x) / 400 of it.
        near(worth(1, &[(1, 1), (1, 2)], &[(&[1, 2], 200.0)]), 66.666_667 * 0.9 + 133.333_333 * 0.8);
        // Alike devices with the same are one.
        near(worth(3, &[(1, 2), (2, 2), (3, 2)], &[(&[1, 2], 2_000.0)]), 960.0);
    }

    #[test]
    fn what_is_too_slow_for_a_bound_serves_nobody_who_asks_within_it_and_a_hopeless_bound_is_for_the_fastest()
    {
        let near = |seen: f64, wanted: f64| assert!((seen - wanted).abs() < 1e-6, "{seen}, not {wanted}");
        let both = [(1, 1), (1, 2)];
        let within = |us, admits: &[u32]| worth_within(1, &both, &[(admits, 50.0)], Some(Micros(us)));
        // One takes 10 ms and is more accurate, the other 2.5.
        near(within(10_000, &[1, 2]), 45.0);
        near(within(9_999, &[1, 2]), 40.0);
        near(within(1_000, &[1, 2]), 40.0);
        // Nothing else keeps the floor, so it is what is fastest.
        near(within(1_000, &[1]), 45.0);
    }
}
