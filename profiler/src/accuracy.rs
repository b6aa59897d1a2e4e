//! How often a variant is right.

use crate::stats::wilson;
use modelless_types::{AccuracyMeasure, Provenance};

/// Right answers out of all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Right ones.
    pub right: u64,
    /// All.
    pub of: u64,
}

impl Tally {
    pub(crate) fn count(&mut self, right: bool) {
        self.right += u64::from(right);
        self.of += 1;
    }

    /// With the 95 % interval around it. `None` before anything was counted.
    pub fn measure(self, set: &str, device_class: &str, command: &str) -> Option<AccuracyMeasure> {
        let (low, value, high) = wilson(self.right, self.of)?;
        Some(AccuracyMeasure {
            value,
            low,
            high,
            samples: self.of,
            set: set.to_owned(),
            provenance: Provenance::Measured,
            device_class: device_class.to_owned(),
            command: command.to_owned(),
        })
    }
}
