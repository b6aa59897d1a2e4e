//! How often a variant is right.
//!
//! A vector is neither right nor wrong by itself. What is counted is whether the nearest other vector of the set, by the
//! angle between them, has the same label: a question that needs nothing but the set, and that vectors answer which are
//! good for finding what is alike.

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

/// Vectors with the class that each is known to be.
#[derive(Clone, Debug, Default)]
pub(crate) struct Nearest {
    vectors: Vec<(Vec<f32>, usize)>,
}

impl Nearest {
    /// One more. Only its direction counts.
    pub(crate) fn add(&mut self, mut vector: Vec<f32>, class: usize) {
        let length = dot(&vector, &vector).sqrt();
        if length > 0.0 {
            for value in &mut vector {
                *value /= length;
            }
        }
        self.vectors.push((vector, class));
    }

    /// How often the nearest other one has the same class; of equally near ones the first counts.
    pub(crate) fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        let mut best: Vec<Option<(f32, usize)>> = vec![None; self.vectors.len()];
        let mut nearer = |of: usize, other: usize, near: f32| {
            if best[of].is_none_or(|(most, _)| near > most) {
                best[of] = Some((near, other));
            }
        };
        // In this order each meets the others from the first to the last.
        for (at, (vector, _)) in self.vectors.iter().enumerate() {
            for (before, (other, _)) in self.vectors[..at].iter().enumerate() {
                let near = dot(vector, other);
                nearer(at, before, near);
                nearer(before, at, near);
            }
        }
        for ((_, class), best) in self.vectors.iter().zip(best) {
            tally.count(best.is_some_and(|(_, other)| self.vectors[other].1 == *class));
        }
        tally
    }
}

/// Summed up in several places at once, which is what makes a processor quick at it.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    const WIDE: usize = 8;
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<WIDE>(), b.as_chunks::<WIDE>());
    let mut sums = [0.0_f32; WIDE];
    for (a, b) in a.iter().zip(b) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    sums.iter().sum::<f32>() + a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum::<f32>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_is_right_whose_nearest_neighbour_has_its_label() {
        let mut nearest = Nearest::default();
        for (vector, class) in [
            (vec![1.0, 0.1], 0),
            (vec![20.0, 0.0], 0), // length does not count
            (vec![0.1, 1.0], 1),
            (vec![0.0, 3.0], 1),
            (vec![0.9, 0.1], 1), // among the wrong ones, and takes the first with it
        ] {
            nearest.add(vector, class);
        }
        assert_eq!(nearest.tally(), Tally { right: 3, of: 5 });
        assert_eq!(Nearest::default().tally(), Tally::default());
        assert!((dot(&[1.0; 11], &[2.0; 11]) - 22.0).abs() < 1e-6);
    }
}
