//! What gateways said to wait, as far as the machine has to hear of it: nearly every query comes with the news that nothing else waits.

use modelless_decision::query::Class;
use std::collections::BTreeMap;

/// Of more classes than so many, which nobody asks for at once, all are forgotten.
const CLASSES: usize = 1_024;

/// What was told of each class.
#[derive(Debug, Default)]
pub(crate) struct Demanded(BTreeMap<Class, Told>);

#[derive(Clone, Copy, Debug)]
struct Told {
    waits: bool,
    among: u32,
}

impl Demanded {
    /// Whether the machine has to hear it: something waits, or did until now, or the class is divided otherwise than before.
    pub(crate) fn is_news(&mut self, class: Class, waiting: u32, among: u32) -> bool {
        let waits = waiting > 0;
        let Some(known) = self.0.get_mut(&class) else {
            if self.0.len() >= CLASSES {
                self.0.clear();
            }
            self.0.insert(class, Told { waits, among });
            return waits || among > 1;
        };
        // Who knows no number says nothing of it.
        let among = if among == 0 { known.among } else { among };
        let before = std::mem::replace(known, Told { waits, among });
        waits || before.waits || before.among != among
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_types::{TaskId, VariantSet};

    #[test]
    fn only_what_changes_is_news() {
        let class = |task| Class { task: TaskId(task), admits: VariantSet::default() };
        let mut known = Demanded::default();
        let mut heard = |task, waiting, among| known.is_news(class(task), waiting, among);
        assert!(!heard(1, 0, 1), "one node, and nobody waits: as if nothing had been said");
        assert!(heard(1, 3, 1) && heard(1, 3, 1), "how many wait is told each time");
        assert!(heard(1, 0, 1), "and that nobody does any more");
        assert!(!heard(1, 0, 1));
        assert!(heard(1, 0, 2), "another node serves it");
        assert!(!heard(1, 0, 2) && !heard(1, 0, 0));
        assert!(heard(1, 0, 1));
        assert!(heard(2, 0, 2), "another class");
    }
}
