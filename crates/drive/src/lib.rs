//! How a state machine of `decision` is driven live.
//!
//! A [`Driver`] owns the machine behind a small lock. Whoever has an input feeds it on their own thread and gets the
//! actions that came of it, to perform **after** the lock is released: no hop to another task lies on a query's path.
//! Times are stamped inside the lock and rise strictly, so the live order is the order of the log and ties never
//! occur. One task per driver serves the machine's timer. With a [`Recorder`], every input is kept with the actions
//! it gave, so that an incident can be replayed.
#![warn(missing_docs)]

mod clock;
mod driver;
mod record;

pub use clock::Clock;
pub use driver::{Driver, Perform};
pub use record::{Recorder, Replay, replay};

#[cfg(test)]
mod tests;
