//! The scoreboard with loads of models and starts of machines that take shorter and longer: nobody published most of them, so what is said of
//! policies should not hang on what was assumed.

use crate::Error;
use crate::scoreboard::{Plan, Row, board, shown};
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::path::Path;

/// A board where loads and starts take so many times as long as the scenarios say.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Starting {
    /// So many times as long.
    pub times: f64,
    /// Its rows.
    pub rows: Vec<Row>,
}

/// A board for each; `tell` hears of each row as it is done.
pub fn starts(
    files: &[&Path],
    plan: &Plan,
    times: &[f64],
    tell: impl Fn(f64, &Row) + Sync,
) -> Result<Vec<Starting>, Error> {
    let one = |times: &f64| {
        let rows = board(files, &Plan { starts: *times, ..plan.clone() }, |row| tell(*times, row))?;
        Ok(Starting { times: *times, rows })
    };
    times.iter().map(one).collect()
}

/// As people read it.
pub fn markdown(all: &[Starting], how: &str) -> String {
    let runs = all.iter().flat_map(|one| &one.rows).map(|row| row.runs).max().unwrap_or_default();
    let mut out = format!(
        "# Where models load, and machines start, sooner or later\n\nMade by `{how}`; every row in `starts.json`. The scoreboard's scenarios ({} seeds, at most {} s of virtual time each) with every load of \
         a model and every start of a machine so many times as long as they say: most of these times are assumed, since nobody published them. Targets are those of the scoreboard, worked out from the rows of one factor each.\n\n| target |",
        runs.0, runs.1
    );
    for one in all {
        let _ = write!(out, " x {} |", one.times);
    }
    out.push_str("\n|---|");
    out.push_str(&"---|".repeat(all.len()));
    out.push('\n');
    let shown: Vec<_> = all.iter().map(|one| shown(&one.rows)).collect();
    for (at, first) in shown.first().into_iter().flatten().enumerate() {
        let of: Vec<_> = shown.iter().filter_map(|one| one.get(at)).collect();
        if of.iter().all(|one| one.met.is_none()) {
            continue;
        }
        let _ = write!(out, "| {} |", first.target);
        for one in of {
            let missed = if one.met == Some(false) { ", **missed**" } else { "" };
            let _ = write!(out, " {}{missed} |", one.figure);
        }
        out.push('\n');
    }
    let Some(first) = all.first() else { return out };
    let same = |a: &Row, b: &Row| a.scenario == b.scenario;
    for of in first.rows.chunk_by(same) {
        let _ = write!(out, "\n## {}\n\n| load | policy |", of[0].scenario);
        for one in all {
            let _ = write!(out, " x {} | USD |", one.times);
        }
        out.push_str("\n|---:|---|");
        out.push_str(&"---:|---:|".repeat(all.len()));
        out.push('\n');
        for row in of {
            let _ = write!(out, "| {:.2} | {} |", row.load, row.policy);
            for one in all {
                let again = |other: &&Row| {
                    (&other.scenario, other.load.to_bits(), &other.policy)
                        == (&row.scenario, row.load.to_bits(), &row.policy)
                };
                match one.rows.iter().find(again) {
                    Some(row) => {
                        let missed = 100.0 * row.violations.mean;
                        let half = 100.0 * row.violations.half;
                        let usd = row.usd_per_million.mean;
                        let _ = write!(out, " {missed:.2} ± {half:.2} % | {usd:.2} |");
                    }
                    None => out.push_str(" | |"),
                }
            }
            out.push('\n');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_that_take_longer_miss_more_and_every_board_is_told_side_by_side() {
        let scenario = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios/rented-large.toml");
        let plan = Plan {
            loads: vec![0.6],
            seeds: vec![1],
            seconds: 3,
            starts: 1.0,
            announce: None,
            policies: vec!["modelless".into(), "infaas-paper".into()],
            before: None,
        };
        let all = starts(&[&scenario], &plan, &[0.0, 3.0], |_, _| {}).expect("it runs");
        let missed = |at: usize, policy: &str| {
            let row = all[at].rows.iter().find(|row| row.policy == policy).expect("a row");
            row.violations.mean
        };
        assert!(missed(0, "infaas-paper") < missed(1, "infaas-paper"), "{all:?}");
        let text = markdown(&all, "nobody");
        assert!(text.contains("| x 0 | x 3 |") && text.contains("`infaas-paper`'s |"), "{text}");
        assert!(!text.contains("slackfit"), "nobody ran it: {text}");
        assert_eq!(text.lines().filter(|line| line.starts_with("| 0.60 | ")).count(), 2, "{text}");
    }
}
