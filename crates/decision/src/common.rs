//! What the variants of a device have in common: a machine that is slowed slows all of them.
//!
//! Each variant has a correction by its own batches. One that ran seldom has seen little, and its profile fills what is missing, as if
//! nothing had happened to the machine since. Here the others fill it: of a variant's ratio its own batches say a share, and the rest
//! is what the others have in common. With many batches of its own it goes by these alone, with none by the others.
//!
//! What the others have in common is a mean of logarithms, each by the share that its own batches say, drawn towards "nothing
//! happened" as if that had been seen too, and each no further from the middle one than `NEAR`: a variant whose profile is
//! wrong says nothing of the machine, and where three ran it does not count for more than one that is a little off.

use alloc::vec::Vec;

/// That nothing happened weighs as much as this share of a variant: of one that others have nothing to say beside, four fifths are
/// believed.
const NOTHING: f64 = 0.25;
/// So far from the middle one a variant counts, as a logarithm: a factor of 1.28.
const NEAR: f64 = 0.25;
/// The machine is slower or quicker by no more than this.
const MOST: f64 = 3.0;
/// Nor is what single batches say of a variant.
const WILD: f64 = 16.0;
/// One deviation of what is borrowed, as a share of how far that is from the profile: variants are not slowed alike.
const ALIKE: f64 = 0.25;

/// What a variant's own batches say.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Own {
    /// Seen over profiled, where the profile stands for what was not seen.
    pub ratio: f64,
    /// How much of that its own batches say: nothing is 0, all of it 1.
    pub share: f64,
}

impl Own {
    fn share(&self) -> f64 {
        if self.share.is_finite() && self.ratio.is_finite() { self.share.clamp(0.0, 1.0) } else { 0.0 }
    }

    /// What its batches say without the profile's part, as a logarithm.
    fn said(&self) -> f64 {
        let alone = 1.0 + (self.ratio - 1.0) / self.share().max(f64::MIN_POSITIVE);
        libm::log(if alone.is_finite() { alone.clamp(1.0 / WILD, WILD) } else { 1.0 })
    }
}

/// What the variants of a device have in common.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Common {
    middle: f64,
    sum: f64,
    weight: f64,
}

impl Common {
    /// Of those that have seen anything.
    pub fn of(all: impl Iterator<Item = Own>) -> Self {
        let mut said: Vec<(f64, f64)> =
            all.filter(|own| own.share() > 0.0).map(|own| (own.said(), own.share())).collect();
        said.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let weight: f64 = said.iter().map(|(_, share)| share).sum();
        let mut below = 0.0;
        let middle = said.iter().find(|(_, share)| {
            below += share;
            below * 2.0 >= weight
        });
        let middle = middle.map_or(0.0, |(said, _)| *said);
        let sum = said.iter().map(|(said, share)| near(*said, middle) * share).sum();
        Self { middle, sum, weight }
    }

    /// For a variant that is one of them: what the others have in common, over their profiles. One for nothing.
    pub fn without(&self, own: Own) -> f64 {
        let share = own.share();
        let own = if share > 0.0 { near(own.said(), self.middle) * share } else { 0.0 };
        let others = (self.weight - share).max(0.0);
        let ratio = libm::exp((self.sum - own) / (others + NOTHING));
        if ratio.is_finite() { ratio.clamp(1.0 / MOST, MOST) } else { 1.0 }
    }
}

fn near(said: f64, middle: f64) -> f64 {
    said.clamp(middle - NEAR, middle + NEAR)
}

/// What a variant's ratio has more than its own batches and its profile say, where the others of its device have this in common.
pub fn borrowed(own: Own, common: f64) -> f64 {
    (1.0 - own.share()) * (common - 1.0)
}

