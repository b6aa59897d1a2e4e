//! What a round with a step of the load shows, out of every query's end and every change of a machine.
//!
//! The bound is *met again* at the first half second after the step from which on, for a stated time, of each two seconds hardly any
//! query is late or refused. A *flap* is a machine that is asked for within a minute after another was let go, though the load did not change
//! between the two. *Lost on the way down* is whatever came after the load fell and has no answer, whatever name that has: with so
//! little to do nothing has to be refused.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::super::Ended;

/// The steps in which the time is looked at, and what is taken together.
const STEP_MS: u64 = 500;
const WINDOW_MS: u64 = 2_000;
const FLAP_MS: i64 = 60_000;
/// Of the series that is kept.
const SECOND_MS: u64 = 1_000;

/// What counts as meeting the bound.
#[derive(Clone, Copy, Debug)]
pub(super) struct Met {
    /// At most this share of two seconds is late or refused, ...
    pub(super) late: f64,
    /// ... for so long.
    pub(super) holds_ms: u64,
}

/// A change of a machine, in milliseconds since the load began.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Change {
    pub(super) machine: String,
    pub(super) to: String,
    pub(super) at_ms: i64,
    pub(super) why: String,
}

impl Change {
    /// As the gateway shows it.
    pub(super) fn read(one: &Value, began_unix_ms: u64) -> Result<Self> {
        let text = |name: &str| {
            Ok::<_, anyhow::Error>(
                one[name].as_str().with_context(|| format!("no {name} in {one}"))?.to_owned(),
            )
        };
        let at = one["at_unix_us"].as_i64().context("when did it change?")? / 1_000;
        Ok(Self {
            machine: text("machine")?,
            to: text("to")?,
            at_ms: at - i64::try_from(began_unix_ms)?,
            why: text("why")?,
        })
    }

    fn starts(&self) -> bool {
        self.to == "asked"
    }

    /// It is let go: what follows of a machine that drained is no second time.
    fn stops(&self, before: Option<&str>) -> bool {
        matches!(self.to.as_str(), "draining" | "stopping") && before != Some("draining")
    }
}

/// A part of a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum When {
    Before,
    High,
    After,
}

/// See above.
pub(super) struct Round {
    pub(super) all: Vec<Ended>,
    pub(super) wrong: usize,
    /// How far the generator was behind itself.
    pub(super) sent_after_due: Value,
    /// In the order in which they happened.
    pub(super) changes: Vec<Change>,
    pub(super) up_ms: u64,
    pub(super) down_ms: u64,
    pub(super) end_ms: u64,
    pub(super) bound: Duration,
}

/// For people.
#[expect(clippy::cast_precision_loss, reason = "milliseconds of a round")]
pub(super) fn seconds(ms: u64) -> f64 {
    ms as f64 / 1e3
}

#[expect(clippy::cast_precision_loss, reason = "queries of a round")]
fn share(of: usize, all: usize) -> f64 {
    if all == 0 { 0.0 } else { of as f64 / all as f64 }
}

impl Round {
    fn good(&self, ended: &Ended) -> bool {
        ended.how.is_ok() && Duration::from_micros(ended.took_us) <= self.bound
    }

    fn came(&self, from_ms: u64, to_ms: u64) -> impl Iterator<Item = &Ended> {
        self.all.iter().filter(move |ended| (from_ms..to_ms).contains(&ended.came_ms))
    }

    fn part(&self, when: When) -> impl Iterator<Item = &Ended> {
        let (from, to) = match when {
            When::Before => (0, self.up_ms),
            When::High => (self.up_ms, self.down_ms),
            When::After => (self.down_ms, u64::MAX),
        };
        self.came(from, to)
    }

    /// How long after the step the bound is met again; nothing where it is not while the load is high.
    pub(super) fn met_again(&self, met: &Met) -> Option<u64> {
        let window = |from: u64| {
            let (mut all, mut missed) = (0, 0);
            for ended in self.came(from, from + WINDOW_MS) {
                all += 1;
                missed += usize::from(!self.good(ended));
            }
            all > 0 && share(missed, all) <= met.late
        };
        let last = self.down_ms.checked_sub(met.holds_ms)?;
        let step = usize::try_from(STEP_MS).ok()?;
        let holds = |from: u64| (from..=from + met.holds_ms - WINDOW_MS).step_by(step).all(window);
        (self.up_ms..=last).step_by(step).find(|from| holds(*from)).map(|from| from - self.up_ms)
    }

