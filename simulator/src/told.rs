//! What gateways tell a node of who waits.

use modelless_decision::query::Class;
use modelless_decision::worker::Event;
use modelless_types::Time;

/// What a gateway said to wait, of a class.
#[derive(Clone, Copy)]
pub(crate) struct Told {
    pub(crate) waiting: u32,
    pub(crate) first: Option<Time>,
    /// Among how many nodes it divides the class.
    pub(crate) among: u32,
    /// When it said so.
    pub(crate) at: Time,
}

/// What waits at all of them.
pub(crate) fn together<'a>(class: Class, all: impl Iterator<Item = &'a Told>) -> Event {
    let (mut waiting, mut first, mut among, mut gateways) = (0, None::<Time>, 1, 0);
    for told in all {
        waiting += told.waiting;
        first = first.into_iter().chain(told.first).min();
        among = among.max(told.among);
        gateways += 1;
    }
    // Each goes round by itself, so of several each comes back the sooner.
    Event::Demand { class, waiting, first, among: among.div_ceil(gateways.max(1)) }
}
