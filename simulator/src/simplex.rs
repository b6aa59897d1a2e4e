//! Linear programmes small enough to be solved outright: maximise `c x` where `A x <= b`, `x >= 0`, and no `b` below zero.
//!
//! The simplex method on a dense table with Bland's rule, so that it ends; the order of operations is fixed.

/// Below this a number is taken for zero.
const TINY: f64 = 1e-9;
/// Steps after which what is known by then is told; far more than such programmes take.
const STEPS: usize = 100_000;

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

    /// Values that gain most. What could grow without an end stays where it is.
    pub(crate) fn solve(&self) -> Vec<f64> {
        let (n, m) = (self.gains.len(), self.rows.len());
        let width = n + m + 1;
        let mut table = vec![vec![0.0; width]; m + 1];
        for (at, (sum, most)) in self.rows.iter().enumerate() {
            for (variable, weight) in sum {
                table[at][*variable] += weight;
            }
            table[at][n + at] = 1.0;
            table[at][width - 1] = *most;
        }
        for (variable, gain) in self.gains.iter().enumerate() {
            table[m][variable] = -gain;
        }
        let mut basis: Vec<usize> = (n..n + m).collect();
        let mut shut = vec![false; width - 1];
        for _ in 0..STEPS {
            let Some(enters) = (0..width - 1).find(|at| table[m][*at] < -TINY && !shut[*at]) else { break };
            let ratio = |row: &usize| table[*row][width - 1] / table[*row][enters];
            let leaves = (0..m)
                .filter(|row| table[*row][enters] > TINY)
                .min_by(|a, b| ratio(a).total_cmp(&ratio(b)).then(basis[*a].cmp(&basis[*b])));
            let Some(leaves) = leaves else {
                shut[enters] = true;
                continue;
            };
            pivot(&mut table, leaves, enters);
            basis[leaves] = enters;
        }
        let mut values = vec![0.0; n];
        for (row, variable) in basis.iter().enumerate() {
            if *variable < n {
                values[*variable] = table[row][width - 1].max(0.0);
            }
        }
        values
    }
}

fn pivot(table: &mut [Vec<f64>], row: usize, column: usize) {
    let by = table[row][column];
    table[row].iter_mut().for_each(|value| *value /= by);
    let pivot = table[row].clone();
    for (at, other) in table.iter_mut().enumerate() {
        let factor = other[column];
        if at != row && factor != 0.0 {
            other.iter_mut().zip(&pivot).for_each(|(value, by)| *value -= factor * by);
        }
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
        let values = programme.solve();
        assert!((values[0] - 2.0).abs() < 1e-9 && (values[1] - 6.0).abs() < 1e-9, "{values:?}");
    }

    #[test]
    fn what_nothing_bounds_or_gains_stays_at_zero() {
        let mut programme = Programme::new(vec![1.0, -1.0, 2.0]);
        programme.at_most(vec![(2, 1.0)], 3.0);
        assert_eq!(programme.solve(), [0.0, 0.0, 3.0]);
    }
}
