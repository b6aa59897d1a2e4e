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
    if let Some(usual) = most_frequent(set).filter(|usual| high <= *usual) {
        found.push(format!(
            "its accuracy on {:?} is {value}, at most {high}, and always answering the most frequent label would reach {usual}: \
             do the labels mean the same to the model and in the set?",
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
