//! The least that any policy on one lane must miss: what somebody who knew every arrival beforehand would do.
//!
//! Queries of one class with equal bounds come and are due in the same order, so two exchanges leave little to choose
//! from. Of what is kept, an earlier batch may as well hold the earlier queries: its last comes no later and the next
//! batch's first is due no sooner. And who is dropped between two members of a batch may as well take the place of the
//! batch's first, who is due sooner. So an optimum drops some, runs the next few in a row as one batch, and so on.
//! [`least_missed`] finds it: for each number of queries decided and each number dropped among them, the earliest
//! moment at which the lane can be free. Of these only those are kept that are free earlier than any with fewer drops;
//! there are never more than queries that come within one bound, since to drop all of those makes the lane free too.

use std::collections::VecDeque;

/// The least number of queries that must miss their bound on one lane, whatever the policy.
///
/// `arrivals` rise; `service[b - 1]` is how long a batch of `b` takes, and there are no larger batches. All in one unit.
/// Nothing else takes any time: what a real system loses besides is its own.
///
/// # Panics
///
/// If arrivals do not rise.
pub fn least_missed(arrivals: &[u64], service: &[u64], bound: u64) -> usize {
    let due: Vec<u64> = arrivals.iter().map(|came| came.saturating_add(bound)).collect();
    least_missed_as_sent(arrivals, &due, service)
}

/// The same where each query has its own moment by which it is due: those of a generator that fell behind came later than they
/// should have, and are due as if they had not.
///
/// # Panics
///
/// If arrivals or moments do not rise, or are not as many.
pub fn least_missed_as_sent(arrivals: &[u64], due: &[u64], service: &[u64]) -> usize {
    assert!(arrivals.is_sorted() && due.is_sorted(), "queries are given in order");
    assert_eq!(arrivals.len(), due.len(), "each query is due at some time");
    // `ahead[b]` is what is known of the state after `b` queries more than are decided now.
    let mut ahead: VecDeque<Vec<State>> = VecDeque::from(vec![Vec::new(); service.len().max(1) + 1]);
    ahead[0].push(State { dropped: 0, free: 0 });
    for (at, (&first, &due)) in arrivals.iter().zip(due).enumerate() {
        let mut states = ahead.pop_front().unwrap_or_default();
        ahead.push_back(Vec::new());
        prune(&mut states, first);
        for State { dropped, free } in states {
            ahead[0].push(State { dropped: dropped + 1, free });
            for ((size, &takes), &last) in service.iter().enumerate().zip(&arrivals[at..]) {
                let ends = free.max(last).saturating_add(takes);
                if ends <= due {
                    ahead[size].push(State { dropped, free: ends });
                } else if last > due {
                    break;
                }
            }
        }
    }
    ahead[0].iter().map(|state| state.dropped).min().unwrap_or(0)
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct State {
    dropped: usize,
    /// When the lane is free.
    free: u64,
}

/// Keeps those that are free earlier than any with fewer drops; before the `next` comes, all free are alike.
fn prune(states: &mut Vec<State>, next: u64) {
    for state in states.iter_mut() {
        state.free = state.free.max(next);
    }
    states.sort_unstable();
    let mut earliest = None;
    states.retain(|state| {
        let better = earliest.is_none_or(|known| state.free < known);
        if better {
            earliest = Some(state.free);
        }
        better
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Tries every subset to run in every order of batches: what is decided at each step is which of all that are left
    /// make up the next batch, or to end.
    fn by_trying_all(arrivals: &[u64], due: &[u64], service: &[u64]) -> usize {
        fn most(left: u32, free: u64, arrivals: &[u64], due: &[u64], service: &[u64]) -> u32 {
            let mut best = 0;
            let mut batch = left;
            while batch > 0 {
                let members = || (0..arrivals.len()).filter(|at| batch >> at & 1 == 1);
                let size = batch.count_ones();
                if let Some(takes) = service.get(size as usize - 1)
                    && let (Some(due_first), Some(last)) =
                        (members().map(|at| due[at]).min(), members().map(|at| arrivals[at]).max())
                {
                    let ends = free.max(last) + takes;
                    if ends <= due_first {
                        best = best.max(size + most(left & !batch, ends, arrivals, due, service));
                    }
                }
                batch = (batch - 1) & left;
            }
            best
        }
        let served = most((1 << arrivals.len()) - 1, 0, arrivals, due, service);
        arrivals.len() - served as usize
    }

    proptest! {
        #[test]
        fn nobody_who_tries_every_way_does_better(
            gaps in prop::collection::vec(0_u64..12, 0..7),
            service in prop::collection::vec(1_u64..30, 1..4),
            bound in 0_u64..60,
        ) {
            let arrivals: Vec<u64> = gaps.iter().scan(0, |at, gap| { *at += gap; Some(*at) }).collect();
            let due: Vec<u64> = arrivals.iter().map(|came| came + bound).collect();
            prop_assert_eq!(
                least_missed(&arrivals, &service, bound),
                by_trying_all(&arrivals, &due, &service)
            );
        }

        #[test]
        fn nor_where_queries_were_sent_later_than_they_should_have_been(
            gaps in prop::collection::vec((0_u64..12, 0_u64..12), 0..7),
            service in prop::collection::vec(1_u64..30, 1..4),
            bound in 0_u64..60,
        ) {
            let planned: Vec<u64> = gaps.iter().scan(0, |at, (gap, _)| { *at += gap; Some(*at) }).collect();
            let late = planned.iter().zip(&gaps).map(|(at, (_, late))| at + late);
            let sent: Vec<u64> = late.scan(0, |last, at| { *last = at.max(*last); Some(*last) }).collect();
            let due: Vec<u64> = planned.iter().map(|at| at + bound).collect();
            let least = least_missed_as_sent(&sent, &due, &service);
            prop_assert_eq!(least, by_trying_all(&sent, &due, &service));
            prop_assert!(least >= least_missed(&planned, &service, bound), "who is sent late has less time");
        }

        #[test]
        fn more_time_and_quicker_batches_never_make_it_worse(
            gaps in prop::collection::vec(0_u64..100, 0..200),
            service in prop::collection::vec(1_u64..200, 1..9),
            bound in 0_u64..500,
        ) {
            let arrivals: Vec<u64> = gaps.iter().scan(0, |at, gap| { *at += gap; Some(*at) }).collect();
            let least = least_missed(&arrivals, &service, bound);
            prop_assert!(least_missed(&arrivals, &service, bound + 50) <= least);
            let quicker: Vec<u64> = service.iter().map(|takes| takes - takes / 4).collect();
            prop_assert!(least_missed(&arrivals, &quicker, bound) <= least);
        }
    }

    #[test]
    fn dropping_the_first_saves_a_batch_that_it_would_have_kept_small() {
        // The first could go alone and make two others late.
        assert_eq!(least_missed(&[0, 50, 50, 50], &[100, 100, 100], 140), 1);
        assert_eq!(least_missed(&[0, 50, 50, 50], &[100, 100, 100], 150), 0);
        assert_eq!(least_missed(&[], &[1], 1), 0);
        assert_eq!(least_missed(&[1, 2], &[], 9), 2);
    }
}
