//! Many queries of one request: a bounded number is open at a time, and answers are taken in their order.
//!
//! Where the request sets no bound on its latency, the time of each begins when its turn comes, and how many are open goes by how
//! long they take: as many as are answered well within the bound that their task sets. What comes too late all the same, or
//! finds no place, is asked again in its turn, since nobody but the request itself was in its way.

use crate::access::Caller;
use crate::ask::{self, Answered, Ask, Manner};
use crate::core::Core;
use crate::errors::ApiError;
use crate::size;
use crate::view::TaskView;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use modelless_decision::admission::DEFAULT_LATENCY;
use modelless_types::{Goals, Micros, Task, Time};
use modelless_wire::Input;
use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

/// Open at first where the request sets no bound.
const FIRST: usize = 32;
/// How often one is asked at most.
const TRIES: u8 = 5;
/// A quarter of how long one rests before it is asked for the second time; twice as long each time after that.
const REST: Duration = Duration::from_millis(5);
/// How far one may be ahead of the first that is not answered: answers wait for it.
const AHEAD: usize = 512;
/// What is over once fewer are open.
const PASSING: [&str; 3] = ["too_late", "queue_full", "bytes_full"];

/// When a query's time begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Begins {
    /// With its request.
    WithAll,
    /// When its turn comes.
    InTurn,
    /// When its turn comes again.
    Again,
}

/// How many are open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    open: usize,
    most: usize,
    /// What each has; `None` where the request sets a bound, which holds for all of them together.
    each: Option<Micros>,
    /// So many of those that were open when fewer were let in last have not ended for the first time.
    settling: usize,
    /// Answers since one more was let in; `None` as long as nothing took long, when each lets in one more.
    quick: Option<usize>,
}

impl Pace {
    /// For so many queries, of which at most so many are open at a time. One alone has the bound of its task as any query has.
    pub(crate) fn of(task: &Task, goals: &Goals, (count, bounded): (usize, bool), most: usize) -> Self {
        let each = goals.latency.or(task.defaults.latency).unwrap_or(DEFAULT_LATENCY);
        Self::within(each, bounded || count == 1, most)
    }

    fn within(each: Micros, bounded: bool, most: usize) -> Self {
        let open = if bounded { most } else { FIRST.min(most) };
        Self { open, most, each: (!bounded).then_some(each), settling: 0, quick: None }
    }

    /// One more where there was half of the time left, slowly once it has been seen how many are too many; fewer where there was less
    /// than a quarter.
    fn answered(&mut self, total: Micros, tries: u8) {
        let Some(each) = self.each else { return };
        self.ended(tries);
        if total.0 > each.0 / 4 * 3 {
            self.fewer(self.open - (self.open / 4).max(1));
        } else if total.0 <= each.0 / 2 && self.is_enough() {
            self.open = (self.open + 1).min(self.most);
        }
    }

    /// Whether so much was quick that one more may be open.
    fn is_enough(&mut self) -> bool {
        match &mut self.quick {
            None => true,
            Some(quick) if *quick < self.open => {
                *quick += 1;
                false
            }
            Some(quick) => {
                *quick = 0;
                true
            }
        }
    }

    fn ended(&mut self, tries: u8) {
        if tries == 1 {
            self.settling = self.settling.saturating_sub(1);
        }
    }

    /// Once for all that are open.
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
            self.ended(tries);
            self.fewer(self.open / 2);
        }
        again
    }
}

/// What the queries of a request have in common.
#[derive(Clone, Copy)]
pub(crate) struct Common<'a> {
    pub(crate) core: &'a Core,
    pub(crate) task: &'a TaskView,
    pub(crate) goals: Goals,
    pub(crate) caller: &'a Caller,
    pub(crate) manner: &'a Manner,
    pub(crate) arrived: Time,
    pub(crate) let_in: bool,
}

impl Common<'_> {
    /// One of them.
    pub(crate) async fn ask(self, input: Input, begins: Begins) -> Result<Answered, ApiError> {
        let Self { core, task, goals, caller, manner, arrived, let_in } = self;
        let arrived = if begins == Begins::WithAll { arrived } else { core.driver.clock().now() };
        let decoded = size::decoded(task.task.kind, &input);
        let again = begins == Begins::Again;
        ask::ask(core, Ask { task, goals, input, decoded, caller, arrived, manner, let_in, again }).await
    }
}

