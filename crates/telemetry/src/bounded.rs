//! Bounds on the values of labels: what users can make many of has so many series and no more.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// In place of names that came when there was no room any more; all of these are counted as one.
pub const OTHERS: &str = "(others)";

/// Names that have series, first come first served, for as long as the process lives: a series that went and came back would seem to begin
/// anew.
#[derive(Debug)]
pub(crate) struct Names {
    most: usize,
    known: Mutex<BTreeSet<String>>,
}

impl Names {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, known: Mutex::default() }
    }

    /// Whether it has, or gets, series of its own.
    pub(crate) fn has_room(&self, name: &str) -> bool {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.contains(name) {
            return true;
        }
        let room = known.len() < self.most;
        if room {
            known.insert(name.to_owned());
        } else if known.len() == self.most {
            tracing::warn!(
                name,
                most = self.most,
                "no room for more series; this and others that come are counted as one"
            );
            known.insert(OTHERS.to_owned()); // so that this is said once
        }
        room
    }

    /// The name, or what stands for those that have none.
    pub(crate) fn label(&self, name: &str) -> String {
        if self.has_room(name) { name.to_owned() } else { OTHERS.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_first_keeps_its_name_and_the_rest_are_others() {
        let names = Names::new(2);
        let labels = ["a", "b", "c", "a", "d", "b"].map(|name| names.label(name));
        assert_eq!(labels, ["a", "b", OTHERS, "a", OTHERS, "b"]);
        assert!(names.known.lock().unwrap().len() <= 3);
    }
}