    /// What was not answered in time, by how it ended.
    pub(super) fn missed(&self, when: When) -> BTreeMap<String, usize> {
        let mut by_name = BTreeMap::new();
        for ended in self.part(when).filter(|ended| !self.good(ended)) {
            let name = ended.how.as_ref().err().map_or("late", String::as_str);
            *by_name.entry(name.to_owned()).or_default() += 1;
        }
        by_name
    }

    pub(super) fn missed_share(&self, when: When) -> f64 {
        share(self.missed(when).values().sum(), self.part(when).count())
    }

    pub(super) fn lost_on_the_way_down(&self) -> usize {
        self.part(When::After).filter(|ended| ended.how.is_err()).count()
    }

    /// Without an answer or a named refusal shortly after the deadline.
    pub(super) fn untold(&self) -> usize {
        self.all.iter().filter(|ended| !ended.told(self.bound)).count()
    }

    /// Changes with the state before them, of the same machine.
    fn steps(&self) -> impl Iterator<Item = (Option<&str>, &Change)> {
        self.changes.iter().enumerate().map(|(at, change)| {
            let before = self.changes[..at].iter().rfind(|before| before.machine == change.machine);
            (before.map(|before| before.to.as_str()), change)
        })
    }

    fn since_the_step(&self, change: &Change) -> bool {
        change.at_ms >= i64::try_from(self.up_ms).unwrap_or(i64::MAX)
    }

    pub(super) fn starts(&self) -> usize {
        self.changes.iter().filter(|change| change.starts() && self.since_the_step(change)).count()
    }

    pub(super) fn stops(&self) -> usize {
        self.steps().filter(|(before, change)| change.stops(*before) && self.since_the_step(change)).count()
    }

    pub(super) fn flaps(&self) -> usize {
        let stops: Vec<i64> = self
            .steps()
            .filter(|(before, change)| change.stops(*before))
            .map(|(_, change)| change.at_ms)
            .collect();
        let steps = [self.up_ms, self.down_ms].map(|at| i64::try_from(at).unwrap_or(i64::MAX));
        let flaps = |start: i64| {
            let same_load = |stop: i64| !steps.iter().any(|step| (stop..start).contains(step));
            stops.iter().any(|stop| *stop <= start && start - stop < FLAP_MS && same_load(*stop))
        };
        self.changes.iter().filter(|change| change.starts() && flaps(change.at_ms)).count()
    }

    /// Machines that cost at a moment, by when each came and went.
    fn paid(&self) -> BTreeMap<&str, (i64, i64)> {
        let end = i64::try_from(self.end_ms).unwrap_or(i64::MAX);
        let mut paid = BTreeMap::new();
        for change in &self.changes {
            let (_, until) = paid.entry(change.machine.as_str()).or_insert((change.at_ms, end));
            if matches!(change.to.as_str(), "gone" | "failed") {
                *until = change.at_ms.min(end);
            }
        }
        paid
    }

    /// Machines that serve or will at a moment: those that drain do not.
    pub(super) fn there_at(&self, at_ms: u64) -> usize {
        let at = i64::try_from(at_ms).unwrap_or(i64::MAX);
        let mut last: BTreeMap<&str, &str> = BTreeMap::new();
        for change in self.changes.iter().filter(|change| change.at_ms <= at) {
            last.insert(&change.machine, &change.to);
        }
        last.values().filter(|state| matches!(**state, "asked" | "starting" | "joined")).count()
    }

    /// From when each was asked for until it was gone, within the round.
    #[expect(clippy::cast_precision_loss, reason = "milliseconds of a round")]
    pub(super) fn machine_seconds(&self) -> f64 {
        self.paid().values().map(|(from, until)| (until - (*from).max(0)).max(0) as f64 / 1e3).sum()
    }

