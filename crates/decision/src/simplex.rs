//! Linear programmes of some dozens of rows: most of `c x` where `A x <= b`, `x >= 0`, and no `b` below zero.
//!
//! The simplex method on a condensed table: a column for each variable that is zero, a row for each that is not. The order of
//! operations is fixed, so that every scheduler finds the same. Plans are weighed by it, and the simulator's bounds are found by it.

use alloc::vec;
use alloc::vec::Vec;

/// Below this a number is taken for zero.
const TINY: f64 = 1e-9;
/// So many steps for each row, and then the rule that never circles.
const QUICK: usize = 8;
/// And so many before what is known by then is told, or so many altogether where that is more.
const MOST: usize = 64;
const LEAST: usize = 10_000;

/// A programme.
#[derive(Clone, Debug)]
pub struct Table {
    rows: usize,
    columns: usize,
    /// Row after row, each with its bound last; the last row is what is gained.
    cells: Vec<f64>,
    /// Which variable each column stands for. Variables from `columns` on are the slack of rows.
    outside: Vec<usize>,
    /// Which each row stands for.
    inside: Vec<usize>,
}

/// What was found.
#[derive(Clone, PartialEq, Debug)]
pub struct Solution {
    /// The most.
    pub gained: f64,
    /// Each variable's value.
    pub values: Vec<f64>,
    /// What a little more of each row's bound would gain, over that.
    pub prices: Vec<f64>,
    /// How many cells were worked out for it.
    pub effort: u64,
    /// Whether it is the most. If not, these values keep all bounds, and more could be gained.
    pub ended: bool,
}

impl Table {
    /// With these bounds and what each variable gains.
    pub fn new(bounds: &[f64], gains: &[f64]) -> Self {
        let (rows, columns) = (bounds.len(), gains.len());
        let mut cells = vec![0.0; (rows + 1) * (columns + 1)];
        for (row, bound) in bounds.iter().enumerate() {
            cells[row * (columns + 1) + columns] = *bound;
        }
        for (column, gain) in gains.iter().enumerate() {
            cells[rows * (columns + 1) + column] = -gain;
        }
        Self {
            rows,
            columns,
            cells,
            outside: (0..columns).collect(),
            inside: (columns..columns + rows).collect(),
        }
    }

    /// So much more of a variable in a row.
    pub fn add(&mut self, row: usize, column: usize, weight: f64) {
        self.cells[row * (self.columns + 1) + column] += weight;
    }

    fn at(&self, row: usize, column: usize) -> f64 {
        self.cells[row * (self.columns + 1) + column]
    }

    /// Values that gain most. What could grow without an end stays where it is.
    pub fn solve(self) -> Solution {
        self.solve_within(u64::MAX)
    }

    /// The same, or what is known when so many cells have been worked out.
    pub fn solve_within(mut self, most: u64) -> Solution {
        let (mut effort, mut ended) = (0, false);
        let mut endless = vec![false; self.columns + self.rows];
        for step in 0..self.rows.saturating_mul(MOST).saturating_add(self.columns).max(LEAST) {
            if effort > most {
                break;
            }
            let Some(column) = self.enters(step < self.rows.saturating_mul(QUICK), &endless) else {
                ended = true;
                break;
            };
            match self.leaves(column) {
                Some(row) => effort += self.pivot(row, column) + wide(self.rows + self.columns),
                None => endless[self.outside[column]] = true,
            }
        }
        let mut values = vec![0.0; self.columns];
        let mut prices = vec![0.0; self.rows];
        for (row, variable) in self.inside.iter().enumerate() {
            if let Some(value) = values.get_mut(*variable) {
                *value = self.at(row, self.columns);
            }
        }
        for (column, variable) in self.outside.iter().enumerate() {
            if let Some(price) = variable.checked_sub(self.columns).and_then(|row| prices.get_mut(row)) {
                *price = self.at(self.rows, column).max(0.0);
            }
        }
        Solution {
            gained: self.at(self.rows, self.columns),
            values,
            prices,
            effort: effort + wide(self.cells.len()),
            ended,
        }
    }

