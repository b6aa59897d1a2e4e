//! What a plan is made from: what is registered, what nodes say of themselves, what is asked of gateways; and what is decided about
//! machines from, with what is written down of them.
//!
//! The scheduler plans with it, and a gateway shows with it what a plan would be if it were made now, so that what is shown
//! is what would be decided. Decides nothing: that is in `decision::plan`, `decision::hire` and `decision::fleet`.
#![warn(missing_docs)]

mod ahead;
mod asked;
mod bins;
mod demand;
mod idle;
mod input;
mod machines;

pub use ahead::{Aheads, Foreseen, Foretold, aheads, foreseen, history, loads};
pub use asked::{Demand, Kinds, Times, remembered};
pub use bins::Bins;
pub use demand::Demands;
pub use idle::Idle;
pub use input::input;
pub use machines::{Learnt, PoolSetting, Rentable, Wanted, learn, node, ruled, wanted};

use modelless_live::Member;
use std::time::Duration;

/// What is asked of all gateways, as one observer knows it.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// How much, class by class.
    pub demands: Demands,
    /// For how long not at all.
    pub idle: Idle,
}

impl Asked {
    /// What members announce, so long after the last time.
    pub fn look(&mut self, members: &[Member], after: Duration) {
        self.demands.look(members, after);
        self.idle.look(members, after);
    }

    /// Nothing could be known for so long.
    pub fn stand_still(&mut self, after: Duration) {
        self.demands.stand_still(after);
        self.idle.stand_still(after);
    }
}
