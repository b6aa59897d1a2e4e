//! How things were over time, in parts of equal length.

use crate::outcome::ratio;
use modelless_types::Micros;
use serde::{Deserialize, Serialize};

/// A run in parts of equal length, from the first query on.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Series {
    /// How long each part is.
    pub every: Micros,
    /// Names of the variants, in the order of the counts below.
    pub variants: Vec<String>,
    /// The parts.
    pub buckets: Vec<Bucket>,
}

/// A part of a run. Queries count where they came, whenever they left.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Bucket {
    /// Queries that came.
    pub offered: u64,
    /// Answered in time.
    pub in_time: u64,
    /// Answered late.
    pub late: u64,
    /// Refused, or gone with their gateway.
    pub refused: u64,
    /// Accuracies of the answers in time, added up, in millionths.
    pub accuracy_ppm: u64,
    /// Answers by variant.
    pub answers: Vec<u64>,
    /// Replicas in memory by variant, at some moment of it.
    pub resident: Vec<u32>,
    /// Machines that were up then.
    pub machines: u32,
    /// Share of their lanes that were busy then.
    pub busy: f64,
}

impl Bucket {
    /// Of what came, the share that was late, refused or lost.
    pub fn violations(&self) -> f64 {
        ratio(self.late + self.refused, self.offered)
    }

    /// Mean accuracy of the answers in time; `None` without any.
    pub fn accuracy(&self) -> Option<f64> {
        (self.in_time > 0).then(|| ratio(self.accuracy_ppm, self.in_time) / 1e6)
    }
}
