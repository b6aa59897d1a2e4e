//! The replica state machine, as a table: which state follows which event. An illegal pair is an error, never a
//! silent no-op. Which event has happened to a replica that serves is decided in [`judge`].

mod judge;

pub use judge::{Beside, Host, Limits, Signs, because, explain, fell_back, judge};

use core::fmt;
use modelless_types::ReplicaState;
use serde::{Deserialize, Serialize};

/// What can happen to a replica.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplicaEvent {
    /// A plan, or a query that nothing resident may answer, wants it in memory.
    Wanted,
    /// The engine says it is ready.
    Loaded,
    /// The engine could not load it.
    LoadFailed,
    /// Its queue cannot drain within the tightest deadlines it serves.
    QueueGrew,
    /// Its queue can drain again.
    QueueDrained,
    /// It is slower than its profile while its own load is below capacity.
    SlowedDown,
    /// It is as fast as its profile again.
    SpedUp,
    /// A plan or an eviction wants it gone.
    Unwanted,
    /// It has finished what it had and its memory is free.
    Emptied,
    /// Its process died or hung.
    Crashed,
    /// The back-off after a failure is over.
    BackedOff,
}

impl ReplicaEvent {
    /// Every event.
    pub const ALL: [Self; 11] = [
        Self::Wanted,
        Self::Loaded,
        Self::LoadFailed,
        Self::QueueGrew,
        Self::QueueDrained,
        Self::SlowedDown,
        Self::SpedUp,
        Self::Unwanted,
        Self::Emptied,
        Self::Crashed,
        Self::BackedOff,
    ];
}

/// An event that cannot happen in a state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Illegal {
    /// Where it stood.
    pub from: ReplicaState,
    /// What was said to have happened.
    pub event: ReplicaEvent,
}

impl fmt::Display for Illegal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a replica that is {} cannot see {:?}; this is a bug", self.from, self.event)
    }
}

/// The state after an event.
pub const fn next(from: ReplicaState, event: ReplicaEvent) -> Result<ReplicaState, Illegal> {
    use ReplicaEvent as E;
    use ReplicaState as S;
    match (from, event) {
        (S::Inactive, E::Wanted) => Ok(S::Loading),
        (S::Loading, E::Loaded) | (S::Overloaded, E::QueueDrained) | (S::Interfered, E::SpedUp) => {
            Ok(S::Active)
        }
        (S::Active, E::QueueGrew) => Ok(S::Overloaded),
        (S::Active, E::SlowedDown) => Ok(S::Interfered),
        (S::Loading | S::Active | S::Overloaded | S::Interfered, E::Unwanted) => Ok(S::Draining),
        (S::Draining, E::Emptied) | (S::Failed, E::BackedOff) => Ok(S::Inactive),
        (S::Loading, E::LoadFailed)
        | (S::Loading | S::Active | S::Overloaded | S::Interfered | S::Draining, E::Crashed) => Ok(S::Failed),
        (from, event) => Err(Illegal { from, event }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ReplicaState as S;

    #[test]
    fn only_the_designed_transitions_exist() {
        let mut edges = alloc::vec::Vec::new();
        for from in S::ALL {
            for event in ReplicaEvent::ALL {
                if let Ok(to) = next(from, event) {
                    edges.push((from, to));
                }
            }
        }
        edges.sort_unstable();
        edges.dedup();
        let mut designed = alloc::vec![
            (S::Inactive, S::Loading),
            (S::Loading, S::Active),
            (S::Active, S::Overloaded),
            (S::Overloaded, S::Active),
            (S::Active, S::Interfered),
            (S::Interfered, S::Active),
            (S::Loading, S::Draining),
            (S::Active, S::Draining),
            (S::Overloaded, S::Draining),
            (S::Interfered, S::Draining),
            (S::Draining, S::Inactive),
            (S::Failed, S::Inactive),
            (S::Loading, S::Failed),
            (S::Active, S::Failed),
            (S::Overloaded, S::Failed),
            (S::Interfered, S::Failed),
            (S::Draining, S::Failed),
        ];
        designed.sort_unstable();
        assert_eq!(edges, designed);
    }

    #[test]
    fn what_cannot_happen_is_an_error_with_both_names() {
        let err = next(S::Inactive, ReplicaEvent::Loaded).expect_err("nothing was loading");
        assert_eq!(err, Illegal { from: S::Inactive, event: ReplicaEvent::Loaded });
    }
}
