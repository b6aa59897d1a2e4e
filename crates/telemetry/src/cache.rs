//! Answers that were given again, what they take, and how the place that gateways share does.

use crate::metrics::signed;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct OfTask {
    task: String,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct OfOutcome {
    task: String,
    outcome: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct Came {
    outcome: &'static str,
}

#[derive(Debug, Default)]
pub(crate) struct Families {
    looked: Family<OfOutcome, Counter>,
    entries: Family<OfTask, Gauge>,
    bytes: Family<OfTask, Gauge>,
    evicted: Family<OfTask, Counter>,
    looks: Family<Came, Counter>,
    writes: Family<Came, Counter>,
}

impl Families {
    pub(crate) fn register(&self, r: &mut Registry) {
        let help = "Queries of tasks whose answers may be given again, by whether one was";
        r.register("cache", help, self.looked.clone());
        r.register("cache_entries", "Answers that are kept here", self.entries.clone());
        let help = "What answers that are kept here take";
        r.register_with_unit("cache", help, Unit::Bytes, self.bytes.clone());
        r.register("cache_evicted", "Answers that went to make room for others", self.evicted.clone());
        let help = "Looks where gateways share their answers, by what came of them";
        r.register("cache_shared_looks", help, self.looks.clone());
        let help = "Answers that were to be kept where gateways share theirs, by what came of it";
        r.register("cache_shared_writes", help, self.writes.clone());
    }

    pub(crate) fn of(&self, task: &str) -> TaskCache {
        let of_task = OfTask { task: task.to_owned() };
        let outcome =
            |outcome| self.looked.get_or_create_owned(&OfOutcome { task: task.to_owned(), outcome });
        TaskCache {
            hits: outcome("hit"),
            misses: outcome("miss"),
            entries: self.entries.get_or_create_owned(&of_task),
            bytes: self.bytes.get_or_create_owned(&of_task),
            evicted: self.evicted.get_or_create_owned(&of_task),
        }
    }

    pub(crate) fn shared(&self) -> SharedCache {
        let look = |outcome| self.looks.get_or_create_owned(&Came { outcome });
        let write = |outcome| self.writes.get_or_create_owned(&Came { outcome });
        SharedCache {
            found: look("found"),
            absent: look("absent"),
            look_failed: look("failed"),
            written: write("written"),
            no_room: write("no_room"),
            write_failed: write("failed"),
        }
    }
}

/// Of one task: queries, and what is kept in this gateway.
#[derive(Clone, Debug, Default)]
pub struct TaskCache {
    hits: Counter,
    misses: Counter,
    entries: Gauge,
    bytes: Gauge,
    evicted: Counter,
}

impl TaskCache {
    /// Whether a query was answered by what was kept.
    pub(crate) fn looked(&self, hit: bool) {
        if hit {
            self.hits.inc()
        } else {
            self.misses.inc()
        };
    }

    /// One of so many bytes is kept from now on.
    pub fn came(&self, bytes: u64) {
        self.entries.inc();
        self.bytes.inc_by(signed(bytes));
    }

    /// It is not any more.
    pub fn went(&self, bytes: u64) {
        self.entries.dec();
        self.bytes.dec_by(signed(bytes));
    }

    /// One went to make room.
    pub fn evicted(&self) {
        self.evicted.inc();
    }
}

/// Where gateways share what they keep.
#[derive(Clone, Debug)]
pub struct SharedCache {
    /// It was there.
    pub found: Counter,
    /// It was not.
    pub absent: Counter,
    /// Nothing came in time, or nothing that is one of this cluster's.
    pub look_failed: Counter,
    /// It is there for others.
    pub written: Counter,
    /// This gateway has enough there, or too much waits to be written.
    pub no_room: Counter,
    /// It was not taken.
    pub write_failed: Counter,
}
