//! What the scoreboard must show, worked out from its rows: each target with its figure, met or not.

use super::{OURS, Row};
use std::collections::BTreeMap;
use std::fmt::Write;

/// A bound is tight up to so many single runs of the most accurate model.
const TIGHT: f64 = 5.0;
/// Points of accuracy that answers are to be more accurate by.
const SHARPER: f64 = 0.3;
/// Violations below this are none.
const NONE: f64 = 1e-4;

/// One target.
#[derive(Clone, PartialEq, Debug)]
pub struct Shown {
    /// What is asked.
    pub target: String,
    /// What was seen.
    pub figure: String,
    /// Whether that is enough; `None` where no row says anything of it.
    pub met: Option<bool>,
}

impl Shown {
    fn new(target: &str, figure: Option<(f64, String)>, enough: impl Fn(f64) -> bool) -> Self {
        let met = figure.as_ref().map(|(value, _)| enough(*value));
        let figure = figure.map_or_else(|| "no row".to_owned(), |(_, text)| text);
        Self { target: target.to_owned(), figure, met }
    }
}

/// Our row beside that of another on the same scenario under the same load.
fn pairs<'a>(rows: &'a [Row], policy: &'a str) -> impl Iterator<Item = (&'a Row, &'a Row)> {
    let same = |a: &Row, b: &Row| a.scenario == b.scenario && a.load.to_bits() == b.load.to_bits();
    rows.iter().filter(|row| row.policy == OURS).filter_map(move |ours| {
        Some((ours, rows.iter().find(|row| row.policy == policy && same(row, ours))?))
    })
}

fn mean(values: &[f64]) -> Option<f64> {
    let n = f64::from(u32::try_from(values.len()).ok()?);
    (n > 0.0).then(|| values.iter().sum::<f64>() / n)
}

/// Violations over all rows in which the other has any, over its own.
fn violations(rows: &[Row], policy: &str) -> Option<(f64, String)> {
    let any: Vec<(f64, f64)> = pairs(rows, policy)
        .map(|(ours, other)| (ours.violations.mean, other.violations.mean))
        .filter(|(_, other)| *other > NONE)
        .collect();
    let (ours, other) = any.iter().fold((0.0, 0.0), |(a, b), (x, y)| (a + x, b + y));
    let worse = any.iter().filter(|(ours, other)| ours > other).count();
    let ratio = ours / other;
    // How much of it is nobody's choice.
    let bound: f64 = pairs(rows, policy)
        .filter(|(_, other)| other.violations.mean > NONE)
        .map(|(ours, _)| ours.fluid)
        .sum();
    let text =
        format!("{ratio:.2} over {} rows, more in {worse}; the bound has {:.2}", any.len(), bound / other);
    ratio.is_finite().then_some((ratio, text))
}

/// The load up to which at most one in a hundred is violated, of the fluid bound; on the line between the loads that were run.
fn within_one_percent(rows: &[&Row]) -> f64 {
    let mut rows = rows.to_vec();
    rows.sort_by(|a, b| a.load.total_cmp(&b.load));
    let mut reached = 0.0;
    let mut before: Option<(f64, f64)> = None;
    for row in rows {
        let (load, violated) = (row.load, row.violations.mean);
        if violated <= 0.01 {
            reached = load;
        } else {
            // Before the first there is nothing to violate.
            let (from, known) = before.unwrap_or((0.0, 0.0));
            if known <= 0.01 {
                reached = from + (load - from) * (0.01 - known) / (violated - known);
            }
            break;
        }
        before = Some((load, violated));
    }
    reached
}

/// That load, ours over another's, mean over scenarios.
fn goodput(rows: &[Row], policy: &str, wanted: impl Fn(&Row) -> bool) -> Option<(f64, String)> {
    let mut by_scenario: BTreeMap<&str, (Vec<&Row>, Vec<&Row>)> = BTreeMap::new();
    for (ours, other) in pairs(rows, policy).filter(|(ours, _)| wanted(ours)) {
        let entry = by_scenario.entry(&ours.scenario).or_default();
        entry.0.push(ours);
        entry.1.push(other);
    }
    let reached = by_scenario.values().map(|(a, b)| (within_one_percent(a), within_one_percent(b)));
    let (ours, other) = reached.fold((0.0, 0.0), |(a, b), (x, y)| (a + x, b + y));
    let ratio = ours / other;
    ratio.is_finite().then(|| (ratio, format!("{ratio:.2} ({} scenarios)", by_scenario.len())))
}

