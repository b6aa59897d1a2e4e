//! The node itself: what machine it is, what that costs, and what it has done since it started.

mod detect;
mod free;
mod host;
mod prices;
mod tally;
#[cfg(test)]
mod tree;
mod zone;

use detect::LACKING;
pub use detect::{device_class, hardware, slug};
pub use free::free_memory;
pub(crate) use host::Watch;
pub use prices::{ASSUMED, ASSUMED_GPU, gpu_price, lane_price, listed};
pub(crate) use tally::Tally;
pub use zone::{Zone, zone};
