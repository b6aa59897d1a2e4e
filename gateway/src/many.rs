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
use modelless_decision::rows::{Begins, Era, Rows};
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

/// Asks `count` queries by `one`, shows each answer to `came` when it comes, which tells how long it took, and gives it in its turn to
/// `take`. The first that is refused for good ends it, and is given with its place; going away, the others are cancelled.
pub(crate) async fn ask<T, F: Future<Output = Result<T, ApiError>>>(
    count: usize,
    mut pace: Rows,
    one: impl Fn(usize, Begins) -> F,
    mut came: impl FnMut(&T) -> Result<Micros, ApiError>,
    mut take: impl FnMut(T) -> Result<(), ApiError>,
) -> Result<(), (usize, ApiError)> {
    let one = &one;
    let begun = |at: usize, tries: u8, era: Era, begins: Begins| async move {
        if let Begins::Again(rest) = begins {
            tokio::time::sleep(Duration::from_micros(rest.0)).await;
        }
        (at, tries, era, one(at, begins).await)
    };
    let mut running = FuturesUnordered::new();
    // Those to be asked again with how often they were, and answers that wait for earlier ones: both are bounded by how far one is ahead.
    let (mut late, mut answers) = (BTreeMap::new(), BTreeMap::new());
    let (mut next, mut taken) = (0, 0);
    loop {
        while running.len() < pace.open() {
            if let Some((at, tries)) = late.pop_first() {
                running.push(begun(at, tries + 1, pace.era(), pace.begins(at, tries + 1)));
            } else if next < count && next - taken < AHEAD {
                running.push(begun(next, 1, pace.era(), pace.begins(next, 1)));
                next += 1;
            } else {
                break;
            }
        }
        let Some((at, tries, era, result)) = running.next().await else { return Ok(()) };
        match result {
            Ok(answer) => {
                pace.answered(came(&answer).map_err(|error| (at, error))?, era);
                answers.insert(at, answer);
                while let Some(answer) = answers.remove(&taken) {
                    take(answer).map_err(|error| (taken, error))?;
                    taken += 1;
                }
            }
            Err(error) if PASSING.contains(&error.reason) && pace.late(tries, era) => {
                late.insert(at, tries);
            }
            Err(error) => return Err((at, error)),
        }
    }
}

#[cfg(test)]
mod tests;
