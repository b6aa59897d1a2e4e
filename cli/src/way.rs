//! How far measuring several variants is, and how long the rest may take.

use crate::profile::permille;
use crate::progress::short;
use modelless_profiler::Progress;
use std::time::Duration;
use tokio::time::Instant;

/// Before so much of a thousand is done nobody can tell by the pace how long the rest takes.
const TELLING: u64 = 30;

/// Where measuring is, told variant by variant.
#[derive(Clone, Debug)]
pub(crate) struct Way {
    since: Instant,
    number: usize,
    budget: Option<Duration>,
    finished: usize,
    name: String,
    permille: u64,
}

impl Way {
    /// Begins now, with so many variants.
    pub(crate) fn new(number: usize, budget: Option<Duration>) -> Self {
        Self { since: Instant::now(), number, budget, finished: 0, name: String::new(), permille: 0 }
    }

    /// This variant is so far; the one before it, if it was another, is done.
    pub(crate) fn at(&mut self, name: &str, progress: Progress) {
        if self.name != name {
            self.finished += usize::from(!self.name.is_empty());
            name.clone_into(&mut self.name);
            self.permille = 0;
        }
        self.permille = permille(progress, self.permille);
    }

    /// So many are done, those that failed among them.
    pub(crate) fn finished(&mut self, number: usize) {
        self.finished = number.min(self.number);
        self.name.clear();
        self.permille = 0;
    }

    /// Which one it is, from 1, and of how many.
    pub(crate) fn place(&self) -> (usize, usize) {
        ((self.finished + 1).min(self.number), self.number)
    }

    /// Thousandths that are done, and of how many.
    pub(crate) fn done(&self) -> (u64, u64) {
        let all = thousands(self.number).max(1_000);
        ((thousands(self.finished) + self.permille).min(all), all)
    }

    /// About how much longer it takes; `None`: nobody can tell yet.
    pub(crate) fn left(&self) -> Option<Duration> {
        left(self.since.elapsed(), self.done(), self.budget)
    }

    /// For people, such as `3 of 12, about 21 s left`.
    pub(crate) fn words(&self) -> String {
        let (at, of) = self.place();
        words(at, of, self.left())
    }
}

fn thousands(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX).saturating_mul(1_000)
}

/// The same of somebody who said it in figures.
pub(crate) fn words(at: usize, of: usize, left: Option<Duration>) -> String {
    let left = left.map(|left| match left.as_secs() {
        0 => ", about a second left".to_owned(),
        secs if secs < 120 => format!(", about {secs} s left"),
        secs => format!(", about {} min left", secs / 60),
    });
    format!("{at} of {of}{}", left.unwrap_or_default())
}

/// By the pace so far, and no longer than is left of the budget.
fn left(elapsed: Duration, (done, all): (u64, u64), budget: Option<Duration>) -> Option<Duration> {
    let of_budget = budget.map(|budget| budget.saturating_sub(elapsed));
    let done = done.min(all);
    let by_pace = (done.saturating_mul(1_000) >= all.saturating_mul(TELLING) && done > 0).then(|| {
        let millis = u128::from(all - done) * elapsed.as_millis() / u128::from(done);
        Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
    });
    match (by_pace, of_budget) {
        (Some(pace), Some(budget)) => Some(pace.min(budget)),
        (one, other) => one.or(other),
    }
}

/// How long measuring may take, where nothing is said: within a minute there is something to go by.
pub(crate) const USUAL: &str = "60s";

/// How long measuring may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Budget(pub(crate) Option<Duration>);

impl Budget {
    /// `60s`, or `none` for as long as it takes.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self(None));
        }
        let time = crate::profile::duration(text);
        time.map(|time| Self(Some(time))).map_err(|why| format!("{why}, or `none` for as long as it takes"))
    }

    /// For people.
    pub(crate) fn words(self) -> String {
        self.0.map_or_else(|| "as long as it takes".to_owned(), |time| format!("at most {}", short(time)))
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self(crate::profile::duration(USUAL).ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_decision::search::Why;

    const SECS: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn what_is_left_goes_by_the_pace_and_never_beyond_the_budget() {
        assert_eq!(left(SECS(10), (1_000, 4_000), None), Some(SECS(30)));
        assert_eq!(left(SECS(10), (1_000, 4_000), Some(SECS(25))), Some(SECS(15)));
        assert_eq!(left(SECS(10), (1_000, 4_000), Some(SECS(5))), Some(SECS(0)), "it is over");
        assert_eq!(left(SECS(1), (10, 4_000), None), None, "too early to tell");
        assert_eq!(left(SECS(1), (10, 4_000), Some(SECS(60))), Some(SECS(59)));
        assert_eq!(left(SECS(9), (4_000, 4_000), None), Some(SECS(0)));
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_told_which_variant_it_is_of_how_many_and_how_long_is_left() {
        let mut way = Way::new(4, Some(SECS(60)));
        assert_eq!(way.words(), "1 of 4, about 60 s left");
        way.at("a", Progress::Loading);
        tokio::time::advance(SECS(5)).await;
        way.at("a", Progress::Accuracy { done: 10, of: 10 });
        way.at("b", Progress::Loading);
        assert_eq!((way.place(), way.done()), ((2, 4), (1_040, 4_000)));
        assert_eq!(way.words(), "2 of 4, about 14 s left");
        way.at("b", Progress::Latency { batch: 1, series: 1, why: Why::Bracket });
        // The second and third failed.
        way.finished(3);
        way.at("d", Progress::Loading);
        assert_eq!(way.place(), (4, 4));
        way.finished(9);
        assert_eq!((way.place(), way.done(), way.left()), ((4, 4), (4_000, 4_000), Some(SECS(0))));
        assert_eq!(words(1, 2, Some(SECS(300))), "1 of 2, about 5 min left");
        assert_eq!(words(1, 2, None), "1 of 2");
    }

    #[test]
    fn a_budget_is_a_time_or_none() {
        assert_eq!(Budget::parse("90s"), Ok(Budget(Some(SECS(90)))));
        assert_eq!(Budget::parse("none"), Ok(Budget(None)));
        assert!(Budget::parse("no").unwrap_err().contains("none"));
        assert_eq!(Budget::default(), Budget(Some(SECS(60))));
        assert_eq!(Budget::default().words(), "at most 60.0 s");
    }

    #[test]
    fn whatever_the_figures_it_keeps_to_the_budget() {
        let odd = [0, 1, 29, 999, 1_000, 1_001, 12_000, u64::MAX / 2, u64::MAX];
        for elapsed in [0, 1, 59_999, 60_000, 60_001, u64::MAX / 4].map(Duration::from_millis) {
            for (done, all) in odd.into_iter().flat_map(|done| odd.map(|all| (done, all))) {
                let told = left(elapsed, (done, all), Some(SECS(60)));
                assert!(
                    told.is_some_and(|told| told <= SECS(60).saturating_sub(elapsed)),
                    "{elapsed:?} {done} {all}"
                );
                let _ = left(elapsed, (done, all), None);
            }
        }
    }
}
