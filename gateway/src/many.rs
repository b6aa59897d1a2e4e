//! Many queries of one request: a bounded number is open at a time, and answers are taken in their order.
//!
//! Where the request sets no bound on its latency, the time of each begins when its turn comes, and how many are open goes by how
//! long they take: as many as are answered well within the bound that their task sets. What comes too late all the same, or
//! finds no place, is asked again in its turn, since nobody but the request itself was in its way.

use crate::errors::ApiError;
use crate::oip::ROWS_OPEN;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesOrdered;
use modelless_decision::admission::DEFAULT_LATENCY;
use modelless_types::{Goals, Micros, Task};
use std::future::Future;
use std::time::Duration;

/// Open at first where the request sets no bound.
const FIRST: usize = 32;
/// How often one is asked at most.
const TRIES: u8 = 5;
/// A quarter of how long one rests before it is asked for the second time; twice as long each time after that.
const REST: Duration = Duration::from_millis(5);
/// What is over once fewer are open.
const PASSING: [&str; 3] = ["too_late", "queue_full", "bytes_full"];

/// When a query's time begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Begins {
    /// With its request.
    WithAll,
    /// When its turn comes.
    InTurn,
}

/// How many are open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    open: usize,
    /// What each has; `None` where the request sets a bound, which holds for all of them together.
    each: Option<Micros>,
    /// So many answers are still to come of those that were open when fewer were let in last.
    settling: usize,
    /// Answers since one more was let in; `None` as long as nothing took long, when each lets in one more.
    quick: Option<usize>,
}

impl Pace {
    pub(crate) fn of(task: &Task, goals: &Goals, bounded: bool) -> Self {
        Self::within(goals.latency.or(task.defaults.latency).unwrap_or(DEFAULT_LATENCY), bounded)
    }

    fn within(each: Micros, bounded: bool) -> Self {
        Self {
            open: if bounded { ROWS_OPEN } else { FIRST },
            each: (!bounded).then_some(each),
            settling: 0,
            quick: None,
        }
    }

    /// One more where there was half of the time left, slowly once it has been seen how many are too many; fewer where there was less
    /// than a quarter, once for all that are open.
    fn answered(&mut self, total: Micros) {
        let Some(each) = self.each else { return };
        self.settling = self.settling.saturating_sub(1);
        if total.0 > each.0 / 4 * 3 {
            return self.fewer(self.open - self.open / 4);
        }
        if total.0 > each.0 / 2 {
            return;
        }
        let enough = match &mut self.quick {
            None => true,
            Some(quick) if *quick < self.open => {
                *quick += 1;
                false
            }
            Some(quick) => {
                *quick = 0;
                true
            }
        };
        if enough {
            self.open = (self.open + 1).min(ROWS_OPEN);
        }
    }

    fn fewer(&mut self, open: usize) {
        self.quick = Some(0);
        if self.settling == 0 {
            self.settling = self.open;
            self.open = open.max(1);
        }
    }

    /// Whether it is asked again.
    fn refused(&mut self, error: &ApiError, tries: u8) -> bool {
        let again = self.each.is_some() && tries < TRIES && PASSING.contains(&error.reason);
        if again {
            self.settling = self.settling.saturating_sub(1);
            self.fewer(self.open / 2);
        }
        again
    }
}

/// Asks `count` queries by `one`, and gives each answer to `take`, which tells how long it took. The first that is refused for good ends it, and is given with its
/// place; going away, the others are cancelled.
pub(crate) async fn ask<T, F: Future<Output = Result<T, ApiError>>>(
    count: usize,
    mut pace: Pace,
    one: impl Fn(usize, Begins) -> F,
    mut take: impl FnMut(T) -> Result<Micros, ApiError>,
) -> Result<(), (usize, ApiError)> {
    let (one, bounded) = (&one, pace.each.is_none());
    let begun = |at: usize, tries: u8| async move {
        if tries > 1 {
            tokio::time::sleep(REST * (1 << tries)).await;
        }
        let with_all = bounded || (at < FIRST && tries == 1);
        (at, tries, one(at, if with_all { Begins::WithAll } else { Begins::InTurn }).await)
    };
    let (mut open, mut next) = (FuturesOrdered::new(), 0);
    loop {
        while next < count && open.len() < pace.open {
            open.push_back(begun(next, 1));
            next += 1;
        }
        match open.next().await {
            None => return Ok(()),
            Some((at, _, Ok(answer))) => pace.answered(take(answer).map_err(|error| (at, error))?),
            Some((at, tries, Err(error))) if pace.refused(&error, tries) => {
                open.push_front(begun(at, tries + 1));
            }
            Some((at, _, Err(error))) => return Err((at, error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_types::Refusal;
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeSet;

    /// A node that takes 1 ms for each of those that are open, and answers what is not late then.
    struct Node {
        open: Cell<u32>,
        most: Cell<u32>,
        late: RefCell<BTreeSet<usize>>,
    }

    impl Node {
        async fn ask(&self, at: usize) -> Result<Micros, ApiError> {
            self.open.set(self.open.get() + 1);
            self.most.set(self.most.get().max(self.open.get()));
            let total = Micros::from_millis(self.open.get().into());
            tokio::time::sleep(Duration::from_micros(total.0)).await;
            self.open.set(self.open.get() - 1);
            if total > EACH {
                self.late.borrow_mut().insert(at);
                return Err(Refusal::TooLate { waited: total }.into());
            }
            Ok(total)
        }
    }

    const EACH: Micros = Micros::from_millis(20);

    #[tokio::test(start_paused = true)]
    async fn as_many_are_open_as_are_in_time_and_what_was_late_is_asked_again() {
        let node = Node { open: Cell::new(0), most: Cell::new(0), late: RefCell::default() };
        let pace = Pace::within(EACH, false);
        let mut taken = 0;
        let all = ask(
            1_000,
            pace,
            |at, _| node.ask(at),
            |total| {
                taken += 1;
                Ok(total)
            },
        );
        all.await.expect("all are answered");
        assert_eq!(taken, 1_000);
        let late = node.late.borrow();
        assert!(!late.is_empty() && late.len() < 100, "{} of 1,000 were late first", late.len());
        assert!(late.iter().max() < Some(&200), "it has found its pace by then: {late:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_bound_holds_for_all_of_a_request_and_the_first_that_misses_it_ends_it() {
        let node = Node { open: Cell::new(0), most: Cell::new(0), late: RefCell::default() };
        let pace = Pace::within(EACH, true);
        let began = RefCell::new(BTreeSet::new());
        let one = |at, begins| {
            assert!(begins == Begins::WithAll);
            began.borrow_mut().insert(at);
            node.ask(at)
        };
        let (at, error) = ask(1_000, pace, one, Ok).await.expect_err("too many at once");
        assert_eq!((at, error.reason, node.most.get()), (20, "too_late", 256));
    }

    #[tokio::test(start_paused = true)]
    async fn what_will_not_pass_ends_it_at_once_and_what_passes_never_does_after_a_few_tries() {
        for (reason, tries) in [("floor_unreachable", 1), ("too_late", TRIES)] {
            let asked = Cell::new(0);
            let pace = Pace::within(EACH, false);
            let one = |at, _| {
                let asked = &asked;
                async move {
                    if at == 2 {
                        asked.set(asked.get() + 1);
                        return Err(ApiError::unavailable(reason, "made to"));
                    }
                    Ok(Micros(1))
                }
            };
            let (at, error) = ask(10, pace, one, Ok).await.expect_err("one is refused for good");
            assert_eq!((at, error.reason, asked.get()), (2, reason, tries));
        }
    }
}
