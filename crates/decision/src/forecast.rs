//! What is to be expected of a task: what came at the same time of day on at least two of the days that are like this one.
//!
//! Seasonal and naive on purpose: nothing is fitted, and whoever asks why is told the days. Days are those of UTC. Of a slot of five
//! minutes that was not seen nothing is known, which is not that nothing was asked.
//!
//! * Of the last three days that are known at this time (of the last six) two must have been asked. What is expected is the second highest
//!   of them: so much came on at least two. A single outlier neither makes a forecast nor raises one.
//! * Or this weekday was, one week ago and two. So Monday is known although Sunday was quiet.
//! * What the days before promised a week ago, and what did not come then, is not promised by them again: so Saturday is not taken for
//!   another Friday. Where two weeks are known, both must have been quiet: after a holiday the same day of the next week counts as usual.
//!
//! Fewer than [`LEAST`] queries in a slot are none: a query now and then recurs by chance, and so would keep everything awake.
//!
//! A forecast is only ever added to what is asked. What is begun for one is begun by a narrow window of time and given up by a wide
//! one ([`Ahead`]): two schedulers whose clocks are less than [`BAND`] apart do not take turns, since all of them read the same bins.

use crate::words::{per_second, span};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;
use modelless_types::{Bin, Micros, Slot, TaskId, Time};
use serde::{Deserialize, Serialize};

/// Queries of a slot below which it counts as quiet: one a minute.
pub const LEAST: u64 = 5;
/// By so much the window that holds what was begun is wider, at both ends, than the one that begins it.
pub const BAND: Micros = Slot::LONG;
/// How much sooner than a load or a start takes one is begun, beside half as long again: schedulers look about once a second, and
/// clocks are a little apart.
pub const MARGIN: Micros = Micros::from_secs(60);
/// Nothing is begun longer before it is needed.
pub const FURTHEST: Micros = Micros::from_secs(2 * 3_600);
/// A machine that is needed again within so long stays, or within twice the time that another one takes to start where that is longer.
pub const AGAIN: Micros = Micros::from_secs(600);

/// Of a slot so many seconds must have been seen for a task without a bin to have been quiet.
const SEEN_S: u16 = 240;
/// Slots that a forecast tells of at most: two days.
const FORESEEN: usize = 2 * Slot::A_DAY as usize;
/// Days that are looked at, back from this one.
const DAYS: Range<u32> = 1..7;
/// The same, a week earlier.
const DAYS_THEN: Range<u32> = 8..14;
/// Of these so many that are known.
const COMPARED: usize = 3;

/// What was asked, as far as somebody saw it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct History {
    seen: BTreeSet<Slot>,
    bins: BTreeMap<(TaskId, Slot), Bin>,
}

/// What came on one day.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Day {
    peak_per_1000_s: u64,
    queries: u64,
}

impl Day {
    const fn asked(self) -> bool {
        self.queries >= LEAST
    }
}

/// Days that a forecast comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Like {
    /// The days before.
    Days,
    /// This weekday, in the weeks before.
    Weekdays,
}

/// What is expected of a task in a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Peak {
    /// Which.
    pub slot: Slot,
    /// The most for five seconds, in queries per 1,000 seconds.
    pub peak_per_1000_s: u64,
    /// Queries in all of it.
    pub queries: u64,
    /// Which days tell so.
    pub like: Like,
    /// On so many of them it was asked.
    pub on: u8,
    /// Of so many.
    pub of: u8,
}

impl Peak {
    /// The most a second.
    #[expect(clippy::cast_precision_loss, reason = "queries of seconds")]
    pub fn per_s(&self) -> f64 {
        self.peak_per_1000_s as f64 / 1e3
    }

    /// How many come a second, evenly over the slot.
    #[expect(clippy::cast_precision_loss, reason = "queries of minutes")]
    pub fn mean_per_s(&self) -> f64 {
        self.queries as f64 * 1e6 / Slot::LONG.0 as f64
    }

    /// For people: what, when, and why that is expected.
    pub fn words(&self) -> String {
        let Self { slot, on, of, like, .. } = self;
        let days = match like {
            Like::Days => "days",
            Like::Weekdays => "same weekdays",
        };
        format!("asked {}/s at {slot} on {on} of the last {of} {days}", per_second(self.peak_per_1000_s))
    }
}

impl History {
    /// A slot of which so many seconds were seen. What was asked in it is told apart.
    pub fn saw(&mut self, slot: Slot, seen_s: u16) {
        if seen_s >= SEEN_S {
            self.seen.insert(slot);
        }
    }

    /// What was asked of a task in a slot.
    pub fn asked(&mut self, task: TaskId, slot: Slot, bin: Bin) {
        let known = self.bins.entry((task, slot)).or_default();
        *known = known.most(bin);
    }

    /// The tasks that it tells of.
    pub fn tasks(&self) -> BTreeSet<TaskId> {
        self.bins.keys().map(|(task, _)| *task).collect()
    }

    /// What a task was asked in a slot; `None` where nobody knows.
    pub fn bin(&self, task: TaskId, slot: Slot) -> Option<Bin> {
        self.bins.get(&(task, slot)).copied().or_else(|| self.seen.contains(&slot).then(Bin::default))
    }

    /// Where a slot was seen in part only, what was asked in it is known only if it was something.
    fn day(&self, task: TaskId, slot: Slot, before: u32) -> Option<Day> {
        let slot = slot.days_before(before)?;
        let Bin { peak_per_1000_s, queries } = self.bin(task, slot)?;
        let day = Day { peak_per_1000_s, queries };
        (day.asked() || self.seen.contains(&slot)).then_some(day)
    }

    fn compared(&self, task: TaskId, slot: Slot, days: Range<u32>) -> Vec<Day> {
        days.filter_map(|before| self.day(task, slot, before)).take(COMPARED).collect()
    }

