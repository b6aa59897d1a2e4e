//! Runs that do not need each other, spread over all cores.

use crate::Error;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// What comes of each job, in their order; `tell` hears of each as it is done. After a failure no further one is begun.
pub(crate) fn spread<J: Sync, T: Send>(
    jobs: &[J],
    work: impl Fn(&J) -> Result<T, Error> + Sync,
    tell: impl Fn(&T) + Sync,
) -> Result<Vec<T>, Error> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let on_one_core = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = jobs.get(at) else { return };
            let came = work(job);
            came.iter().for_each(&tell);
            if came.is_err() {
                next.store(jobs.len(), Ordering::Relaxed);
            }
            done.lock().unwrap_or_else(PoisonError::into_inner).insert(at, came);
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(on_one_core);
        }
    });
    done.into_inner().unwrap_or_else(PoisonError::into_inner).into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_is_in_the_order_of_the_jobs_and_told_once_each() {
        let told = Mutex::new(Vec::new());
        let tell = |square: &u32| told.lock().unwrap_or_else(PoisonError::into_inner).push(*square);
        let jobs: Vec<u32> = (1..=20).collect();
        let squares = spread(&jobs, |n| Ok(n * n), tell).expect("none fails");
        let wanted: Vec<u32> = jobs.iter().map(|n| n * n).collect();
        assert_eq!(squares, wanted);
        let mut told = told.into_inner().unwrap_or_else(PoisonError::into_inner);
        told.sort_unstable();
        assert_eq!(told, wanted);
    }

    #[test]
    fn a_failure_comes_back_and_ends_it() {
        let jobs: Vec<u32> = (0..500_000).collect();
        let run = AtomicUsize::new(0);
        let work = |n: &u32| {
            run.fetch_add(1, Ordering::Relaxed);
            if *n == 3 { Err(Error::Scenario("three".into())) } else { Ok(*n) }
        };
        let seen = spread(&jobs, work, |_| {});
        assert!(matches!(seen, Err(Error::Scenario(why)) if why == "three"));
        assert!(run.into_inner() < jobs.len(), "not all of them");
    }
}
