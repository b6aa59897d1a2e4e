//! The machines in virtual time: worlds small enough to foresee, and random ones.

mod announcing;
mod behaviour;
mod published;
mod random;
mod written;