    /// The column that gains most, or else the first by number that gains anything.
    fn enters(&self, most: bool, endless: &[bool]) -> Option<usize> {
        let gains = (0..self.columns)
            .filter(|column| self.at(self.rows, *column) < -TINY && !endless[self.outside[*column]]);
        if most {
            gains.min_by(|a, b| {
                self.at(self.rows, *a)
                    .total_cmp(&self.at(self.rows, *b))
                    .then(self.outside[*a].cmp(&self.outside[*b]))
            })
        } else {
            gains.min_by_key(|column| self.outside[*column])
        }
    }

    /// The row that is first at its bound as the column grows.
    fn leaves(&self, column: usize) -> Option<usize> {
        let mut least: Option<(f64, usize)> = None;
        for row in (0..self.rows).filter(|row| self.at(*row, column) > TINY) {
            let ratio = self.at(row, self.columns) / self.at(row, column);
            let first = least.is_none_or(|(known, at)| {
                ratio < known || (ratio <= known && self.inside[row] < self.inside[at])
            });
            if first {
                least = Some((ratio, row));
            }
        }
        least.map(|(_, row)| row)
    }

    fn pivot(&mut self, row: usize, column: usize) -> u64 {
        let width = self.columns + 1;
        let by = self.at(row, column);
        let mut pivot: Vec<f64> =
            self.cells[row * width..(row + 1) * width].iter().map(|cell| cell / by).collect();
        pivot[column] = 1.0 / by;
        let mut effort = 0;
        for (at, cells) in self.cells.chunks_exact_mut(width).enumerate() {
            if at == row {
                continue;
            }
            let times = cells[column];
            if times == 0.0 {
                continue;
            }
            cells[column] = 0.0;
            for (cell, own) in cells.iter_mut().zip(&pivot) {
                *cell -= times * own;
            }
            effort += wide(width);
        }
        self.cells[row * width..(row + 1) * width].copy_from_slice(&pivot);
        core::mem::swap(&mut self.inside[row], &mut self.outside[column]);
        effort
    }
}

fn wide(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_programme_is_solved_as_by_hand_with_what_its_bounds_are_worth() {
        let mut table = Table::new(&[4.0, 6.0, 3.0], &[3.0, 2.0]);
        for (row, column, weight) in [(0, 0, 1.0), (0, 1, 1.0), (1, 0, 1.0), (1, 1, 3.0), (2, 0, 1.0)] {
            table.add(row, column, weight);
        }
        let found = table.solve();
        let near = |seen: &[f64], wanted: &[f64]| {
            let apart = seen.iter().zip(wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(seen.len() == wanted.len() && apart < 1e-9, "{seen:?}, not {wanted:?}");
        };
        near(&[found.gained], &[11.0]);
        near(&found.values, &[3.0, 1.0]);
        near(&found.prices, &[2.0, 0.0, 1.0]);
        assert!(found.ended);
    }

    #[test]
    fn what_nothing_bounds_or_gains_stays_at_zero() {
        let mut table = Table::new(&[3.0], &[1.0, -1.0, 2.0]);
        table.add(0, 2, 1.0);
        assert_eq!(table.solve().values, [0.0, 0.0, 3.0]);
    }

    #[test]
    fn who_has_no_time_for_the_most_is_told_what_keeps_all_bounds_and_that_it_is_not_the_most() {
        let table = |rows: usize| {
            let mut table = Table::new(&vec![1.0; rows], &vec![1.0; rows]);
            (0..rows).for_each(|row| table.add(row, row, 1.0));
            table
        };
        let found = table(9).solve_within(1);
        assert!(!found.ended && found.gained > 0.0 && found.gained < 9.0, "{found:?}");
        assert!(found.values.iter().all(|value| (0.0..=1.0).contains(value)));
        let all = table(9).solve();
        assert!(all.ended && (all.gained - 9.0).abs() < 1e-9);
    }

    #[test]
    fn a_bound_of_zero_circles_nowhere() {
        // Beale's: with the largest gain first alone it goes round for ever. A twentieth is gained, at (1/25, 0, 1, 0).
        let mut table = Table::new(&[0.0, 0.0, 1.0], &[0.75, -150.0, 0.02, -6.0]);
        for (row, weights) in
            [[0.25, -60.0, -0.04, 9.0], [0.5, -90.0, -0.02, 3.0], [0.0, 0.0, 1.0, 0.0]].iter().enumerate()
        {
            for (column, weight) in weights.iter().enumerate() {
                table.add(row, column, *weight);
            }
        }
        let found = table.solve();
        assert!((found.gained - 0.05).abs() < 1e-9, "{}", found.gained);
    }
}