    pub(super) fn json(&self, rules: &str, seed: u64, met: &Met) -> Value {
        let seconds = (0..self.end_ms).step_by(1_000);
        let series = seconds.map(|from| {
            let came: Vec<&Ended> = self.came(from, from + SECOND_MS).collect();
            let missed = came.iter().filter(|ended| !self.good(ended)).count();
            json!([came.len(), missed, self.there_at(from + SECOND_MS)])
        });
        let parts =
            [("before", When::Before), ("high", When::High), ("after", When::After)].map(|(name, when)| {
                (
                    name.to_owned(),
                    json!({"asked": self.part(when).count(), "missed_by_name": self.missed(when)}),
                )
            });
        let changes =
            self.changes.iter().map(|change| json!([change.at_ms, change.machine, change.to, change.why]));
        json!({
            "rules": rules, "seed": seed, "up_ms": self.up_ms, "down_ms": self.down_ms, "end_ms": self.end_ms,
            "met_again_ms": self.met_again(met), "parts": Value::Object(parts.into_iter().collect()),
            "starts": self.starts(), "stops": self.stops(), "flaps": self.flaps(), "lost_on_the_way_down": self.lost_on_the_way_down(),
            "untold": self.untold(), "wrong": self.wrong, "machine_seconds": self.machine_seconds(),
            "by_second": {"columns": ["asked", "missed", "machines"], "rows": series.collect::<Vec<_>>()},
            "machines": {"columns": ["ms", "machine", "to", "why"], "rows": changes.collect::<Vec<_>>()},
            "sent_after_due": self.sent_after_due,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MET: Met = Met { late: 0.01, holds_ms: 4_000 };

    fn ended(came_ms: u64, how: Result<u64, &str>) -> Ended {
        let how_long = how.as_ref().copied().unwrap_or(1);
        Ended {
            came_ms,
            took_us: how_long * 1_000,
            how: how.map(|_| "m-1".to_owned()).map_err(ToOwned::to_owned),
        }
    }

    fn change(at_ms: i64, machine: &str, to: &str) -> Change {
        Change { machine: machine.to_owned(), to: to.to_owned(), at_ms, why: String::new() }
    }

    /// A query every 10 ms, of which those are missed that came in such a time.
    fn round(missed: std::ops::Range<u64>, changes: Vec<Change>) -> Round {
        let how = |ms| if missed.contains(&ms) { Err("503 too_late") } else { Ok(40) };
        Round {
            all: (0..2_000).map(|n| ended(n * 10, how(n * 10))).collect(),
            wrong: 0,
            sent_after_due: Value::Null,
            changes,
            up_ms: 5_000,
            down_ms: 15_000,
            end_ms: 20_000,
            bound: Duration::from_millis(500),
        }
    }

    #[test]
    fn the_bound_is_met_again_from_where_no_two_seconds_miss_more_than_they_may() {
        assert_eq!(round(0..0, vec![]).met_again(&MET), Some(0));
        assert_eq!(round(5_000..7_100, vec![]).met_again(&MET), Some(2_500));
        // One in two hundred may be missed.
        assert_eq!(round(8_000..8_020, vec![]).met_again(&MET), Some(0));
        assert_eq!(
            round(8_000..8_030, vec![]).met_again(&MET),
            Some(3_500),
            "three may not, and then it counts from there"
        );
        assert_eq!(round(5_000..11_600, vec![]).met_again(&MET), None, "too short a time is left");
        assert_eq!(round(0..5_000, vec![]).met_again(&MET), Some(0), "what was before is before");
    }

    #[test]
    fn what_is_missed_is_told_by_its_name_and_what_is_lost_after_the_fall_by_itself() {
        let mut seen = round(14_990..15_020, vec![]);
        seen.all[600] = ended(6_000, Ok(501));
        assert_eq!(seen.missed(When::High), [("503 too_late".to_owned(), 1), ("late".to_owned(), 1)].into());
        assert!((seen.missed_share(When::High) - 0.002).abs() < 1e-9);
        assert_eq!((seen.lost_on_the_way_down(), seen.untold()), (2, 0));
        seen.all[601] = ended(6_010, Err("no answer: closed"));
        assert_eq!(seen.untold(), 1);
    }

    #[test]
    fn machines_are_counted_by_when_they_were_asked_for_and_let_go() {
        let seen = round(
            0..0,
            vec![
                change(-3_000, "m-1", "asked"),
                change(-2_000, "m-1", "joined"),
                change(6_000, "m-2", "asked"),
                change(7_000, "m-2", "joined"),
                change(16_000, "m-2", "draining"),
                change(17_000, "m-2", "stopping"),
                change(18_000, "m-2", "gone"),
            ],
        );
        assert_eq!((seen.starts(), seen.stops(), seen.flaps()), (1, 1, 0));
        assert_eq!([0, 6_500, 16_500, 20_000].map(|at| seen.there_at(at)), [1, 2, 1, 1]);
        assert!((seen.machine_seconds() - (20.0 + 12.0)).abs() < 1e-9);
    }

    #[test]
    fn a_start_soon_after_a_stop_is_a_flap_unless_the_load_changed_between_them() {
        let with = |stop, start| {
            round(
                0..0,
                vec![
                    change(-9_000, "m-1", "joined"),
                    change(stop, "m-1", "draining"),
                    change(start, "m-2", "asked"),
                ],
            )
            .flaps()
        };
        assert_eq!(with(6_000, 9_000), 1);
        assert_eq!(with(4_000, 6_000), 0, "the load rose");
        assert_eq!(with(-58_000, 3_000), 0, "a minute later");
        assert_eq!(with(9_000, 6_000), 0, "it came before");
    }
}
