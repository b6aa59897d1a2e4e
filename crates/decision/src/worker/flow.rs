//! At what rate queries of a class come to gateways, told by those that have come on from there.
//!
//! A node that is at its credit gets nothing, however much comes; what it gets then comes all at once. So when queries came *here*
//! says little. When they came to their gateway says how many more are waiting there by now, which nobody has told yet.

use crate::query::Query;
use modelless_types::Time;

/// What came so long ago counts a third of what comes now, in microseconds: once to notice a crowd at once, once to know a usual rate.
///
/// A crowd is noticed over no less than whole batches of a class go to other nodes in the meantime.
const QUICK: f64 = 150e3;
const SLOW: f64 = 400e3;
/// So many queries tell how long the next ones will wait.
const BOUNDS: usize = 8;
const BOUNDS_F64: f64 = 8.0;

/// Fading counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    quick: f64,
    slow: f64,
    /// How much the last of them counts.
    last: f64,
    /// When the latest of them came to its gateway.
    latest: Time,
    /// How long the last ones would wait, in microseconds, in turn.
    bounds: [f64; BOUNDS],
    turn: usize,
}

impl Flow {
    /// `part` is the share of queries like this one that this node answers.
    pub(super) fn new(first: &Query, part: f64) -> Self {
        let bound = crate::Moments::exactly(first.deadline - first.arrived).mean;
        let (latest, bounds) = (first.arrived, [bound; BOUNDS]);
        Self { quick: part, slow: part, last: part, latest, bounds, turn: 0 }
    }

    pub(super) fn came(&mut self, query: &Query, part: f64) {
        let since = crate::Moments::exactly(query.arrived - self.latest).mean;
        self.quick = self.quick * libm::exp(-since / QUICK) + part;
        self.slow = self.slow * libm::exp(-since / SLOW) + part;
        self.last = part;
        self.latest = self.latest.max(query.arrived);
        self.turn = (self.turn + 1) % BOUNDS;
        self.bounds[self.turn] = crate::Moments::exactly(query.deadline - query.arrived).mean;
    }

    /// Queries per microsecond, if nothing came for so many microseconds though it could have.
    pub(super) fn per_us(&self, nothing: f64) -> f64 {
        // The last one is the end of a gap, not a second beginning: one alone says nothing of a rate.
        let quick = (self.quick - self.last) * libm::exp(-nothing / QUICK) / QUICK;
        let slow = (self.slow - self.last) * libm::exp(-nothing / SLOW) / SLOW;
        quick.max(slow).max(0.0)
    }

    /// How long the last ones would wait, in microseconds.
    pub(super) fn bounds(&self) -> &[f64] {
        &self.bounds
    }

    /// The tight ones and the others, where they are far apart, else all: which share they are, and the mean of them.
    pub(super) fn bounds_apart(&self) -> impl Iterator<Item = (f64, f64)> {
        let least = self.bounds.iter().copied().fold(f64::INFINITY, f64::min);
        let most = self.bounds.iter().copied().fold(0.0, f64::max);
        let middle = if alike(least, most) { f64::INFINITY } else { libm::sqrt(least * most) };
        [(0.0, middle), (middle, f64::INFINITY)].into_iter().filter_map(|(from, to)| {
            let part = self.bounds.iter().filter(|bound| (from..to).contains(*bound));
            let (count, sum) = part.fold((0.0, 0.0), |(count, sum), bound| (count + 1.0, sum + bound));
            (count > 0.0).then_some((count / BOUNDS_F64, sum / count))
        })
    }
}

/// Whether one mean says enough of two bounds.
pub(super) fn alike(a: f64, b: f64) -> bool {
    a.max(b) <= 1.5 * a.min(b)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::query::Class;
    use alloc::vec::Vec;
    use modelless_types::{AppId, Bytes, Micros, Prefer, Priority, QueryKey, TaskId, TenantId, VariantSet};

    /// Asked at its gateway at a time, to be answered within 5 ms.
    pub(in crate::worker) fn query(class: Class, arrived: Time) -> Query {
        let deadline = arrived + Micros(5_000);
        Query {
            key: QueryKey(0),
            tenant: TenantId::DEFAULT,
            app: AppId::DEFAULT,
            class,
            arrived,
            deadline,
            expires: deadline,
            max_cost: None,
            prefer: Prefer::Accuracy,
            priority: Priority::default(),
            best_effort: false,
            bytes: Bytes(0),
            returnable: false,
        }
    }

    #[test]
    fn bounds_that_are_far_apart_are_told_apart_and_others_are_not() {
        let class = Class { task: TaskId(1), admits: VariantSet::default() };
        let of = |bounds: [u64; 8]| {
            let mut flow = Flow::new(&query(class, Time(0)), 1.0);
            for ms in bounds {
                flow.came(&Query { deadline: Time(ms * 1_000), ..query(class, Time(0)) }, 1.0);
            }
            flow.bounds_apart().map(|(share, mean)| (share * 8.0, mean / 1e3)).collect::<Vec<_>>()
        };
        let near = |told: &[(f64, f64)], wanted: &[(f64, f64)]| {
            let same =
                |((a, b), (c, d)): (&(f64, f64), &(f64, f64))| (a - c).abs() < 1e-9 && (b - d).abs() < 1e-9;
            told.len() == wanted.len() && told.iter().zip(wanted).all(same)
        };
        assert!(near(&of([90, 272, 272, 90, 272, 272, 272, 272]), &[(2.0, 90.0), (6.0, 272.0)]));
        assert!(near(&of([100, 140, 100, 140, 100, 140, 100, 140]), &[(8.0, 120.0)]));
        assert!(near(&of([0; 8]), &[(8.0, 0.0)]));
    }

    #[test]
    fn the_rate_is_that_at_the_gateway_and_fades_only_if_nothing_comes_though_it_could() {
        let class = Class { task: TaskId(1), admits: VariantSet::default() };
        let mut flow = Flow::new(&query(class, Time(0)), 1.0);
        // One each millisecond for a second, whenever they come here.
        (1..=1_000).for_each(|ms| flow.came(&query(class, Time(ms * 1_000)), 1.0));
        // (1 - exp(-1000 / 150)) / (1 - exp(-1 / 150)) = 150.3 count of the last 150 ms, which is more a second than the slow count has gathered yet.
        assert!((flow.per_us(0.0) - 149.3 / 150e3).abs() < 1e-7, "{}", flow.per_us(0.0));
        // After 400 ms without any the slow count tells, of which a third is left.
        let faded = 399.5 * (1.0 - libm::exp(-2.5)) * libm::exp(-1.0) / 400e3;
        assert!((flow.per_us(400e3) - faded).abs() < 1e-5, "{} {faded}", flow.per_us(400e3));
        assert!(flow.bounds().iter().all(|bound| (bound - 5_000.0).abs() < 1e-9));
    }
}
