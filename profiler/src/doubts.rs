//! Whether a measured accuracy looks as if the labels were other ones than the model's.

use crate::set::LabelledSet;
use modelless_types::{Accuracy, AccuracyMeasure};
use std::collections::BTreeMap;

/// What was declared may lie outside of the measured interval by so much, in parts per million, before that is said.
const FAR_PPM: u32 = 50_000;

/// Why to look at the labelled set again, for people.
pub(crate) fn doubts(
    measured: &AccuracyMeasure,
    set: Option<&LabelledSet>,
    declared: Option<Accuracy>,
) -> Vec<String> {
    let (Some(set), false) = (set, measured.is_declared()) else { return Vec::new() };
    let (low, value, high) = (measured.low, measured.value, measured.high);
    let mut found = Vec::new();
    // Labels in another order make answers right by chance, so what is asked is whether it is shown to be better, not whether it
    // is shown to be worse.
    if let Some(usual) = most_frequent(set).filter(|usual| low <= *usual) {
        found.push(format!(
            "its accuracy on {:?} is {value}, between {low} and {high}, which is not shown to be better than always answering the \
             most frequent label ({usual}): do the labels mean the same to the model and in the set, and is the set large enough?",
            set.name()
        ));
    }
    let far = |declared: &Accuracy| {
        let declared = declared.ppm();
        declared.saturating_add(FAR_PPM) < low.ppm() || declared > high.ppm().saturating_add(FAR_PPM)
    };
    if let Some(declared) = declared.filter(far) {
        found.push(format!(
            "its accuracy was declared as {declared}, and on {:?} it is {value}, between {low} and {high}: is it the right set?",
            set.name()
        ));
    }
    found
}

/// The share of the label that most items have. Of one label alone nothing can be said.
fn most_frequent(set: &LabelledSet) -> Option<Accuracy> {
    let mut counts = BTreeMap::<usize, u64>::new();
    for item in 0..set.len() {
        *counts.entry(set.class(item)).or_default() += 1;
    }
    let most = counts.values().max().filter(|_| counts.len() > 1)?;
    Accuracy::measured(*most, set.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accuracy::Tally;
    use bytes::Bytes;

    /// Two hundred items of each of ten classes, which a model knows nine times in ten, with the label of another item each; and
    /// what is found of it.
    fn found(label_of: impl Fn(usize) -> usize) -> Vec<String> {
        let class = |item: usize| item % 10;
        let items = 0..2_000;
        let set = LabelledSet::of_bytes("s", items.clone().map(|item| (Bytes::new(), class(label_of(item)))));
        let answers =
            |item: usize| if item.is_multiple_of(11) { (class(item) + 1) % 10 } else { class(item) };
        let mut tally = Tally::default();
        items.for_each(|item| tally.count(answers(item) == set.class(item)));
        doubts(&tally.measure("s", "cpu", "a command").unwrap(), Some(&set), None)
    }

    #[test]
    fn labels_in_another_order_are_told_though_answers_are_right_as_often_as_by_chance() {
        assert_eq!(found(|item| item), Vec::<String>::new());
        // Each label as often as before, and as often at items of every class.
        let shuffled = found(|item| item + item / 10);
        assert!(matches!(shuffled.as_slice(), [why] if why.contains("most frequent label")), "{shuffled:?}");
        // Every label another one, but always the same: right by no chance at all.
        let renamed = found(|item| item + 1);
        assert!(matches!(renamed.as_slice(), [why] if why.contains("most frequent label")), "{renamed:?}");
    }
}