    /// What is expected of a task in a slot; `None` where nothing recurs.
    pub fn expected(&self, task: TaskId, slot: Slot) -> Option<Peak> {
        let weeks = [7, 14].map(|before| self.day(task, slot, before));
        let weekly = match weeks {
            [Some(last), Some(other)] => second(slot, Like::Weekdays, &[last, other]),
            _ => None,
        };
        let quiet = |day: Option<Day>| day.is_some_and(|day| !day.asked());
        let promised = || second(slot, Like::Days, &self.compared(task, slot, DAYS_THEN)).is_some();
        let another_kind = quiet(weeks[0]) && !weeks[1].is_some_and(Day::asked) && promised();
        let daily = second(slot, Like::Days, &self.compared(task, slot, DAYS)).filter(|_| !another_kind);
        // Where both say the same, the days before are told.
        weekly.into_iter().chain(daily).max_by_key(|peak| (peak.peak_per_1000_s, peak.queries))
    }

    /// What is expected of every task in these slots.
    pub fn forecast(&self, slots: Range<Slot>) -> Forecast {
        let of = |task: TaskId| {
            let all = (slots.start.0..slots.end.0).filter_map(|slot| self.expected(task, Slot(slot)));
            let peaks: Vec<Peak> = all.take(FORESEEN).collect();
            (!peaks.is_empty()).then_some((task, peaks))
        };
        Forecast(self.tasks().into_iter().filter_map(of).collect())
    }
}

/// What is expected of tasks: those of which nothing is are not in it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Forecast(BTreeMap<TaskId, Vec<Peak>>);

impl Forecast {
    /// The tasks of which something is expected.
    pub fn tasks(&self) -> impl Iterator<Item = TaskId> {
        self.0.keys().copied()
    }

    /// All that is expected of a task, slot by slot.
    pub fn of(&self, task: TaskId) -> &[Peak] {
        self.0.get(&task).map_or(&[], |peaks| peaks)
    }

    /// The slot that is asked most of a stretch of time, with all slots counted that it touches; the first where several are alike.
    pub fn most(&self, task: TaskId, from: Time, until: Time) -> Option<Peak> {
        self.greatest(task, from..until, |peak| peak.queries)
    }

    /// The same, with the highest peak.
    pub fn highest(&self, task: TaskId, from: Time, until: Time) -> Option<Peak> {
        self.greatest(task, from..until, |peak| peak.peak_per_1000_s)
    }

    fn greatest(&self, task: TaskId, time: Range<Time>, by: fn(&Peak) -> u64) -> Option<Peak> {
        let (first, last) = (Slot::of(time.start), Slot::of(time.end));
        let all = self.of(task).iter().filter(|peak| first <= peak.slot && peak.slot <= last);
        all.copied().reduce(|most, next| if by(&next) > by(&most) { next } else { most })
    }

    /// What is expected of a task for which something takes so long to be ready.
    pub fn ahead(&self, task: TaskId, now: Time, takes: Micros) -> Ahead {
        let lead = lead(takes);
        let early = Time(now.0.saturating_sub(BAND.0));
        Ahead {
            takes,
            soon: self.most(task, now, now + lead),
            held: self.most(task, early, now + lead + BAND),
        }
    }
}

/// How long before it is needed something is begun that takes so long: half as long again, and [`MARGIN`].
pub fn lead(takes: Micros) -> Micros {
    Micros(takes.0.saturating_add(takes.0 / 2).saturating_add(MARGIN.0).min(FURTHEST.0))
}

/// The slots that any window touches which is looked at within [`BAND`] from now.
pub fn reached(now: Time) -> Range<Slot> {
    let early = Time(now.0.saturating_sub(2 * BAND.0));
    let late = now + FURTHEST + BAND + BAND;
    Slot::of(early)..Slot(Slot::of(late).0.saturating_add(1))
}

/// The slots of earlier days that forecasts of these are made from, one range for each day.
pub fn compared(slots: &Range<Slot>) -> Vec<Range<Slot>> {
    let day = |before: u32| Some(slots.start.days_before(before)?..slots.end.days_before(before)?);
    (1..=14).filter_map(day).collect()
}

/// The second highest, if it was asked.
fn second(slot: Slot, like: Like, days: &[Day]) -> Option<Peak> {
    let nth = |of: fn(&Day) -> u64| {
        let mut all: Vec<u64> = days.iter().map(of).collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        all.get(1).copied()
    };
    let (peak_per_1000_s, queries) = (nth(|day| day.peak_per_1000_s)?, nth(|day| day.queries)?);
    let count = |many: usize| u8::try_from(many).unwrap_or(u8::MAX);
    let on = count(days.iter().filter(|day| day.asked()).count());
    (queries >= LEAST).then_some(Peak { slot, peak_per_1000_s, queries, like, on, of: count(days.len()) })
}

/// What is expected soon, and what keeps what was begun for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Ahead {
    /// So long what is to be ready takes.
    pub takes: Micros,
    /// What comes by the time that something begun now is ready: begins.
    pub soon: Option<Peak>,
    /// What comes, or was to come, [`BAND`] around that: holds.
    pub held: Option<Peak>,
}

impl Ahead {
    /// For people: what is expected of a task, and how long its loads take.
    pub fn words(&self) -> Option<String> {
        let peak = self.soon.or(self.held)?;
        Some(format!("its task was {}, and its loads take {}", peak.words(), tenths(self.takes)))
    }
}

fn tenths(time: Micros) -> String {
    if time < Micros::from_secs(60) {
        format!("{}.{} s", time.0 / 1_000_000, time.0 / 100_000 % 10)
    } else {
        span(time)
    }
}

#[cfg(test)]
mod tests;
