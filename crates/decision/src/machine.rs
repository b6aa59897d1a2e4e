//! The contract of every state machine here, shared by the live loops and the simulator.
//!
//! Inputs are pushed with the time they happened, outputs are pulled, and nothing comes back sideways. A machine
//! holds ids and deadlines, never payloads. **Ties are part of the contract:** what falls on one instant is handled
//! in the order of [`Rank`], then in order of sequence. Live loops stamp strictly rising times, so there ties never
//! occur; the simulator sorts by `(time, rank, sequence)`. Replaying a log of `(time, input)` into a fresh machine
//! gives the same actions.

use modelless_types::Time;

/// What goes first at one instant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Rank {
    /// Something finished and made room.
    Completion,
    /// Something new came.
    Arrival,
    /// A time that was waited for came.
    Timer,
}

/// Inputs know their rank.
pub trait Ranked {
    /// Where it stands among inputs of the same instant.
    fn rank(&self) -> Rank;
}

/// When to wake a machine, and what for (shown when someone asks why it woke).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Wake {
    /// The moment.
    pub at: Time,
    /// The reason.
    pub why: &'static str,
}

/// A state machine that decides.
pub trait Machine {
    /// What it is told.
    type Event: Ranked;
    /// What it wants done.
    type Action;

    /// Something happened.
    fn handle(&mut self, now: Time, event: Self::Event);
    /// The time asked for by [`Machine::poll_timeout`] has come.
    fn handle_timeout(&mut self, now: Time);
    /// When to call [`Machine::handle_timeout`] next.
    fn poll_timeout(&self) -> Option<Wake>;
    /// The next thing to do; call until `None` after every input.
    fn poll_action(&mut self) -> Option<Self::Action>;
}
