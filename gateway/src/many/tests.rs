//! Requests of many rows against nodes that are too slow for all of them at once.

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
        |total| Ok(*total),
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
        ask(1_000, pace, one, |total| Ok(*total), |_| Ok(())).await.expect_err("too many at once");
    assert_eq!((error.reason, node.most.get()), ("too_late", 256));
    assert!((20..256).contains(&at), "{at}");
}

#[tokio::test(start_paused = true)]
async fn what_will_not_pass_ends_it_at_once_and_what_passes_never_does_after_a_few_tries() {
    for (reason, tries) in [("floor_unreachable", 1), ("too_late", 10)] {
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
            ask(10, pace, one, |total| Ok(*total), |_| Ok(())).await.expect_err("one is refused for good");
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
        |(_, total)| Ok(*total),
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

/// A device that runs one row after the other, and turns away at once what it cannot end in time.
struct Device {
    takes: Duration,
    free_at: Cell<tokio::time::Instant>,
}

impl Device {
    fn new(takes: Duration) -> Self {
        Self { takes, free_at: Cell::new(tokio::time::Instant::now()) }
    }

    async fn ask(&self, arrived: tokio::time::Instant, begins: Begins) -> Result<Micros, ApiError> {
        let now = tokio::time::Instant::now();
        let began = if begins == Begins::WithAll { arrived } else { now };
        let end = self.free_at.get().max(now) + self.takes;
        let total = end - began;
        if total > BOUND {
            return Err(Refusal::TooLate { waited: Micros::ZERO }.into());
        }
        self.free_at.set(end);
        tokio::time::sleep_until(end).await;
        Ok(Micros(total.as_micros().try_into().unwrap()))
    }
}

/// Of a task.
const BOUND: Duration = Duration::from_millis(500);

async fn many_requests(requests: usize, rows: usize, row_ms: u64) -> Result<(), String> {
    let device = Device::new(Duration::from_millis(row_ms));
    let arrived = tokio::time::Instant::now();
    let each = Micros(BOUND.as_micros().try_into().unwrap());
    let asked = (0..requests).map(|_| {
        let pace = Rows::new(each, false, 256);
        ask(rows, pace, |_, begins| device.ask(arrived, begins), |total| Ok(*total), |_| Ok(()))
    });
    let ended = futures_util::future::join_all(asked).await;
    let late: Vec<_> = ended.into_iter().filter_map(Result::err).map(|(at, _)| at).collect();
    if late.is_empty() { Ok(()) } else { Err(format!("{} of {requests} ended early: {late:?}", late.len())) }
}

#[tokio::test(start_paused = true)]
async fn a_request_without_a_bound_is_answered_however_slow_its_rows_are() {
    for row_ms in [1, 5, 10, 31, 40, 60, 100, 150, 200, 300, 450] {
        if let Err(why) = many_requests(1, 300, row_ms).await {
            panic!("{row_ms} ms a row: {why}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn so_are_many_that_are_asked_side_by_side() {
    for (requests, row_ms) in [(2, 60), (4, 40), (16, 1), (16, 5), (16, 10), (16, 20)] {
        if let Err(why) = many_requests(requests, 64, row_ms).await {
            panic!("{row_ms} ms a row: {why}");
        }
    }
}
