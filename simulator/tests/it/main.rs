//! The machines in virtual time: worlds small enough to foresee, and random ones.

mod behaviour;
mod random;
mod written;
