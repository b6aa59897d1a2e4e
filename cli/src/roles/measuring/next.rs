//! What a node measures next, and when it tries again what failed.

use crate::up::measure::is_measured;
use modelless_decision::transfer::{self, Pair};
use modelless_store::{Catalog, Measuring, UnixMicros};
use modelless_types::{Profile, Variant, VariantId};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// After a first failure; doubled with each further one.
const RETRY: Duration = Duration::from_secs(2);
const LONGEST_RETRY: Duration = Duration::from_mins(10);

/// What was measured in an unsteady minute is not measured again in the same one; and twice as long is waited each time that it
/// was unsteady again.
const ANOTHER_MINUTE: Duration = Duration::from_mins(1);

/// What was measured here and is to be measured again: what is off, then what is coarse, and then what was measured in an unsteady
/// minute.
pub(super) fn to_do_again<'a>(catalog: &'a Catalog, class: &str) -> Vec<&'a Variant> {
    let off = |variant: &&Variant| catalog.stale(variant.id, class).is_some();
    let coarse = |variant: &&Variant| variant.profile_on(class).is_some_and(Profile::is_coarse);
    let known = || catalog.variants.iter().filter(|variant| is_measured(variant, class));
    let coarse = known().filter(|variant| coarse(variant) && !off(variant));
    let unsteady = known().filter(|variant| !off(variant) && unsteady(variant, class).is_some());
    known().filter(off).chain(coarse).chain(unsteady).collect()
}

/// How often it was measured, where an unsteady minute is all that speaks for measuring it again.
fn unsteady(variant: &Variant, class: &str) -> Option<u32> {
    let provisional = variant.profile_on(class).filter(|profile| profile.is_provisional());
    provisional.filter(|profile| !profile.is_coarse())?.detail.unsteady.map(|unsteady| unsteady.tries)
}

/// Until when variants wait for another minute. Begins when they are first seen; a node that starts anew begins anew.
#[derive(Default)]
pub(super) struct Rests(BTreeMap<VariantId, (u32, Instant)>);

impl Rests {
    /// Whether a variant still waits.
    pub(super) fn holds(&mut self, catalog: &Catalog, variant: &Variant, class: &str, now: Instant) -> bool {
        let waits = if catalog.stale(variant.id, class).is_some() { None } else { unsteady(variant, class) };
        let Some(tries) = waits else {
            self.0.remove(&variant.id);
            return false;
        };
        let rest = ANOTHER_MINUTE.saturating_mul(1 << tries.saturating_sub(1).min(16));
        let known = self.0.entry(variant.id).or_insert((tries, now + rest));
        if known.0 != tries {
            *known = (tries, now + rest);
        }
        now < known.1
    }

    /// Those that are gone or well need no place any longer.
    pub(super) fn keep(&mut self, again: &[&Variant]) {
        self.0.retain(|known, _| again.iter().any(|variant| variant.id == *known));
    }
}

/// How long one item takes on another class; what is known of none comes last.
pub(super) fn elsewhere_us(variant: &Variant) -> f64 {
    let known = variant.profiles.iter().filter(|profile| !profile.is_estimated());
    let first = known.filter_map(|profile| profile.latency.first().map(|point| point.mean_us));
    first.fold(f64::INFINITY, f64::min)
}

/// What may be assumed of variants that have no profile on a class, each by the other class with which most are shared.
pub(super) fn estimates<'a>(catalog: &'a Catalog, class: &str) -> Vec<(&'a Variant, Profile)> {
    let unknown = catalog.variants.iter().filter(|variant| variant.profile_on(class).is_none());
    let pairs = |other: &str| {
        let both = catalog.variants.iter().filter_map(|variant| {
            let measured = |class| variant.profile_on(class).filter(|profile| !profile.is_estimated());
            Some(Pair { settings: &variant.settings, known: measured(other)?, here: measured(class)? })
        });
        both.collect::<Vec<_>>()
    };
    let estimate = |variant: &'a Variant| {
        let known = variant.profiles.iter().filter(|profile| !profile.is_estimated());
        let most =
            known.map(|profile| (profile, pairs(&profile.device_class))).max_by_key(|(_, pairs)| pairs.len());
        let (known, pairs) = most?;
        Some((variant, transfer::profile(&variant.settings, known, class, &pairs)?))
    };
    unknown.filter_map(estimate).collect()
}

/// Whether it is another's, or was tried too short a while ago.
pub(super) fn waits(before: &Measuring, name: &str, now: UnixMicros) -> bool {
    before.until > now && (before.node != name || before.failed.is_some())
}