/// Asks `count` queries by `one`, and gives each answer in its turn to `take`; `took` tells how long it took. The first that is refused
/// for good ends it, and is given with its place; going away, the others are cancelled.
pub(crate) async fn ask<T, F: Future<Output = Result<T, ApiError>>>(
    count: usize,
    mut pace: Pace,
    one: impl Fn(usize, Begins) -> F,
    took: impl Fn(&T) -> Micros,
    mut take: impl FnMut(T) -> Result<(), ApiError>,
) -> Result<(), (usize, ApiError)> {
    let (one, bounded) = (&one, pace.each.is_none());
    let begun = |at: usize, tries: u8| async move {
        let begins = match tries {
            1 if bounded || at < FIRST => Begins::WithAll,
            1 => Begins::InTurn,
            _ => Begins::Again,
        };
        if begins == Begins::Again {
            tokio::time::sleep(REST * (1 << tries)).await;
        }
        (at, tries, one(at, begins).await)
    };
    let mut running = FuturesUnordered::new();
    // Those to be asked again with how often they were, and answers that wait for earlier ones: both are bounded by how far one is ahead.
    let (mut late, mut answers) = (BTreeMap::new(), BTreeMap::new());
    let (mut next, mut taken) = (0, 0);
    loop {
        while running.len() < pace.open {
            if let Some((at, tries)) = late.pop_first() {
                running.push(begun(at, tries + 1));
            } else if next < count && next - taken < AHEAD {
                running.push(begun(next, 1));
                next += 1;
            } else {
                break;
            }
        }
        let Some((at, tries, result)) = running.next().await else { return Ok(()) };
        match result {
            Ok(answer) => {
                pace.answered(took(&answer), tries);
                answers.insert(at, answer);
                while let Some(answer) = answers.remove(&taken) {
                    take(answer).map_err(|error| (taken, error))?;
                    taken += 1;
                }
            }
            Err(error) if pace.refused(&error, tries) => {
                late.insert(at, tries);
            }
            Err(error) => return Err((at, error)),
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
        let pace = Pace::within(EACH, false, 256);
        let mut taken = 0;
        let all = ask(
            1_000,
            pace,
            |at, _| node.ask(at),
            |total| *total,
            |_| {
                taken += 1;
                Ok(())
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
        let pace = Pace::within(EACH, true, 256);
        let began = RefCell::new(BTreeSet::new());
        let one = |at, begins| {
            assert!(begins == Begins::WithAll);
            began.borrow_mut().insert(at);
            node.ask(at)
        };
        let (at, error) =
            ask(1_000, pace, one, |total| *total, |_| Ok(())).await.expect_err("too many at once");
        assert_eq!((error.reason, node.most.get()), ("too_late", 256));
        assert!((20..256).contains(&at), "{at}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_will_not_pass_ends_it_at_once_and_what_passes_never_does_after_a_few_tries() {
        for (reason, tries) in [("floor_unreachable", 1), ("too_late", TRIES)] {
            let asked = Cell::new(0);
            let pace = Pace::within(EACH, false, 256);
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
            let (at, error) =
                ask(10, pace, one, |total| *total, |_| Ok(())).await.expect_err("one is refused for good");
            assert_eq!((at, error.reason, asked.get()), (2, reason, tries));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn answers_are_taken_in_their_order_and_late_ones_go_on_side_by_side() {
        // All that are open at first are late once.
        let (began, seen) = (tokio::time::Instant::now(), RefCell::new(BTreeSet::new()));
        let one = |at: usize, begins| {
            let late = seen.borrow_mut().insert(at) && at < FIRST;
            assert_eq!(begins == Begins::Again, !late && at < FIRST, "{at}");
            async move {
                tokio::time::sleep(Duration::from_millis(if at == 0 { 15 } else { 5 })).await;
                if late { Err(Refusal::TooLate { waited: EACH }.into()) } else { Ok((at, Micros(1))) }
            }
        };
        let mut taken = Vec::new();
        let all = ask(
            100,
            Pace::within(EACH, false, 256),
            one,
            |(_, total)| *total,
            |(at, _)| {
                taken.push(at);
                Ok(())
            },
        );
        all.await.expect("all are answered");
        assert_eq!(taken, (0..100).collect::<Vec<_>>());
        assert!(
            began.elapsed() < Duration::from_millis(200),
            "one by one it would be 32 times 25 ms: {:?}",
            began.elapsed()
        );
    }
}
