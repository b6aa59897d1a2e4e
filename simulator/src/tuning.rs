//! The same search for everybody: every combination of a bounded grid on the scenarios that may be tuned on, and one rule that chooses.
//!
//! The rule is the objective's order: of those that violate at most half a point more than the least, the cheapest; of those within a
//! hundredth of that, the most accurate; of equals the one that is written first. What was chosen lies in `simulator/tuning/chosen.toml`
//! and holds wherever a policy runs by its name.

use crate::baseline::{BASELINES, Baseline, Given};
use crate::scenario::file::File;
use crate::scoreboard::OURS;
use crate::{Error, Scenario, run};
use modelless_types::Micros;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// More than this is not tried of one policy.
const MOST: usize = 24;
/// What as much violation as this weighs is chance.
const LEVEL: f64 = 0.005;
const AS_CHEAP: f64 = 1.01;

/// What is tried.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grid {
    /// On which files.
    pub scenarios: Vec<String>,
    /// Of the fluid bound.
    pub loads: Vec<f64>,
    /// One run each.
    pub seeds: Vec<u64>,
    /// At most so long; four times that where machines are rented.
    pub seconds: u64,
    /// Values by policy and name.
    pub policy: BTreeMap<String, BTreeMap<String, Vec<f64>>>,
}

/// A combination, and what came of it: means over all runs.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Tried {
    /// Of which policy.
    pub policy: String,
    /// What it was given.
    pub given: Given,
    /// Share of queries late, refused or lost.
    pub violations: f64,
    /// Dollars for a million answers in time.
    pub usd_per_million: f64,
    /// Of the answers in time.
    pub accuracy: f64,
    /// Whether it was chosen.
    pub chosen: bool,
}

/// What was chosen for each policy.
pub fn chosen() -> BTreeMap<String, Given> {
    toml::from_str(include_str!("../tuning/chosen.toml")).expect("the tests parse it")
}

/// What was chosen for one.
pub fn chosen_for(policy: &str) -> Given {
    chosen().remove(policy).unwrap_or_default()
}

/// A scenario with what ours is given.
pub fn ours(mut world: Scenario, given: &Given) -> Scenario {
    let seconds = |s: f64| Micros::from_millis_f64(s * 1e3).filter(|time| *time > Micros::ZERO);
    if let Some(planner) = &mut world.planner {
        planner.every = given.get("plan_s").and_then(|s| seconds(*s)).unwrap_or(planner.every);
        let share = given.get("discretionary").and_then(|share| crate::scenario::permille(*share).ok());
        planner.discretionary_permille = share.unwrap_or(planner.discretionary_permille);
    }
    world.busy = given.get("busy").copied().unwrap_or(world.busy);
    world
}

/// All combinations, by rising names.
fn combinations(values: &BTreeMap<String, Vec<f64>>) -> Vec<Given> {
    let mut all = vec![Given::new()];
    for (name, values) in values {
        let with = |given: &Given| {
            let one = |value: &f64| {
                let mut given = given.clone();
                given.insert(name.clone(), *value);
                given
            };
            values.iter().map(one).collect::<Vec<_>>()
        };
        all = all.iter().flat_map(with).collect();
    }
    all
}

/// The one that the rule chooses.
fn best(tried: &[Tried]) -> Option<usize> {
    let least = tried.iter().map(|t| t.violations).fold(f64::INFINITY, f64::min);
    let sound = || tried.iter().enumerate().filter(move |(_, t)| t.violations <= least + LEVEL);
    let cheapest = sound().map(|(_, t)| t.usd_per_million).fold(f64::INFINITY, f64::min);
    let cheap = sound().filter(|(_, t)| t.usd_per_million <= cheapest * AS_CHEAP);
    cheap.max_by(|a, b| a.1.accuracy.total_cmp(&b.1.accuracy).then(b.0.cmp(&a.0))).map(|(at, _)| at)
}

/// Tries all of it; scenarios lie in the folder.
pub fn search(grid: &Grid, folder: &Path, mut tell: impl FnMut(&Tried)) -> Result<Vec<Tried>, Error> {
    let mut worlds = Vec::new();
    for name in &grid.scenarios {
        let path = folder.join(name);
        let headroom = crate::scoreboard::headroom(&path, grid.seconds)?;
        for load in &grid.loads {
            worlds.push(crate::scoreboard::cut(File::load(&path, load * headroom)?, grid.seconds));
        }
    }
    let mut all = Vec::new();
    for (name, values) in &grid.policy {
        let policy = BASELINES.iter().find(|known| known.name == name);
        if policy.is_none() && name != OURS {
            return Err(Error::Scenario(format!("the grid names {name}, and there is no such policy")));
        }
        let combinations = combinations(values);
        if combinations.len() > MOST {
            let many = combinations.len();
            return Err(Error::Scenario(format!("{name} has {many} combinations; at most {MOST} are tried")));
        }
        let mut tried = Vec::new();
        for given in combinations {
            tried.push(one(name, policy, given, &worlds, &grid.seeds)?);
        }
        if let Some(best) = best(&tried) {
            tried[best].chosen = true;
        }
        tried.iter().for_each(&mut tell);
        all.extend(tried);
    }
    Ok(all)
}

