//! Which variants are worth having: those that no other beats on every axis.

use alloc::vec::Vec;
use modelless_types::{Accuracy, CostPer1k, Micros};

/// One variant on one device class, as far as choosing goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Point {
    /// Higher is better.
    pub accuracy: Accuracy,
    /// Lower is better.
    pub latency: Micros,
    /// Lower is better.
    pub cost: CostPer1k,
}

impl Point {
    fn dominates(&self, other: &Self) -> bool {
        let no_worse =
            self.accuracy >= other.accuracy && self.latency <= other.latency && self.cost <= other.cost;
        no_worse && self != other
    }
}

/// For each point, whether it is on the accuracy/latency/cost frontier.
pub fn frontier(points: &[Point]) -> Vec<bool> {
    points.iter().map(|point| !points.iter().any(|other| other.dominates(point))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_beaten_on_every_axis_is_off_the_frontier_and_equals_stay() {
        let p = |ppm, us, cost| Point {
            accuracy: Accuracy::from_ppm(ppm).expect("accuracy"),
            latency: Micros(us),
            cost: CostPer1k(cost),
        };
        let points = [
            p(900_000, 10, 10),
            p(800_000, 5, 5),
            p(850_000, 20, 20),
            p(900_000, 10, 10),
            p(950_000, 99, 99),
        ];
        assert_eq!(frontier(&points), [true, true, false, true, true]);
    }
}
