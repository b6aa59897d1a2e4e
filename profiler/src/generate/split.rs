//! Which part of a labelled set finds the ranges of activations, and which measures what came of it. Never the same items:
//! what was fitted to an item says nothing of it.

use crate::error::Error;
use crate::set::LabelledSet;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// What variants are calibrated with.
#[derive(Clone, Debug)]
pub enum Calibration {
    /// So many items of the labelled set, at most a quarter of it, which then measure nothing.
    Part(usize),
    /// A set of its own, which shares no item with the labelled one.
    Set(LabelledSet),
}

/// Two sets without a common item.
#[derive(Clone, Debug)]
pub struct Halves {
    /// To calibrate with.
    pub calibration: LabelledSet,
    /// To measure with.
    pub accuracy: LabelledSet,
}

/// Cuts a set in two. From every class about the same share, evenly spread, and always the same items.
pub fn split(set: &LabelledSet, calibration: Calibration) -> Result<Halves, Error> {
    let mismatch = |why: String| Error::Calibration { set: set.name().to_owned(), why };
    match calibration {
        Calibration::Set(calibration) => {
            let known = contents(set)?;
            let shared = contents(&calibration)?.intersection(&known).count();
            if shared > 0 {
                return Err(mismatch(format!(
                    "{shared} of its inputs are in the calibration set {:?} too; accuracy would be measured with what was \
                     fitted: give sets without a common item, or one set, which is cut in two",
                    calibration.name()
                )));
            }
            Ok(Halves { calibration, accuracy: set.clone() })
        }
        Calibration::Part(wanted) => {
            let wanted = wanted.min(set.len() / 4);
            if wanted == 0 {
                return Err(mismatch(format!(
                    "it has {} items, and a part of it has to be set aside to calibrate with; expected at least 4, or a \
                     calibration set of its own",
                    set.len()
                )));
            }
            let chosen = spread(set, wanted);
            let inputs: BTreeSet<Bytes> =
                chosen.iter().map(|item| set.input(*item)).collect::<Result<_, _>>()?;
            let mut rest = Vec::new();
            for item in 0..set.len() {
                // One that is there twice would be in both halves.
                if !chosen.contains(&item) && !inputs.contains(&set.input(item)?) {
                    rest.push(item);
                }
            }
            if rest.is_empty() {
                return Err(mismatch("all of its items are the same".to_owned()));
            }
            let (name, chosen) = (set.name(), chosen.into_iter().collect::<Vec<_>>());
            let accuracy = format!("{name}, without {} that calibrated", chosen.len());
            Ok(Halves {
                calibration: set.part(&chosen, format!("{name}, {} to calibrate with", chosen.len())),
                accuracy: set.part(&rest, accuracy),
            })
        }
    }
}

fn contents(set: &LabelledSet) -> Result<BTreeSet<Bytes>, Error> {
    (0..set.len()).map(|item| set.input(item)).collect()
}

/// So many items: each class in turn gives the next of its own that are evenly spread.
fn spread(set: &LabelledSet, wanted: usize) -> BTreeSet<usize> {
    let mut classes: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for item in 0..set.len() {
        classes.entry(set.class(item)).or_default().push(item);
    }
    let mut chosen = BTreeSet::new();
    let (mut left, mut of) = (wanted, set.len());
    for items in classes.values() {
        // Its share of what is still wanted, so that in the end it is all of it.
        let share = (left * items.len()).div_ceil(of).min(left);
        chosen.extend((0..share).map(|number| items[number * items.len() / share]));
        left -= share;
        of -= items.len();
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(inputs: &[(u32, usize)]) -> LabelledSet {
        LabelledSet::of_bytes(
            "s",
            inputs.iter().map(|(input, class)| (input.to_le_bytes().to_vec().into(), *class)),
        )
    }

    fn names(set: &LabelledSet) -> Vec<Bytes> {
        (0..set.len()).map(|item| set.input(item).unwrap()).collect()
    }

    #[test]
    fn every_class_gives_its_share_and_the_names_tell_what_was_set_aside() {
        let whole = set(&(0..100).map(|n| (n, usize::from(n < 20))).collect::<Vec<_>>());
        let Halves { calibration, accuracy } = split(&whole, Calibration::Part(20)).unwrap();
        let of_one = (0..calibration.len()).filter(|item| calibration.class(*item) == 1).count();
        assert_eq!((calibration.len(), accuracy.len(), of_one), (20, 80, 4));
        assert_eq!(accuracy.name(), "s, without 20 that calibrated");
    }

    #[test]
    fn a_set_that_is_too_small_and_sets_that_overlap_are_told() {
        let few = set(&[(1, 0), (2, 0), (3, 1)]);
        let error = split(&few, Calibration::Part(2)).unwrap_err().to_string();
        assert!(error.contains("3 items") && error.contains("at least 4"), "{error}");
        let error = split(&few, Calibration::Set(set(&[(9, 0), (3, 0)]))).unwrap_err().to_string();
        assert!(error.contains("1 of its inputs"), "{error}");
        assert!(split(&few, Calibration::Set(set(&[(9, 0)]))).is_ok());
    }

    proptest! {
        #[test]
        fn no_input_is_in_both_halves(
            items in prop::collection::vec((0..40_u32, 0..3_usize), 4..80),
            wanted in 1..60_usize,
        ) {
            let whole = set(&items);
            let Ok(Halves { calibration, accuracy }) = split(&whole, Calibration::Part(wanted)) else {
                prop_assert!(items.iter().all(|(input, _)| *input == items[0].0) || items.len() < 80);
                return Ok(());
            };
            let one: BTreeSet<Bytes> = names(&calibration).into_iter().collect();
            prop_assert!(names(&accuracy).iter().all(|input| !one.contains(input)));
            prop_assert_eq!(calibration.len(), wanted.min(items.len() / 4));
            let again = split(&whole, Calibration::Part(wanted)).unwrap();
            prop_assert_eq!(names(&again.calibration), names(&calibration));
        }
    }
}
