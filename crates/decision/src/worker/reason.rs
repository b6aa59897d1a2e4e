//! Why a query is answered by the variant it is, as answers and explanations tell it.

use modelless_types::Prefer;
use serde::{Deserialize, Serialize};

/// Why a query is answered by the variant it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Reason {
    /// Best by what the query prefers among all that its goals admit.
    Preferred(Prefer),
    /// The backlog or its slack left no time for what it would have preferred.
    InTime,
    /// What it would have preferred takes more of the device than there is for all that is asked.
    Affordable,
    /// The only one its goals admit.
    Only,
    /// It shares the batch of a query that was due earlier.
    Joined,
    /// It had to be loaded first.
    Loaded,
    /// Rerun alone after its batch had failed.
    Rerun,
    /// Nothing else was to be done.
    Spare,
}

impl Reason {
    /// As shown in answers.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Preferred(Prefer::Accuracy) => "most accurate that meets the goals",
            Self::Preferred(Prefer::Cost) => "cheapest that meets the goals",
            Self::Preferred(Prefer::Latency) => "fastest that meets the goals",
            Self::InTime => "best that could still be in time",
            Self::Affordable => "best that there is time for at what is asked now",
            Self::Only => "only one that meets the goals",
            Self::Joined => "shares the batch of an earlier query",
            Self::Loaded => "loaded for this query",
            Self::Rerun => "rerun alone after its batch failed",
            Self::Spare => "nothing else was to be done",
        }
    }
}
