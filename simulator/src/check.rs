//! What must never happen, and the books that tell whether it did.

use crate::open::Open;
use modelless_types::{Accuracy, NodeId, QueryKey, SpaceId, Time, VariantId};
use std::collections::BTreeSet;

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
    /// The node that it was last sent to.
    pub(crate) sent: Option<NodeId>,
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
    open: Open<Client>,
    /// By key, from 0 on.
    left: Vec<Option<Left>>,
    /// Taken back from a node that kept it too long, and asked elsewhere; what that node says all the same comes beside.
    taken_back: BTreeSet<QueryKey>,
}

impl Books {
    pub(crate) fn enter(&mut self, key: QueryKey, client: Client) {
        self.open.insert(key, client);
    }

    pub(crate) fn get(&self, key: QueryKey) -> Option<&Client> {
        self.open.get(key)
    }

    /// A gateway sends a query to a node.
    pub(crate) fn sent(&mut self, key: QueryKey, node: NodeId) {
        if let Some(client) = self.open.get_mut(key) {
            client.sent = Some(node);
        }
    }

    /// Whether it is open and was last sent to another node than this, or to none.
    pub(crate) fn is_elsewhere(&self, key: QueryKey, node: NodeId) -> bool {
        self.get(key).is_some_and(|client| client.sent != Some(node))
    }

    pub(crate) fn open(&self) -> usize {
        self.open.len()
    }

    pub(crate) fn first_open(&self) -> Option<(QueryKey, &Client)> {
        self.open.iter().next()
    }

    pub(crate) fn at_gateway(&self, gateway: usize) -> Vec<QueryKey> {
        self.open.iter().filter(|(_, c)| c.gateway == gateway).map(|(key, _)| key).collect()
    }

    fn how(&self, key: QueryKey) -> Option<Left> {
        usize::try_from(key.0).ok().and_then(|at| self.left.get(at).copied().flatten())
    }

    /// A query leaves, once.
    pub(crate) fn leave(&mut self, now: Time, key: QueryKey, how: Left) -> Result<Client, Broken> {
        match self.open.remove(key) {
            Some(client) => {
                if let Ok(at) = usize::try_from(key.0) {
                    self.left.resize(self.left.len().max(at + 1), None);
                    self.left[at] = Some(how);
                }
                Ok(client)
            }
            None => Err(Broken {
                at_us: now.0,
                rule: "every query leaves exactly once",
                what: format!("{key} is {how:?} but was {:?} before", self.how(key)),
            }),
        }
    }

    /// A gateway takes a query back from a node. Only one that is still open is asked elsewhere.
    pub(crate) fn take_back(&mut self, key: QueryKey) {
        if self.get(key).is_some() {
            self.taken_back.insert(key);
        }
    }

    /// An answer for a query that is not open: `Ok` if it left without one, which a late node cannot know, or if two nodes had it.
    pub(crate) fn echo(&self, now: Time, key: QueryKey) -> Result<(), Broken> {
        let left = self.how(key);
        let harmless = match left {
            Some(Left::Refused | Left::Cancelled | Left::Lost) => true,
            Some(Left::Answered) => self.taken_back.contains(&key),
            None => false,
        };
        ensure(harmless, now, "every query leaves exactly once", || {
            format!("{key} is answered but was {left:?}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_elsewhere_for_all_nodes_but_the_one_that_it_was_last_sent_to() {
        let (key, first, second) = (QueryKey(7), NodeId(1), NodeId(2));
        let client = Client {
            stream: 0,
            gateway: 0,
            arrived: Time::ZERO,
            deadline: Time(1),
            floor: Accuracy::ZERO,
            space: SpaceId(0),
            variant: None,
            poison: false,
            sent: None,
        };
        let mut books = Books::default();
        books.sent(key, first);
        assert!(!books.is_elsewhere(key, first), "who is not open is nowhere");
        books.enter(key, client);
        assert!(books.is_elsewhere(key, first), "it was sent nowhere yet");
        books.sent(key, first);
        assert!(!books.is_elsewhere(key, first) && books.is_elsewhere(key, second));
        books.sent(key, second);
        assert!(books.is_elsewhere(key, first) && !books.is_elsewhere(key, second));
    }
}