/// What a million answers in time cost, over another's: the geometric mean of all rows where machines are rented.
fn cost(rows: &[Row], policy: &str) -> Option<(f64, String)> {
    let over = |usd: &dyn Fn(&Row) -> Option<f64>| {
        let rented = pairs(rows, policy).filter(|(ours, _)| ours.rented);
        let ratios = rented.filter_map(|(ours, other)| Some(usd(ours)? / other.usd_per_million.mean));
        let logs: Vec<f64> =
            ratios.filter(|ratio| ratio.is_finite() && *ratio > 0.0).map(libm::log).collect();
        Some((libm::exp(mean(&logs)?), logs.len()))
    };
    let (ratio, count) = over(&|row| Some(row.usd_per_million.mean))?;
    let least = over(&|row| row.least_usd).filter(|(_, told)| *told == count);
    let least = least.map_or_else(String::new, |(least, _)| {
        format!("; who answers the most there can be has {least:.2} at the least")
    });
    Some((ratio, format!("{ratio:.2} over {count} rows{least}")))
}

/// Points of accuracy above another's, mean over all rows.
fn sharper(rows: &[Row], policy: &str) -> Option<(f64, String)> {
    let answered = pairs(rows, policy).filter(|(_, other)| other.accuracy.mean > 0.0);
    let points: Vec<f64> =
        answered.map(|(ours, other)| 100.0 * (ours.accuracy.mean - other.accuracy.mean)).collect();
    let points = mean(&points)?;
    let sharpest = pairs(rows, policy).filter(|(_, other)| other.accuracy.mean > 0.0);
    let sharpest: Option<Vec<f64>> =
        sharpest.map(|(ours, other)| Some(100.0 * (ours.sharpest? - other.accuracy.mean))).collect();
    // Accuracy is that of answers in time: who gives few can give better ones.
    let bound = sharpest.as_ref().and_then(|all| Some((mean(all)?, all))).map_or_else(String::new, |(most, all)| {
        let short = all.iter().filter(|points| **points < SHARPER).count();
        format!(
            "; nobody who misses at most a point above the bound has more than {most:+.2}, in {short} of {} rows no {SHARPER}",
            all.len()
        )
    });
    Some((points, format!("{points:+.2} points{bound}")))
}

/// How far violations are above the least that there must be, in points, at worst.
fn above_the_bound(rows: &[Row]) -> Option<(f64, String)> {
    let over = |least: fn(&Row) -> f64| {
        let ours = rows.iter().filter(|row| row.policy == OURS && row.single_runs >= 3.0);
        let above: Vec<(f64, &Row)> =
            ours.map(|row| (100.0 * (row.violations.mean - least(row)), row)).collect();
        let (worst, at) = *above.iter().max_by(|a, b| a.0.total_cmp(&b.0))?;
        let within = above.iter().filter(|(above, _)| *above <= 1.0).count();
        let text = format!(
            "{worst:+.2} points ({} at {:.2}); within in {within} of {} rows",
            at.scenario,
            at.load,
            above.len()
        );
        Some((worst, text))
    };
    let (worst, text) = over(|row| row.charged.unwrap_or(row.fluid))?;
    let (_, free) = over(|row| row.fluid)?;
    let text = if text == free { text } else { format!("{text}; where machines start at no cost {free}") };
    Some((worst, text))
}

/// All of them.
pub fn shown(rows: &[Row]) -> Vec<Shown> {
    let tight = |row: &Row| row.tightest <= TIGHT;
    let loose = |row: &Row| row.tightest > TIGHT;
    vec![
        Shown::new("violations at most a third of `infaas-paper`'s", violations(rows, "infaas-paper"), |r| {
            r <= 1.0 / 3.0
        }),
        Shown::new(
            "load with 99 % in time at least 1.5 times `infaas-paper`'s",
            goodput(rows, "infaas-paper", |_| true),
            |r| r >= 1.5,
        ),
        Shown::new("cost at most 0.65 times `infaas-paper`'s, rented", cost(rows, "infaas-paper"), |r| {
            r <= 0.65
        }),
        Shown::new(
            "violations at most a quarter of `proteus-like`'s",
            violations(rows, "proteus-like"),
            |r| r <= 0.25,
        ),
        Shown::new("violations no more than `slackfit`'s", violations(rows, "slackfit"), |r| r <= 1.0),
        Shown::new("answers 0.3 points more accurate than `slackfit`'s", sharper(rows, "slackfit"), |r| {
            r >= SHARPER
        }),
        Shown::new(
            "load with 99 % in time at least 1.4 times `clipper`'s, tight bounds",
            goodput(rows, "clipper", tight),
            |r| r >= 1.4,
        ),
        Shown::new(
            "load with 99 % in time at least 1.2 times `nexus`'s, tight bounds",
            goodput(rows, "nexus", tight),
            |r| r >= 1.2,
        ),
        Shown::new(
            "the same at least 0.98 times `clipper`'s, elsewhere",
            goodput(rows, "clipper", loose),
            |r| r >= 0.98,
        ),
        Shown::new("the same at least 0.98 times `nexus`'s, elsewhere", goodput(rows, "nexus", loose), |r| {
            r >= 0.98
        }),
        Shown::new("cost at most 0.8 times `inferline-like`'s, rented", cost(rows, "inferline-like"), |r| {
            r <= 0.8
        }),
        Shown::new("cost at most 0.8 times `mark-like`'s, rented", cost(rows, "mark-like"), |r| r <= 0.8),
        Shown::new(
            "violations at most a point above the bound that charges loads and starts, where bounds are three single runs of the quickest",
            above_the_bound(rows),
            |r| r <= 1.0,
        ),
    ]
}

