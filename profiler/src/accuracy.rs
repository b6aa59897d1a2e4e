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
    known: Vec<Known>,
}

#[derive(Clone, Debug)]
struct Known {
    vector: Vec<f32>,
    class: usize,
    /// How near the nearest other one is, and which.
    nearest: Option<(f32, usize)>,
}

impl Known {
    /// Of equally near ones the first counts.
    fn meets(&mut self, other: usize, near: f32) {
        if self.nearest.is_none_or(|(most, _)| near > most) {
            self.nearest = Some((near, other));
        }
    }
}

impl Nearest {
    /// One more, compared with all before it: what that takes grows with them, and is spent as they come. Only its direction counts.
    pub(crate) fn add(&mut self, mut vector: Vec<f32>, class: usize) {
        let length = dot(&vector, &vector).sqrt();
        if length > 0.0 {
            for value in &mut vector {
                *value /= length;
            }
        }
        let at = self.known.len();
        let mut one = Known { vector, class, nearest: None };
        // In this order each meets the others from the first to the last.
        for (before, other) in self.known.iter_mut().enumerate() {
            let near = dot(&one.vector, &other.vector);
            one.meets(before, near);
            other.meets(at, near);
        }
        self.known.push(one);
    }

    /// How often the nearest other one has the same class.
    pub(crate) fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        for Known { class, nearest, .. } in &self.known {
            tally.count(nearest.is_some_and(|(_, other)| self.known[other].class == *class));
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
