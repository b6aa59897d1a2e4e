//! Queries that the router sends though they have ended: it is told so, and sends the next one in their place. At the end of a drain all
//! that wait have ended, each of which would be told within the sending of the one before, until the stack is full; so they are told
//! one after the other by whoever is at it.

use super::Core;
use modelless_decision::route::Event;
use modelless_types::QueryKey;
use std::sync::{Mutex, PoisonError};

/// Those of whom the router is yet to be told, and whether somebody is at it.
#[derive(Debug, Default)]
pub(super) struct Ended(Mutex<(Vec<QueryKey>, bool)>);

impl Ended {
    /// Whether whoever adds it is to tell the router of all of them.
    fn add(&self, key: QueryKey) -> bool {
        let mut ended = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ended.0.push(key);
        !std::mem::replace(&mut ended.1, true)
    }

    /// The next one; without any nobody is at it any longer.
    fn next(&self) -> Option<QueryKey> {
        let mut ended = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let next = ended.0.pop();
        ended.1 = next.is_some();
        next
    }
}

impl Core {
    /// A query that is being sent has ended.
    pub(super) fn cancel_ended(&self, key: QueryKey) {
        if !self.ended.add(key) {
            return;
        }
        while let Some(key) = self.ended.next() {
            self.driver.feed(Event::Cancel { key }, self);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_tells_of_all_and_another_begins_when_nobody_is_at_it() {
        let ended = Ended::default();
        assert!(ended.add(QueryKey(1)));
        assert!(!ended.add(QueryKey(2)), "the first is at it");
        assert_eq!([(); 3].map(|()| ended.next()), [Some(QueryKey(2)), Some(QueryKey(1)), None]);
        assert!(ended.add(QueryKey(3)));
    }
}
