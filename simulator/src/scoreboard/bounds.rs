//! The bounds of a board's rows: they are the worlds', whoever decided.

use super::{Row, cut, figure, headroom};
use crate::Error;
use crate::oracle::{self, Fluid};
use crate::scenario::Scenario;
use crate::scenario::file::File;
use crate::spread::spread;
use std::path::Path;

/// Of one world, for each of its seeds.
pub(super) struct Bounds(pub(super) Vec<Fluid>);

impl Bounds {
    pub(super) fn of(world: &Scenario, seeds: &[u64]) -> Result<Self, Error> {
        Ok(Self(seeds.iter().map(|seed| oracle::fluid(world, *seed)).collect::<Result<_, _>>()?))
    }

    fn mean(&self, of: impl Fn(&Fluid) -> Option<f64>) -> Option<f64> {
        let known: Vec<f64> = self.0.iter().filter_map(of).collect();
        (known.len() == self.0.len()).then(|| figure(&known).mean)
    }

    /// The row with these.
    pub(super) fn told_in(&self, row: Row) -> Row {
        Row {
            fluid: self.mean(|fluid| Some(fluid.violations)).unwrap_or_default(),
            charged: self.mean(|fluid| Some(fluid.charged)),
            sharpest: self.mean(|fluid| fluid.accuracy),
            least_usd: self.mean(|fluid| fluid.usd_per_million),
            ..row
        }
    }
}

/// Rows of one world.
struct Played {
    scenario: Scenario,
    load: f64,
    runs: (usize, u64),
}

impl Played {
    fn is_of(&self, row: &Row) -> bool {
        row.scenario == self.scenario.name
            && row.load.to_bits() == self.load.to_bits()
            && row.runs == self.runs
    }
}

/// Gives the rows of these scenarios the bounds that are worked out now.
pub fn bounds_anew(files: &[&Path], rows: &mut [Row], tell: impl Fn(&str) + Sync) -> Result<(), Error> {
    let mut worlds: Vec<Played> = Vec::new();
    for path in files {
        let name = File::load(path, 1.0)?.name;
        for row in rows.iter().filter(|row| row.scenario == name && row.runs.0 > 0) {
            if worlds.iter().any(|world| world.is_of(row)) {
                continue;
            }
            // A run is four times as long where machines come and go.
            let given = if row.rented { row.runs.1.div_ceil(4) } else { row.runs.1 };
            let scenario = cut(File::load(path, row.load * headroom(path, given)?)?, given);
            worlds.push(Played { scenario, load: row.load, runs: row.runs });
        }
    }
    let anew = |world: &Played| {
        let seeds: Vec<u64> = (1..).take(world.runs.0).collect();
        Ok((world.scenario.name.clone(), world.load, Bounds::of(&world.scenario, &seeds)?))
    };
    let all = spread(&worlds, anew, |(name, load, _)| tell(&format!("{name} at {load:.2}")))?;
    for (world, (.., bounds)) in worlds.iter().zip(all) {
        for row in rows.iter_mut().filter(|row| world.is_of(row)) {
            *row = bounds.told_in(row.clone());
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