pub(super) fn retry(attempts: u32) -> Duration {
    RETRY.saturating_mul(1 << attempts.min(16)).min(LONGEST_RETRY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_types::{Bytes, Engine, ModelId, Provenance, Unsteady, VariantSettings};

    fn of_profiles(ordinal: u8, name: &str, precision: &str, profiles: Vec<Profile>) -> Variant {
        Variant {
            id: VariantId(ordinal.into()),
            model: ModelId(1),
            ordinal,
            name: name.to_owned(),
            settings: VariantSettings::new(Engine::Onnx, precision, 8),
            artefact: "ab".repeat(32),
            artefact_bytes: Bytes(1),
            profiles,
        }
    }

    #[test]
    fn what_another_has_or_what_failed_a_moment_ago_waits() {
        let by = |node: &str, failed: Option<&str>| Measuring {
            variant: VariantId(1),
            device_class: "cpu:a:1".to_owned(),
            node: node.to_owned(),
            until: UnixMicros(100),
            progress: String::new(),
            failed: failed.map(str::to_owned),
            attempts: 0,
        };
        let waits = |node, failed, now| waits(&by(node, failed), "me", UnixMicros(now));
        assert!(
            waits("other", None, 99) && waits("other", Some("broken"), 99) && waits("me", Some("broken"), 99)
        );
        // What a node left when it was killed is its own again.
        assert!(!waits("me", None, 99));
        assert!(!waits("other", None, 100) && !waits("me", Some("broken"), 100));
    }

    #[test]
    fn what_was_measured_on_two_classes_tells_what_to_assume_of_the_others_and_nothing_else_does() {
        let on = |class: &str, us: f64| {
            let mut profile = crate::client::profile::file::tests::entry("x").profile;
            class.clone_into(&mut profile.device_class);
            profile.latency.truncate(1);
            profile.latency[0].mean_us = us;
            profile
        };
        let variant = |ordinal: u8, name: &str, precision: &str, us: f64| {
            of_profiles(ordinal, name, precision, vec![on("old", us)])
        };
        let variants = vec![
            variant(0, "slow", "fp32", 9_000.0),
            variant(1, "quick", "fp32", 100.0),
            variant(2, "eight", "int8", 50.0),
        ];
        let mut catalog = Catalog { variants, ..Catalog::default() };
        assert!(estimates(&catalog, "new").is_empty(), "nothing was measured on both");
        catalog.variants[1].profiles.push(on("new", 300.0));
        let assumed = estimates(&catalog, "new");
        let names: Vec<&str> = assumed.iter().map(|(variant, _)| variant.name.as_str()).collect();
        assert_eq!(names, ["slow"], "what computes in integers is not assumed");
        assert!((assumed[0].1.latency[0].mean_us - 27_000.0).abs() < 1.0 && assumed[0].1.is_estimated());
        let mut by_speed: Vec<&Variant> = catalog.variants.iter().collect();
        by_speed.sort_by(|a, b| elsewhere_us(a).total_cmp(&elsewhere_us(b)));
        assert_eq!(by_speed[0].name, "eight");
    }

    #[test]
    fn what_is_off_is_measured_again_and_then_what_is_coarse_and_no_estimate() {
        use modelless_store::StaleProfile;
        let variant = |id: u8, coarse: bool, provenance: Provenance| {
            let mut profile = crate::client::profile::file::tests::entry("x").profile;
            "here".clone_into(&mut profile.device_class);
            profile.detail.coarse = coarse;
            profile.latency_provenance = provenance;
            of_profiles(id, &format!("v{id}"), "fp32", vec![profile])
        };
        let variants = vec![
            variant(0, true, Provenance::Measured),
            variant(1, false, Provenance::Measured),
            variant(2, true, Provenance::Estimated),
            variant(3, true, Provenance::Measured),
        ];
        let stale = |variant: u32| StaleProfile {
            variant: VariantId(variant),
            device_class: "here".to_owned(),
            node: "one".to_owned(),
            ratio_ppm: 2_000_000,
            since: UnixMicros(1),
        };
        let catalog = Catalog { variants, stale: vec![stale(3)], ..Catalog::default() };
        let names: Vec<&str> = to_do_again(&catalog, "here").iter().map(|v| v.name.as_str()).collect();
        assert_eq!(names, ["v3", "v0"]);
        assert!(to_do_again(&catalog, "elsewhere").is_empty());
    }

    #[test]
    fn what_was_measured_in_an_unsteady_minute_waits_for_another_and_longer_each_time_and_not_for_ever() {
        use modelless_store::StaleProfile;
        let variant = |id: u8, tries: u32, left: u32| {
            let mut profile = crate::client::profile::file::tests::entry("x").profile;
            "here".clone_into(&mut profile.device_class);
            profile.detail.unsteady = Some(Unsteady { sizes: 0.4, tries, left, ..Unsteady::default() });
            of_profiles(id, &format!("v{id}"), "fp32", vec![profile])
        };
        let variants = vec![variant(0, 1, 3), variant(1, 2, 2), variant(2, 4, 0)];
        let mut catalog = Catalog { variants, ..Catalog::default() };
        let names = |catalog: &Catalog| -> Vec<String> {
            to_do_again(catalog, "here").iter().map(|v| v.name.clone()).collect()
        };
        assert_eq!(names(&catalog), ["v0", "v1"], "the third was tried often enough");
        let (mut rests, start) = (Rests::default(), Instant::now());
        let mut held = |catalog: &Catalog, at: Duration| {
            let again = to_do_again(catalog, "here");
            rests.keep(&again);
            again.iter().map(|v| rests.holds(catalog, v, "here", start + at)).collect::<Vec<_>>()
        };
        let secs = Duration::from_secs;
        assert_eq!(held(&catalog, secs(0)), [true, true]);
        assert_eq!(held(&catalog, secs(59)), [true, true]);
        assert_eq!(held(&catalog, secs(60)), [false, true]);
        catalog.variants[0] = variant(0, 2, 2);
        assert_eq!(held(&catalog, secs(61)), [true, true], "it was unsteady again");
        assert_eq!(held(&catalog, secs(120)), [true, false]);
        // What is off does not wait.
        catalog.stale.push(StaleProfile {
            variant: VariantId(0),
            device_class: "here".to_owned(),
            node: "one".to_owned(),
            ratio_ppm: 2_000_000,
            since: UnixMicros(1),
        });
        assert_eq!(names(&catalog), ["v0", "v1"]);
        assert_eq!(held(&catalog, secs(121)), [false, false]);
    }

    #[test]
    fn what_fails_again_and_again_is_tried_ever_more_rarely() {
        assert_eq!((retry(0), retry(3), retry(u32::MAX)), (RETRY, RETRY * 8, LONGEST_RETRY));
    }
}
