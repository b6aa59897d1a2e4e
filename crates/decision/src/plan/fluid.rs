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
use modelless_types::{TaskId, VariantId};

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
    /// Alone about as fast as the fastest of its task.
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
}

impl<'a> Fluid<'a> {
    pub(super) fn new(input: &'a Input, asked: Vec<Asked>, plan: &Plan) -> Self {
        let (mut kinds, mut known, mut kind_of) = (Vec::new(), Vec::<&PlanDevice>::new(), Vec::new());
        for device in &input.devices {
            let alike = |of: &&PlanDevice| of.room() == device.room() && of.variants == device.variants;
            let at = known.iter().position(alike).unwrap_or_else(|| {
                known.push(device);
                kinds.push(kind(device, &asked, plan));
                kinds.len() - 1
            });
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
        let solution = table.solve();
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

/// What takes alone no more than so many times as long as the fastest of its task is as good where bounds are tight.
const NEAR: f64 = 4.0;

#[expect(clippy::cast_precision_loss, reason = "a time")]
fn micros(variant: &PlanVariant) -> f64 {
    variant.latency.0 as f64
}

#[expect(clippy::cast_precision_loss, reason = "a count of devices")]
fn float(n: usize) -> f64 {
    n as f64
}

/// What a device could serve with: what answers by itself and is beaten by nothing.
fn kind(device: &PlanDevice, asked: &[Asked], plan: &Plan) -> Kind {
    let mut of_task: BTreeMap<TaskId, Vec<&PlanVariant>> = BTreeMap::new();
    for variant in device.variants.iter().filter(|v| !v.candidate && !plan.sleeps(v.task)) {
        of_task.entry(variant.task).or_default().push(variant);
    }
    let mut servers = Vec::new();
    for mut variants in of_task.into_values() {
        variants.sort_by_key(|v| (v.latency, core::cmp::Reverse(v.accuracy), v.id));
        let points: Vec<Point> = variants.iter().map(|v| v.point()).collect();
        let on = variants.iter().zip(dominated(&points)).filter(|(_, by)| by.is_none());
        let on: Vec<&PlanVariant> = on.map(|(variant, _)| *variant).collect();
        let near = on.first().map_or(0.0, |fastest| micros(fastest) * NEAR);
        for variant in on {
            let may = |class: &usize| asked[*class].admits.contains(&variant.id);
            let classes: Vec<usize> = (0..asked.len()).filter(may).collect();
            if variant.work > 0 && !classes.is_empty() {
                servers.push(server(variant, classes, micros(variant) <= near));
            }
        }
    }
    servers.sort_by_key(|server| server.id);
    Kind { room: device.room().0, servers }
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
        let device = |node| PlanDevice {
            node: NodeId(node),
            device: DeviceIx(0),
            memory: Bytes::from_mib(100),
            discretionary_permille: 0,
            variants: vec![variant(1, 90, 100), variant(2, 80, 400)],
        };
        let input = Input { devices: (1..=devices).map(device).collect(), ..Input::default() };
        let who = |(admits, per_s): &(&[u32], f64)| Asked {
            admits: admits.iter().map(|id| VariantId(*id)).collect(),
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
}
