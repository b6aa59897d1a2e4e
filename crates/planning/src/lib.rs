//! What a plan is made from: what is registered, what nodes say of themselves, what is asked of gateways.
//!
//! The scheduler plans with it, and a gateway shows with it what a plan would be if it were made now, so that what is shown
//! is what would be decided. Decides nothing: that is in `decision::plan`.
#![warn(missing_docs)]

mod demand;
mod input;

pub use demand::Demands;
pub use input::input;
