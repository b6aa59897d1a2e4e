//! Many queries of one request: asked as [`modelless_decision::rows`] decides, a bounded number at a time, and taken in their order.

use crate::access::Caller;
use crate::ask::{self, Answered, Ask, Manner};
use crate::core::Core;
use crate::errors::ApiError;
use crate::size;
use crate::view::TaskView;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use modelless_decision::admission::DEFAULT_LATENCY;
use modelless_decision::rows::{Begins, Rows};
use modelless_types::{Goals, Micros, Task, Time};
use modelless_wire::Input;
use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

/// How far one may be ahead of the first that is not answered: answers wait for it.
const AHEAD: usize = 512;
/// What is over once fewer are open.
const PASSING: [&str; 3] = ["too_late", "queue_full", "bytes_full"];

/// How so many queries go, of which at most so many are open at a time. One alone has the bound of its task as any query has.
pub(crate) fn pace(task: &Task, goals: &Goals, (count, bounded): (usize, bool), most: usize) -> Rows {
    let each = goals.latency.or(task.defaults.latency).unwrap_or(DEFAULT_LATENCY);
    Rows::new(each, bounded || count == 1, most)
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
        let again = matches!(begins, Begins::Again(_));
        ask::ask(core, Ask { task, goals, input, decoded, caller, arrived, manner, let_in, again }).await
    }
}

/// Asks `count` queries by `one`, and gives each answer in its turn to `take`; `took` tells how long it took. The first that is refused
/// for good ends it, and is given with its place; going away, the others are cancelled.
pub(crate) async fn ask<T, F: Future<Output = Result<T, ApiError>>>(
    count: usize,
    mut pace: Rows,
    one: impl Fn(usize, Begins) -> F,
    took: impl Fn(&T) -> Micros,
    mut take: impl FnMut(T) -> Result<(), ApiError>,
) -> Result<(), (usize, ApiError)> {
    let one = &one;
    let begun = |at: usize, tries: u8, begins: Begins| async move {
        if let Begins::Again(rest) = begins {
            tokio::time::sleep(Duration::from_micros(rest.0)).await;
        }
        (at, tries, one(at, begins).await)
    };
    let mut running = FuturesUnordered::new();
    // Those to be asked again with how often they were, and answers that wait for earlier ones: both are bounded by how far one is ahead.
    let (mut late, mut answers) = (BTreeMap::new(), BTreeMap::new());
    let (mut next, mut taken) = (0, 0);
    loop {
        while running.len() < pace.open() {
            if let Some((at, tries)) = late.pop_first() {
                running.push(begun(at, tries + 1, pace.begins(at, tries + 1)));
            } else if next < count && next - taken < AHEAD {
                running.push(begun(next, 1, pace.begins(next, 1)));
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
            Err(error) if PASSING.contains(&error.reason) && pace.late(tries) => {
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
        let pace = Rows::new(EACH, false, 256);
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
        let pace = Rows::new(EACH, true, 256);
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
        for (reason, tries) in [("floor_unreachable", 1), ("too_late", 5)] {
            let asked = Cell::new(0);
            let pace = Rows::new(EACH, false, 256);
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
            let late = seen.borrow_mut().insert(at) && at < 32;
            assert_eq!(matches!(begins, Begins::Again(_)), !late && at < 32, "{at}");
            async move {
                tokio::time::sleep(Duration::from_millis(if at == 0 { 15 } else { 5 })).await;
                if late { Err(Refusal::TooLate { waited: EACH }.into()) } else { Ok((at, Micros(1))) }
            }
        };
        let mut taken = Vec::new();
        let all = ask(
            100,
            Rows::new(EACH, false, 256),
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