/// The variance that this brings with it.
pub fn doubt(borrowed: f64) -> f64 {
    (borrowed * ALIKE) * (borrowed * ALIKE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec;

    fn own(ratio: f64, share: f64) -> Own {
        Own { ratio, share }
    }

    /// What one of them is expected to take, over its profile.
    fn ratio(all: &[Own], of: Own) -> f64 {
        of.ratio + borrowed(of, Common::of(all.iter().copied()).without(of))
    }

    #[test]
    fn what_was_not_seen_goes_by_the_others_and_what_was_seen_often_by_itself() {
        let unseen = own(1.0, 0.0);
        for others in [vec![own(1.6, 1.0)], vec![own(1.55, 1.0), own(1.65, 0.95)], vec![own(1.6, 0.9); 9]] {
            let all = [&others[..], &[unseen]].concat();
            let expected = ratio(&all, unseen);
            assert!((1.6 / 1.15..1.6 * 1.15).contains(&expected), "{others:?}: {expected}");
        }
        let seen = own(0.9, 1.0);
        assert!((ratio(&[own(1.6, 1.0), seen], seen) - 0.9).abs() < 1e-12);
        assert!((ratio(&[unseen, unseen], unseen) - 1.0).abs() < 1e-12, "nothing was seen of any");
    }

    #[test]
    fn a_variant_alone_borrows_nothing_from_itself() {
        for share in [0.1, 0.5, 0.9, 1.0] {
            let alone = own(1.0 + 0.8 * share, share);
            assert!((ratio(&[alone], alone) - alone.ratio).abs() < 1e-9, "{share}");
        }
    }

    #[test]
    fn one_whose_profile_is_wrong_is_not_the_machine() {
        let (wrong, unseen) = (own(6.0, 1.0), own(1.0, 0.0));
        let all = [own(1.0, 1.0), own(1.02, 1.0), wrong, unseen];
        assert!(ratio(&all, unseen) < 1.1, "{}", ratio(&all, unseen));
    }

    fn anything() -> impl Strategy<Value = f64> {
        prop_oneof![0.05..10.0_f64, Just(f64::NAN), Just(f64::INFINITY), Just(-3.0), Just(0.0), Just(1e300)]
    }

    proptest! {
        #[test]
        fn whatever_was_seen_the_common_ratio_is_a_figure_within_its_bounds(
            all in prop::collection::vec((anything(), anything()), 0..12),
        ) {
            let all: Vec<Own> = all.into_iter().map(|(ratio, share)| own(ratio, share)).collect();
            let common = Common::of(all.iter().copied());
            for one in all.iter().copied().chain([own(1.0, 0.0)]) {
                let ratio = common.without(one);
                prop_assert!((1.0 / MOST..=MOST).contains(&ratio), "{ratio}");
                prop_assert!(borrowed(one, ratio).is_finite() && doubt(borrowed(one, ratio)) >= 0.0);
            }
        }

        #[test]
        fn the_more_own_batches_the_less_is_borrowed_and_all_of_it_lies_between_the_two(
            others in prop::collection::vec((0.5..2.5_f64, 0.1..1.0_f64), 1..8),
            said in 0.5..2.5_f64,
            share in 0.0..1.0_f64,
            more in 0.0..1.0_f64,
        ) {
            let others: Vec<Own> = others.into_iter().map(|(said, share)| own(1.0 + (said - 1.0) * share, share)).collect();
            let with = |share: f64| {
                let of = own(1.0 + (said - 1.0) * share, share);
                let common = Common::of(others.iter().copied()).without(own(1.0, 0.0));
                (of.ratio + borrowed(of, common), common)
            };
            let (few, common) = with(share);
            let (many, _) = with(share + (1.0 - share) * more);
            prop_assert!((said - many).abs() <= (said - few).abs() + 1e-9);
            prop_assert!(few >= said.min(common) - 1e-9 && few <= said.max(common) + 1e-9);
            prop_assert!((with(1.0).0 - said).abs() < 1e-9);
            prop_assert!((with(0.0).0 - common).abs() < 1e-9);
        }

        #[test]
        fn in_which_order_variants_are_looked_at_does_not_matter(
            all in prop::collection::vec((0.3..4.0_f64, 0.01..1.0_f64), 1..10),
        ) {
            let all: Vec<Own> = all.into_iter().map(|(ratio, share)| own(ratio, share)).collect();
            let forwards = Common::of(all.iter().copied()).without(own(1.0, 0.0));
            let backwards = Common::of(all.iter().rev().copied()).without(own(1.0, 0.0));
            prop_assert!((forwards - backwards).abs() < 1e-9);
        }
    }
}