/// As people read it.
pub(super) fn table(shown: &[Shown]) -> String {
    let mut out = format!(
        "\n## What it must show\n\nWorked out from the rows below. Ratios of violations are of their sums over all rows in which the other has any. \
         *Tight* is a bound of at most {TIGHT} single runs of the most accurate model. An answer below a floor ends a run with an error, so there \
         is none.\n\n| target | seen | |\n|---|---|---|\n"
    );
    for Shown { target, figure, met } in shown {
        let verdict = match met {
            Some(true) => "met",
            Some(false) => "**missed**",
            None => "not seen",
        };
        let _ = writeln!(out, "| {target} | {figure} | {verdict} |");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::Figure;
    use super::*;

    fn row(policy: &str, load: f64, violations: f64, usd: f64) -> Row {
        let figure = |mean: f64| Figure { mean, half: 0.0 };
        Row {
            scenario: "s".into(),
            load,
            policy: policy.into(),
            violations: figure(violations),
            fluid: 0.0,
            charged: None,
            sharpest: None,
            least_usd: None,
            goodput: figure(1.0),
            accuracy: figure(0.8),
            usd_per_million: figure(usd),
            loads: figure(1.0),
            runs: (1, 1),
            rented: true,
            tightest: 4.0,
            single_runs: 10.0,
        }
    }

    #[test]
    fn a_third_of_the_violations_and_half_as_much_load_again_are_told_apart_from_less() {
        let rows = |ours: [f64; 3]| {
            let with = |policy, seen: [f64; 3]| {
                [0.3, 0.6, 0.9].into_iter().zip(seen).map(move |(load, v)| row(policy, load, v, 1.0))
            };
            with(OURS, ours).chain(with("infaas-paper", [0.0, 0.03, 0.30])).collect::<Vec<_>>()
        };
        let good = shown(&rows([0.0, 0.0, 0.10]));
        assert_eq!(
            (good[0].met, good[0].figure.as_str()),
            (Some(true), "0.30 over 2 rows, more in 0; the bound has 0.00")
        );
        // 99 % up to 0.3 + 0.3 / 3 = 0.4, ours up to 0.6 + 0.3 / 10 = 0.63.
        assert_eq!((good[1].met, good[1].figure.as_str()), (Some(true), "1.57 (1 scenarios)"));
        let bad = shown(&rows([0.0, 0.02, 0.20]));
        assert_eq!((bad[0].met, bad[1].met), (Some(false), Some(false)), "{bad:?}");
        assert_eq!((good[3].met, bad.last().map(|s| s.met)), (None, Some(Some(false))));
        assert!(
            table(&bad).contains("| violations at most a quarter of `proteus-like`'s | no row | not seen |")
        );
    }

    #[test]
    fn accuracy_is_told_beside_what_anybody_near_the_bound_could_have() {
        let mut rows = vec![row(OURS, 0.3, 0.0, 1.0), row("slackfit", 0.3, 0.0, 1.0)];
        let told = |rows: &[Row]| {
            let shown = shown(rows).into_iter().find(|s| s.target.contains("more accurate"));
            shown.map(|s| (s.met, s.figure)).expect("a target")
        };
        (rows[0].accuracy.mean, rows[0].sharpest) = (0.804, Some(0.81));
        assert_eq!(
            told(&rows),
            (Some(true), "+0.40 points; nobody who misses at most a point above the bound has more than +1.00, in 0 of 1 rows no 0.3".into())
        );
        (rows[0].accuracy.mean, rows[0].sharpest) = (0.801, Some(0.802));
        assert_eq!(
            told(&rows),
            (Some(false), "+0.10 points; nobody who misses at most a point above the bound has more than +0.20, in 1 of 1 rows no 0.3".into())
        );
    }

    #[test]
    fn cost_is_compared_where_machines_are_rented() {
        let mut rows = vec![row(OURS, 0.3, 0.0, 6.0), row("mark-like", 0.3, 0.0, 10.0)];
        let cost = |rows: &[Row]| shown(rows).iter().find(|s| s.target.contains("mark")).map(|s| s.met);
        assert_eq!(cost(&rows), Some(Some(true)));
        rows[0].usd_per_million.mean = 9.0;
        assert_eq!(cost(&rows), Some(Some(false)));
        rows[0].rented = false;
        assert_eq!(cost(&rows), Some(None));
    }
}
