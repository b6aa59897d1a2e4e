//! What a query is charged of devices' time where no answer tells what it took, and which places it keeps meanwhile.
//!
//! A batch that has begun runs to its end: also where its client went away, where it is too late for anybody, and where it fails. Whoever asked
//! would have it for nothing, and its place for another.

use crate::access::Caller;
use crate::core::Core;
use crate::pending::{By, Outcome, Places, Reply, Sent, Way};
use modelless_decision::route::Event;
use modelless_types::{Micros, QueryKey, Refusal, Time};

/// Whose a query is.
#[derive(Clone, Copy)]
pub(crate) struct Account<'a> {
    pub(crate) core: &'a Core,
    pub(crate) caller: &'a Caller,
    pub(crate) key: QueryKey,
    /// Whether it counts among the open ones: what only spare time is spent on does not.
    pub(crate) counts: bool,
}

impl Account<'_> {
    /// Nobody waits for it any longer. Where it went, if it was still open.
    pub(crate) fn abandon(&self) -> Option<Way> {
        let now = self.core.driver.clock().now();
        let way = self.core.pending.abandon(now, self.key, || self.places())?;
        if let Some(sent) = &way.sent {
            self.caller.used(now, sent.expected);
        }
        self.core.driver.feed(Event::Cancel { key: self.key }, self.core);
        Some(way)
    }

    /// It ended so. What never was at a node costs nothing, nor does what a node would not run.
    pub(crate) fn ended(&self, reply: &Reply) {
        let (Some(sent), Outcome::Refused(refusal)) = (&reply.way.sent, &reply.outcome) else { return };
        let now = self.core.driver.clock().now();
        match reply.by {
            By::Overdue => {
                self.core.pending.goes_on(now, self.key, sent, || self.places());
                self.caller.used(now, sent.expected);
            }
            By::Node if failed(refusal) => self.caller.used(now, at_most_as_expected(sent, now)),
            By::Node | By::Router => {}
        }
    }

    fn places(&self) -> Option<Places> {
        if self.counts { self.caller.goes_on() } else { None }
    }
}

/// How long a failed one was there, and no longer than was foreseen: what else it waited for was not its doing.
fn at_most_as_expected(sent: &Sent, now: Time) -> Micros {
    (now - sent.at).min(sent.expected)
}

/// Whether it was run, for all that is known.
fn failed(refusal: &Refusal) -> bool {
    match refusal {
        Refusal::ModelError { .. } | Refusal::InputCrashed { .. } | Refusal::VariantFailed { .. } => true,
        Refusal::FloorUnreachable { .. }
        | Refusal::LatencyUnreachable { .. }
        | Refusal::CostUnreachable { .. }
        | Refusal::PinUnusable { .. }
        | Refusal::NothingRunnable { .. }
        | Refusal::TooLate { .. }
        | Refusal::QueueFull { .. }
        | Refusal::BytesFull { .. }
        | Refusal::OverQuota
        | Refusal::Loading { .. }
        | Refusal::OutOfMemory { .. }
        | Refusal::Draining
        | Refusal::NodeLost
        | Refusal::Cancelled => false,
    }
}
