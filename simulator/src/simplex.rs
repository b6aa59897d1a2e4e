//! Linear programmes as they are put here, row after row: maximise `c x` where `A x <= b`, `x >= 0`, and no `b` below zero. They are solved by
//! [`modelless_decision::simplex`].

use modelless_decision::simplex::Table;

/// A programme.
#[derive(Clone, Debug, Default)]
pub(crate) struct Programme {
    gains: Vec<f64>,
    rows: Vec<(Vec<(usize, f64)>, f64)>,
}

impl Programme {
    /// Of variables that gain so much each.
    pub(crate) fn new(gains: Vec<f64>) -> Self {
        Self { gains, rows: Vec::new() }
    }

    /// A weighted sum of variables is at most `most`.
    pub(crate) fn at_most(&mut self, sum: Vec<(usize, f64)>, most: f64) {
        self.rows.push((sum, most.max(0.0)));
    }

    /// Values that gain most. What could grow without an end stays where it is. `None` where they were not found in as many steps as are taken.
    pub(crate) fn solve(&self) -> Option<Vec<f64>> {
        let bounds: Vec<f64> = self.rows.iter().map(|(_, most)| *most).collect();
        let mut table = Table::new(&bounds, &self.gains);
        for (row, (sum, _)) in self.rows.iter().enumerate() {
            for (variable, weight) in sum {
                table.add(row, *variable, *weight);
            }
        }
        let solution = table.solve();
        solution.ended.then(|| solution.values.into_iter().map(|value| value.max(0.0)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_textbook_programme_has_its_textbook_solution() {
        // 3x + 5y, x <= 4, 2y <= 12, 3x + 2y <= 18: 36 at (2, 6).
        let mut programme = Programme::new(vec![3.0, 5.0]);
        programme.at_most(vec![(0, 1.0)], 4.0);
        programme.at_most(vec![(1, 2.0)], 12.0);
        programme.at_most(vec![(0, 3.0), (1, 2.0)], 18.0);
        let values = programme.solve().expect("found");
        assert!((values[0] - 2.0).abs() < 1e-9 && (values[1] - 6.0).abs() < 1e-9, "{values:?}");
    }

    #[test]
    fn what_nothing_bounds_or_gains_stays_at_zero() {
        let mut programme = Programme::new(vec![1.0, -1.0, 2.0]);
        programme.at_most(vec![(2, 1.0)], 3.0);
        assert_eq!(programme.solve().expect("found"), [0.0, 0.0, 3.0]);
    }
}