fn one(
    name: &str,
    policy: Option<&Baseline>,
    given: Given,
    worlds: &[Scenario],
    seeds: &[u64],
) -> Result<Tried, Error> {
    let (mut sums, mut runs) = ([0.0; 3], 0.0);
    for world in worlds {
        for seed in seeds {
            let outcome = match policy {
                Some(policy) => policy.run_with(world, &given, *seed)?,
                None => run(&ours(world.clone(), &given), *seed)?,
            };
            let total = &outcome.total;
            let usd = outcome.served_usd / crate::outcome::ratio(total.in_time().max(1), 1_000_000);
            for (sum, value) in sums.iter_mut().zip([total.violations, usd, total.accuracy]) {
                *sum += value;
            }
            runs += 1.0;
        }
    }
    let [violations, usd_per_million, accuracy] = sums.map(|sum| sum / f64::max(runs, 1.0));
    Ok(Tried { policy: name.into(), given, violations, usd_per_million, accuracy, chosen: false })
}

/// What was chosen, as a file that is read again.
pub fn file(tried: &[Tried]) -> String {
    let mut out = String::from(
        "# What each policy is given: of what `grid.toml` names the best by the rule in `simulator/src/tuning.rs`; what else was tried and what came of \
         it stands in `tried.md`. Written by `cargo xtask scoreboard --tune`.\n",
    );
    for one in tried.iter().filter(|one| one.chosen) {
        let _ = write!(out, "\n[{}]\n", one.policy);
        for (name, value) in &one.given {
            let _ = writeln!(out, "{name} = {value:?}");
        }
    }
    out
}

/// What was tried, as people read it.
pub fn markdown(tried: &[Tried], grid: &Grid) -> String {
    let mut out = format!(
        "# What was tried\n\nMade by `cargo xtask scoreboard --tune` from `grid.toml`: on {}, at loads {:?} of the fluid bound, with seeds {:?}, {} s each (four times \
         as long where machines are rented). Means over all runs. Chosen is, of those that violate at most half a point more than the least, the \
         cheapest, and of those that cost within a hundredth of that the most accurate.\n\n\
         | policy | given | violations | USD a million | accuracy | |\n|---|---|---:|---:|---:|---|\n",
        grid.scenarios.join(", "),
        grid.loads,
        grid.seeds,
        grid.seconds
    );
    for one in tried {
        let given: Vec<String> = one.given.iter().map(|(name, value)| format!("{name} {value}")).collect();
        let _ = writeln!(
            out,
            "| {} | {} | {:.2} % | {:.2} | {:.4} | {} |",
            one.policy,
            given.join(", "),
            100.0 * one.violations,
            one.usd_per_million,
            one.accuracy,
            if one.chosen { "chosen" } else { "" }
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(violations: f64, usd_per_million: f64, accuracy: f64) -> Tried {
        Tried {
            policy: "p".into(),
            given: Given::new(),
            violations,
            usd_per_million,
            accuracy,
            chosen: false,
        }
    }

    #[test]
    fn violations_go_before_cost_and_cost_before_accuracy() {
        let all =
            [tried(0.020, 1.0, 0.9), tried(0.010, 3.0, 0.9), tried(0.012, 2.0, 0.7), tried(0.014, 2.01, 0.8)];
        assert_eq!((best(&all), best(&all[..3]), best(&all[..2])), (Some(3), Some(2), Some(1)));
        assert_eq!(best(&[all[1].clone(), all[1].clone()]), Some(0));
    }

    #[test]
    fn every_combination_is_tried_once() {
        let values = BTreeMap::from([("a".into(), vec![1.0, 2.0]), ("b".into(), vec![3.0, 4.0, 5.0])]);
        let all = combinations(&values);
        assert_eq!(all.len(), 6);
        assert_eq!((all[0]["a"], all[0]["b"], all[5]["a"], all[5]["b"]), (1.0, 3.0, 2.0, 5.0));
    }

    #[test]
    fn what_was_chosen_is_of_the_grid_and_there_for_everybody() {
        let grid: Grid = toml::from_str(include_str!("../tuning/grid.toml")).expect("a grid");
        let chosen = chosen();
        for name in BASELINES.iter().map(|policy| policy.name).chain([OURS]) {
            let combinations = combinations(&grid.policy[name]);
            assert!(combinations.len() <= MOST, "{name}");
            assert!(combinations.contains(&chosen[name]), "{name}: {:?}", chosen[name]);
        }
        assert_eq!(grid.policy.len(), BASELINES.len() + 1);
    }

    #[test]
    fn a_file_of_what_was_chosen_says_it_again() {
        let mut one = tried(0.0, 1.0, 0.9);
        (one.chosen, one.given) = (true, Given::from([("a".into(), 0.5), ("b".into(), 2.0)]));
        let other = Tried { chosen: false, policy: "q".into(), ..one.clone() };
        let read: BTreeMap<String, Given> = toml::from_str(&file(&[one.clone(), other])).expect("TOML");
        assert_eq!(read, BTreeMap::from([("p".to_owned(), one.given)]));
    }
}
