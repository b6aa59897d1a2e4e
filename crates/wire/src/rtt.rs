//! How long a word takes there and back.

use modelless_decision::Moments;
use modelless_types::Micros;

/// Weight of the newest sample once enough were seen.
const WEIGHT: f64 = 1.0 / 16.0;
/// One stopped thread must not pass for the usual.
const CLAMP: f64 = 4.0;
/// So many are taken one right after the other, and the least of them is believed.
const FEW: u32 = 5;
/// The table is made anew when an estimate moves, so it moves in steps.
const STEP_US: f64 = 10.0;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rtt {
    known: Moments,
    seen: u32,
}

impl Rtt {
    pub(crate) fn observe(&mut self, took: Micros) {
        let seen = Moments::exactly(took).mean;
        self.seen = self.seen.saturating_add(1);
        // The first is the greeting, which a node that was stopped or is starting may take long over.
        if self.seen == 1 || (self.seen <= FEW && seen < self.known.mean) {
            self.known = Moments { mean: seen, var: 0.0 };
            return;
        }
        let weight = WEIGHT.max(1.0 / f64::from(self.seen));
        let error = seen.min(self.known.mean * CLAMP) - self.known.mean;
        self.known.mean += weight * error;
        self.known.var = (1.0 - weight) * (self.known.var + weight * error * error);
    }

    /// So few that the next one should be taken at once.
    pub(crate) fn is_new(&self) -> bool {
        self.seen < FEW
    }

    /// In steps, so that it rests when nothing much changes.
    pub(crate) fn estimate(&self) -> Moments {
        let step = |x: f64| (x / STEP_US).ceil() * STEP_US;
        let deviation = step(self.known.var.sqrt());
        Moments { mean: step(self.known.mean), var: deviation * deviation }
    }

    /// The mean in whole microseconds.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a mean of u64s is one")]
    pub(crate) fn mean(&self) -> Micros {
        Micros(self.known.mean as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_follows_what_is_seen_and_shrugs_off_one_stopped_thread() {
        let mut rtt = Rtt::default();
        rtt.observe(Micros(700_000));
        assert_eq!(rtt.estimate(), Moments { mean: 700_000.0, var: 0.0 });
        rtt.observe(Micros(400));
        assert_eq!(
            rtt.estimate(),
            Moments { mean: 400.0, var: 0.0 },
            "the greeting was slow, the way is not"
        );
        for _ in 0..200 {
            rtt.observe(Micros(80));
        }
        assert!((80.0..=90.0).contains(&rtt.estimate().mean), "{rtt:?}");
        rtt.observe(Micros(5_000_000));
        assert!(rtt.estimate().mean <= 110.0, "{rtt:?}");
    }
}
