//! The bounds of rows that are there, worked out anew: they are the worlds', whoever decided.

use super::{Row, cut, figure, headroom};
use crate::Error;
use crate::oracle::{self, Fluid};
use crate::scenario::file::File;
use crate::spread::spread;
use std::path::Path;

/// Rows of one world, and the bounds of its seeds.
struct Bounds {
    scenario: String,
    load: f64,
    runs: (usize, u64),
    of: Vec<Fluid>,
}

impl Bounds {
    fn are_of(&self, row: &Row) -> bool {
        row.scenario == self.scenario && row.load.to_bits() == self.load.to_bits() && row.runs == self.runs
    }

    fn mean(&self, of: impl Fn(&Fluid) -> Option<f64>) -> Option<f64> {
        let known: Vec<f64> = self.of.iter().filter_map(of).collect();
        (known.len() == self.of.len()).then(|| figure(&known).mean)
    }
}

/// Gives the rows of these scenarios the bounds that are worked out now.
pub fn bounds_anew(files: &[&Path], rows: &mut [Row], tell: impl Fn(&str) + Sync) -> Result<(), Error> {
    let mut jobs = Vec::new();
    for path in files {
        let name = File::load(path, 1.0)?.name;
        let mut worlds: Vec<(f64, (usize, u64), bool)> = Vec::new();
        for row in rows.iter().filter(|row| row.scenario == name && row.runs.0 > 0) {
            let world = (row.load, row.runs, row.rented);
            if !worlds.contains(&world) {
                worlds.push(world);
            }
        }
        for (load, (seeds, seconds), rented) in worlds {
            // A run is four times as long where machines come and go.
            let given = if rented { seconds.div_ceil(4) } else { seconds };
            let world = cut(File::load(path, load * headroom(path, given)?)?, given);
            jobs.push((world, load, (seeds, seconds)));
        }
    }
    let anew = |(world, load, runs): &(crate::Scenario, f64, (usize, u64))| {
        let seeds = 1..=u64::try_from(runs.0).unwrap_or(u64::MAX);
        let of = seeds.map(|seed| oracle::fluid(world, seed)).collect::<Result<_, Error>>()?;
        Ok(Bounds { scenario: world.name.clone(), load: *load, runs: *runs, of })
    };
    let all = spread(&jobs, anew, |bounds| tell(&format!("{} at {:.2}", bounds.scenario, bounds.load)))?;
    for bounds in all {
        for row in rows.iter_mut().filter(|row| bounds.are_of(row)) {
            row.fluid = bounds.mean(|fluid| Some(fluid.violations)).unwrap_or(row.fluid);
            row.charged = bounds.mean(|fluid| Some(fluid.charged));
            row.sharpest = bounds.mean(|fluid| fluid.accuracy);
            row.least_usd = bounds.mean(|fluid| fluid.usd_per_million);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scoreboard::{Plan, board};

    #[test]
    fn bounds_that_are_worked_out_anew_are_those_of_the_board() {
        for name in ["bursts.toml", "rented-flash.toml"] {
            let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios").join(name);
            let plan = Plan {
                loads: vec![0.9],
                seeds: vec![1, 2],
                seconds: 2,
                starts: 1.0,
                announce: None,
                policies: vec!["static-cheapest".into()],
                before: None,
            };
            let told = board(&[&file], &plan, |_| ()).expect("a board");
            let mut rows: Vec<Row> = told
                .iter()
                .map(|row| Row { fluid: 7.0, charged: None, sharpest: None, least_usd: None, ..row.clone() })
                .collect();
            bounds_anew(&[&file], &mut rows, |_| ()).expect("bounds");
            assert_eq!(rows, told, "{name}");
        }
    }
}
