//! Machines that come and go: looks at what is asked, what providers have and who is there, decides, writes down, asks providers.
//!
//! Of several schedulers one does this at a time. It is idempotent: what is wanted is written down before a provider is asked, so it may
//! be killed at any line, and whoever comes next goes on from what is written down and what providers list. Nothing depends on it to
//! keep serving. How many machines there should be is decided in `decision::hire`, what to do about it in `decision::fleet`.

mod calls;
mod config;
mod infaas;
mod keeper;
mod lead;
#[cfg(test)]
mod tests;

pub use config::{CommandPool, Config, PoolConfig, Prices, ProcessPool};
pub use keeper::{Keeper, Machinery, build};
