//! What must never happen, and the books that tell whether it did.

use modelless_types::{Accuracy, QueryKey, SpaceId, Time, VariantId};
use std::collections::BTreeMap;

/// Something that must never happen did. Always a bug in a machine or in the world around it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("at {at_us} us: {rule}: {what}")]
pub struct Broken {
    /// When.
    pub at_us: u64,
    /// What must hold.
    pub rule: &'static str,
    /// What was seen.
    pub what: String,
}

/// Gives `Err` with the rule's name unless it holds.
pub(crate) fn ensure(
    holds: bool,
    now: Time,
    rule: &'static str,
    what: impl FnOnce() -> String,
) -> Result<(), Broken> {
    if holds { Ok(()) } else { Err(Broken { at_us: now.0, rule, what: what() }) }
}

/// A query as its client sees it.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) stream: usize,
    pub(crate) gateway: usize,
    pub(crate) arrived: Time,
    pub(crate) deadline: Time,
    pub(crate) floor: Accuracy,
    /// The one space of its answer.
    pub(crate) space: SpaceId,
    pub(crate) variant: Option<VariantId>,
    pub(crate) poison: bool,
}

/// How a query left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Left {
    Answered,
    Refused,
    Cancelled,
    /// Its gateway went down with it.
    Lost,
}

/// Every query there ever was: open, or how it left.
#[derive(Debug, Default)]
pub(crate) struct Books {
    open: BTreeMap<QueryKey, Client>,
    left: BTreeMap<QueryKey, Left>,
}

impl Books {
    pub(crate) fn enter(&mut self, key: QueryKey, client: Client) {
        self.open.insert(key, client);
    }

    pub(crate) fn get(&self, key: QueryKey) -> Option<&Client> {
        self.open.get(&key)
    }

    pub(crate) fn open(&self) -> usize {
        self.open.len()
    }

    pub(crate) fn first_open(&self) -> Option<(QueryKey, &Client)> {
        self.open.first_key_value().map(|(key, client)| (*key, client))
    }

    pub(crate) fn at_gateway(&self, gateway: usize) -> Vec<QueryKey> {
        self.open.iter().filter(|(_, c)| c.gateway == gateway).map(|(key, _)| *key).collect()
    }

    /// A query leaves, once.
    pub(crate) fn leave(&mut self, now: Time, key: QueryKey, how: Left) -> Result<Client, Broken> {
        match self.open.remove(&key) {
            Some(client) => {
                self.left.insert(key, how);
                Ok(client)
            }
            None => Err(Broken {
                at_us: now.0,
                rule: "every query leaves exactly once",
                what: format!("{key} is {how:?} but was {:?} before", self.left.get(&key)),
            }),
        }
    }

    /// An answer for a query that is not open: `Ok` if it left without one, which a late node cannot know.
    pub(crate) fn echo(&self, now: Time, key: QueryKey) -> Result<(), Broken> {
        let left = self.left.get(&key);
        let harmless = matches!(left, Some(Left::Refused | Left::Cancelled | Left::Lost));
        ensure(harmless, now, "every query leaves exactly once", || {
            format!("{key} is answered but was {left:?}")
        })
    }
}
