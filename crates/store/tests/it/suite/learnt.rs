//! What live traffic says of what was measured.

use super::{missing, refused, store_suite};
use crate::backends::Backend;
use crate::samples::{CPU, model, profile, task};
use modelless_store::{
    Error, Feedback, FlagAction, Kept, LIVE_MEMORY, LiveAccuracy, Measuring, NewModel, Signed, StaleProfile,
    Store, TaskChange, UnixMicros, Verdict,
};
use modelless_types::{Accuracy, AccuracyMeasure, DeclaredRule, Profile, Provenance, VariantId};

store_suite! {
    a_profile_is_marked_until_it_is_measured_again_or_its_node_takes_that_back,
    what_is_marked_may_be_measured_although_there_is_a_profile,
    a_verdict_counts_once_for_each_query_and_the_last_one_stands,
    what_was_said_goes_with_its_model_and_with_time,
    a_flag_is_part_of_the_catalog_and_counts_for_floors_where_the_task_says_so,
    what_was_only_declared_counts_for_floors_while_nothing_was_measured_or_where_the_task_says_so,
    verdicts_profiles_and_promotions_side_by_side_never_wait_for_each_other_for_ever,
    a_flag_is_taken_back_by_whoever_says_why_and_all_is_counted_anew,
    another_measured_accuracy_and_a_promotion_have_verdicts_counted_anew,
    a_flag_outlasts_the_measurement_that_completes_a_coarse_one,
}

fn by(node: &str, variant: VariantId) -> StaleProfile {
    StaleProfile {
        variant,
        device_class: CPU.to_owned(),
        node: node.to_owned(),
        ratio_ppm: 2_000_000,
        since: UnixMicros(7),
    }
}

/// A model with one variant that has a profile.
async fn measured(store: &dyn Store) -> VariantId {
    let fashion = store.create_task(task("fashion")).await.unwrap();
    let variant = store.register_model(model(fashion.id, "m", &["v"])).await.unwrap().variants[0].id;
    store.put_profile(variant, profile(CPU)).await.unwrap();
    variant
}

async fn a_profile_is_marked_until_it_is_measured_again_or_its_node_takes_that_back(backend: Backend) {
    let store = backend.open().await;
    let variant = measured(&*store).await;
    let elsewhere = StaleProfile { device_class: "cpu:other:1".to_owned(), ..by("one", variant) };
    assert!(!store.mark_stale(elsewhere).await.unwrap(), "there is no such profile");
    let estimate = Profile { latency_provenance: Provenance::Estimated, ..profile("cpu:third:1") };
    store.put_profile(variant, estimate).await.unwrap();
    let third = StaleProfile { device_class: "cpu:third:1".to_owned(), ..by("one", variant) };
    assert!(!store.mark_stale(third).await.unwrap(), "an estimate waits to be measured anyway");
    let before = store.catalog_version().await.unwrap();
    assert!(store.mark_stale(by("one", variant)).await.unwrap());
    let again = StaleProfile { ratio_ppm: 3_000_000, since: UnixMicros(9), ..by("two", variant) };
    assert!(store.mark_stale(again.clone()).await.unwrap());
    let catalog = store.catalog().await.unwrap();
    assert!(catalog.version > before);
    assert_eq!(catalog.stale, [by("one", variant), again.clone()]);
    assert_eq!(catalog.stale(variant, CPU), Some(&again), "of the two the one that is further off");
    let once_more = StaleProfile { ratio_ppm: 2_500_000, since: UnixMicros(11), ..again };
    assert!(store.mark_stale(once_more.clone()).await.unwrap());
    let two = StaleProfile { since: UnixMicros(9), ..once_more };
    assert_eq!(
        store.catalog().await.unwrap().stale,
        [by("one", variant), two.clone()],
        "it is marked since then"
    );
    assert!(!store.clear_stale(variant, CPU, "three").await.unwrap(), "it never said so");
    assert!(store.clear_stale(variant, CPU, "one").await.unwrap());
    assert_eq!(store.catalog().await.unwrap().stale, [two], "what the other node says stands");
    assert!(store.clear_stale(variant, CPU, "two").await.unwrap());
    assert_eq!(store.catalog().await.unwrap().stale, []);
    store.mark_stale(by("two", variant)).await.unwrap();
    store.mark_stale(by("one", variant)).await.unwrap();
    store.put_profile(variant, profile(CPU)).await.unwrap();
    assert_eq!(store.catalog().await.unwrap().stale, []);
    refused(store.mark_stale(StaleProfile { node: String::new(), ..by("one", variant) }).await);
}

async fn what_is_marked_may_be_measured_although_there_is_a_profile(backend: Backend) {
    let store = backend.open().await;
    let variant = measured(&*store).await;
    let wanted = Measuring {
        variant,
        device_class: CPU.to_owned(),
        node: "one".to_owned(),
        until: UnixMicros(100),
        progress: "loading".to_owned(),
        failed: None,
        attempts: 0,
    };
    assert_eq!(store.claim_measuring(wanted.clone(), UnixMicros(1)).await.unwrap(), None);
    store.mark_stale(by("one", variant)).await.unwrap();
    assert_eq!(store.claim_measuring(wanted.clone(), UnixMicros(1)).await.unwrap(), Some(wanted.clone()));
    store.mark_stale(by("two", variant)).await.unwrap();
    store.clear_stale(variant, CPU, "one").await.unwrap();
    let measured = store.measurings().await.unwrap();
    assert_eq!(measured, std::slice::from_ref(&wanted), "another node still says that it is off");
    store.clear_stale(variant, CPU, "two").await.unwrap();
    assert_eq!(store.measurings().await.unwrap(), []);
    assert_eq!(store.claim_measuring(wanted, UnixMicros(1)).await.unwrap(), None);
}

fn said(query: &str, variant: VariantId, correct: bool) -> Feedback {
    Feedback { query: query.to_owned(), variant, answered: UnixMicros(1_000), correct }
}

async fn a_verdict_counts_once_for_each_query_and_the_last_one_stands(backend: Backend) {
    let store = backend.open().await;
    let variant = measured(&*store).await;
    let live = |correct, wrong| LiveAccuracy { variant, correct, wrong, flagged: None, round: 0 };
    let version = store.catalog_version().await.unwrap();
    let given = vec![
        said("a", variant, true),
        said("b", variant, false),
        said("a", variant, true),
        said("b", variant, true),
        said("c", VariantId(999), true),
    ];
    let stored = store.put_feedback(given, UnixMicros(0)).await.unwrap();
    let wanted = [
        Verdict { kept: Kept::New, live: live(1, 0) },
        Verdict { kept: Kept::New, live: live(1, 1) },
        Verdict { kept: Kept::Same, live: live(1, 1) },
        Verdict { kept: Kept::Changed, live: live(2, 0) },
    ];
    assert_eq!(stored[..4], wanted);
    assert_eq!(stored[4].kept, Kept::Gone);
    assert_eq!(store.live_accuracies().await.unwrap(), [live(2, 0)]);
    assert_eq!(store.catalog_version().await.unwrap(), version, "verdicts have nobody read everything anew");
    refused(store.put_feedback(vec![said("", variant, true)], UnixMicros(0)).await);
    drop(store);
    let store = backend.open().await;
    assert_eq!(store.live_accuracies().await.unwrap(), [live(2, 0)]);
    let again = store.put_feedback(vec![said("a", variant, true)], UnixMicros(0)).await.unwrap();
    assert_eq!(again[0].kept, Kept::Same);
}

async fn what_was_said_goes_with_its_model_and_with_time(backend: Backend) {
    let store = backend.open().await;
    let variant = measured(&*store).await;
    store.put_feedback(vec![said("a", variant, true)], UnixMicros(0)).await.unwrap();
    // Its query is forgotten, so it would count again; whoever asks refuses queries that old.
    let later = store.put_feedback(vec![said("a", variant, true)], UnixMicros(1_001)).await.unwrap();
    assert_eq!((later[0].kept, later[0].live.correct), (Kept::New, 2));
    let many: Vec<Feedback> = (0..300).map(|at| said(&format!("q{at}"), variant, at % 3 > 0)).collect();
    store.put_feedback(many, UnixMicros(0)).await.unwrap();
    let live = store.live_accuracies().await.unwrap();
    assert_eq!((live[0].correct, live[0].wrong), (202, 100));
    assert!(live[0].correct + live[0].wrong < LIVE_MEMORY);
    store.mark_stale(by("one", variant)).await.unwrap();
    let catalog = store.catalog().await.unwrap();
    store.remove_model(catalog.models[0].id, false, Signed::default()).await.unwrap();
    let catalog = store.catalog().await.unwrap();
    assert_eq!((catalog.stale, catalog.live), (Vec::new(), Vec::new()));
    assert_eq!(store.live_accuracies().await.unwrap(), []);
}

/// As a gateway does it, with what it read.
async fn flag(store: &dyn Store, variant: VariantId, flagged: Option<Accuracy>) -> bool {
    let known = store.live_accuracies().await.unwrap();
    let live = known.into_iter().find(|live| live.variant == variant).unwrap();
    store.flag_accuracy(LiveAccuracy { flagged, ..live }, UnixMicros(5), "1 of 10 right").await.unwrap()
}

async fn a_flag_is_part_of_the_catalog_and_counts_for_floors_where_the_task_says_so(backend: Backend) {
    let store = backend.open().await;
    let variant = measured(&*store).await;
    let nothing = LiveAccuracy { variant, correct: 0, wrong: 0, flagged: None, round: 0 };
    assert!(!store.flag_accuracy(nothing, UnixMicros(1), "x").await.unwrap(), "nothing was said of it");
    store.put_feedback(vec![said("a", variant, false)], UnixMicros(0)).await.unwrap();
    let before = store.catalog().await.unwrap();
    let floor = |catalog: &modelless_store::Catalog| {
        let known = &catalog.variants[0];
        catalog.floor_accuracy(&catalog.tasks[0], variant, &known.profiles[0])
    };
    let low = Accuracy::from_ppm(123_456).unwrap();
    assert!(flag(&*store, variant, Some(low)).await);
    let after = store.catalog().await.unwrap();
    assert!(after.version > before.version);
    assert_eq!(after.live_accuracy(variant).unwrap().flagged, Some(low));
    assert_eq!(after.tasks[0].live_accuracy, modelless_types::LiveRule::Floors);
    assert_eq!(floor(&after), low);
    assert!(floor(&before) > low);
    let mut shown = after.clone();
    shown.tasks[0].live_accuracy = modelless_types::LiveRule::Shown;
    assert_eq!(floor(&shown), floor(&before));
    assert!(flag(&*store, variant, None).await);
    assert_eq!(floor(&store.catalog().await.unwrap()), floor(&before));
}

async fn a_flag_is_taken_back_by_whoever_says_why_and_all_is_counted_anew(backend: Backend) {
    let store = backend.open().await;
    let variant = measured(&*store).await;
    let ann = || Signed { who: "ann".to_owned(), at: UnixMicros(9) };
    missing(store.clear_flag(VariantId(999), ann(), "why not").await);
    store
        .put_feedback(vec![said("a", variant, false), said("b", variant, true)], UnixMicros(0))
        .await
        .unwrap();
    let not_flagged = store.clear_flag(variant, ann(), "why not").await.unwrap_err();
    assert!(matches!(not_flagged, Error::NotFlagged { .. }), "{not_flagged}");
    let before = store.live_accuracies().await.unwrap()[0];
    let low = Accuracy::from_ppm(100_000).unwrap();
    assert!(flag(&*store, variant, Some(low)).await);
    assert!(!flag(&*store, variant, Some(low)).await, "that is said already");
    refused(store.clear_flag(variant, ann(), " ").await);
    let version = store.catalog_version().await.unwrap();
    let cleared = store.clear_flag(variant, ann(), "labels were mixed up").await.unwrap();
    assert!(store.catalog_version().await.unwrap() > version);
    assert_eq!((cleared.action, cleared.correct, cleared.wrong), (FlagAction::Cleared, 1, 1));
    let live = store.live_accuracies().await.unwrap()[0];
    assert_eq!(live, LiveAccuracy { variant, correct: 0, wrong: 0, flagged: None, round: 1 });
    assert_eq!(store.catalog().await.unwrap().live, [live]);
    // Whoever read what was said before may not flag it any more.
    let late = LiveAccuracy { flagged: Some(low), ..before };
    assert!(!store.flag_accuracy(late, UnixMicros(10), "1 of 10 right").await.unwrap());
    // A verdict of before may be said again or changed, and is not counted; new ones are.
    let given = vec![said("a", variant, false), said("a", variant, true), said("c", variant, true)];
    let stored = store.put_feedback(given, UnixMicros(0)).await.unwrap();
    let kept: Vec<Kept> = stored.iter().map(|verdict| verdict.kept).collect();
    assert_eq!(kept, [Kept::Same, Kept::Changed, Kept::New]);
    assert_eq!((stored[2].live.correct, stored[2].live.wrong), (1, 0));
    let history = store.flag_changes(variant, 10).await.unwrap();
    let told: Vec<_> =
        history.iter().map(|c| (c.action, c.reason.as_str(), c.who.as_str(), c.value)).collect();
    assert_eq!(
        told,
        [
            (FlagAction::Cleared, "labels were mixed up", "ann", None),
            (FlagAction::Flagged, "1 of 10 right", "", Some(low)),
        ]
    );
    assert_eq!((history[0].at, history[0].seq > history[1].seq), (Some(UnixMicros(9)), true));
    assert_eq!(store.flag_changes(variant, 1).await.unwrap(), history[..1]);
}

async fn another_measured_accuracy_and_a_promotion_have_verdicts_counted_anew(backend: Backend) {
    let store = backend.open().await;
    let variant = measured(&*store).await;
    let low = Some(Accuracy::from_ppm(100_000).unwrap());
    store.put_feedback(vec![said("a", variant, false)], UnixMicros(0)).await.unwrap();
    assert!(flag(&*store, variant, low).await);
    let flagged = async || store.live_accuracies().await.unwrap()[0].flagged;
    // Measured again with the same result, on another class, or only declared: nothing new is known.
    store.put_profile(variant, profile(CPU)).await.unwrap();
    store.put_profile(variant, profile("cpu:other:1")).await.unwrap();
    assert_eq!(flagged().await, low);
    let mut other = profile(CPU);
    other.accuracy.value = other.accuracy.low;
    other.accuracy.samples = 1_000;
    "another/sample".clone_into(&mut other.accuracy.set);
    store.put_profile(variant, other.clone()).await.unwrap();
    assert_eq!(flagged().await, low, "the intervals overlap");
    other.accuracy.high = Accuracy::from_ppm(800_000).unwrap();
    (other.accuracy.value, other.accuracy.low) = (other.accuracy.high, other.accuracy.high);
    store.put_profile(variant, other).await.unwrap();
    assert_eq!(flagged().await, None);
    assert_eq!(store.live_accuracies().await.unwrap()[0].wrong, 0);

    let task = store.catalog().await.unwrap().tasks[0].id;
    let second = NewModel { version: 2, ..model(task, "m", &["v2"]) };
    let second = store.register_model(second).await.unwrap();
    let candidate = second.variants[0].id;
    store.put_feedback(vec![said("b", candidate, false)], UnixMicros(0)).await.unwrap();
    assert!(flag(&*store, candidate, low).await);
    let by = Signed { who: "ann".to_owned(), at: UnixMicros(9) };
    store.promote(second.model.id, by.clone()).await.unwrap();
    let history = store.flag_changes(candidate, 10).await.unwrap();
    let told: Vec<_> = history.iter().map(|change| (change.action, change.who.as_str())).collect();
    assert_eq!(told, [(FlagAction::Promoted, "ann"), (FlagAction::Flagged, "")]);
    let live = store.live_accuracies().await.unwrap();
    assert!(live.iter().all(|live| live.flagged.is_none() && live.correct + live.wrong == 0), "{live:?}");
    assert_eq!(store.flag_changes(variant, 10).await.unwrap()[0].action, FlagAction::Remeasured);
    // To and fro between what both were defaults says nothing new of either.
    store
        .put_feedback(vec![said("c", variant, false), said("d", candidate, false)], UnixMicros(0))
        .await
        .unwrap();
    assert!(flag(&*store, variant, low).await && flag(&*store, candidate, low).await);
    let first = store.catalog().await.unwrap().models[0].id;
    store.promote(first, by.clone()).await.unwrap();
    store.roll_back(first, by.clone()).await.unwrap();
    store.roll_back(second.model.id, by.clone()).await.unwrap_err();
    store.promote(first, by.clone()).await.unwrap();
    store.promote(second.model.id, by.clone()).await.unwrap();
    let live = store.live_accuracies().await.unwrap();
    assert!(live.iter().all(|live| live.flagged == low && live.wrong == 1), "{live:?}");
    store.remove_model(second.model.id, true, by).await.unwrap();
    assert_eq!(store.flag_changes(candidate, 10).await.unwrap(), []);
}

async fn a_flag_outlasts_the_measurement_that_completes_a_coarse_one(backend: Backend) {
    let store = backend.open().await;
    let variant = measured(&*store).await;
    let mut coarse = profile(CPU);
    (coarse.detail.coarse, coarse.detail.part_of_set) = (true, true);
    "fashion-mnist/sample (first 32)".clone_into(&mut coarse.accuracy.set);
    (coarse.accuracy.value, coarse.accuracy.high, coarse.accuracy.samples) =
        (Accuracy::ONE, Accuracy::ONE, 32);
    // Even so far off that the intervals have nothing in common.
    coarse.accuracy.low = Accuracy::from_ppm(990_000).unwrap();
    store.put_profile(variant, coarse).await.unwrap();
    let low = Some(Accuracy::from_ppm(100_000).unwrap());
    store.put_feedback(vec![said("a", variant, false)], UnixMicros(0)).await.unwrap();
    assert!(flag(&*store, variant, low).await);
    store.put_profile(variant, profile(CPU)).await.unwrap();
    let live = store.live_accuracies().await.unwrap()[0];
    assert_eq!((live.flagged, live.wrong, live.round), (low, 1, 0));
}

async fn what_was_only_declared_counts_for_floors_while_nothing_was_measured_or_where_the_task_says_so(
    backend: Backend,
) {
    let store = backend.open().await;
    let fashion = store.create_task(task("fashion")).await.unwrap();
    let said = |class: &str, ppm| {
        let mut profile = profile(class);
        let value = Accuracy::from_ppm(ppm).unwrap();
        let from = Provenance::Declared;
        profile.accuracy = AccuracyMeasure {
            value,
            low: value,
            high: value,
            samples: 0,
            provenance: from,
            ..profile.accuracy
        };
        profile
    };
    let mut new = model(fashion.id, "m", &["declared"]);
    new.variants[0].profiles = vec![said(CPU, 990_000)];
    let declared = store.register_model(new).await.unwrap().variants[0].id;
    let floor = async |variant: VariantId, class: &str| {
        let catalog = store.catalog().await.unwrap();
        let known = catalog.variants.iter().find(|known| known.id == variant).unwrap();
        let floor = catalog.floor(&catalog.tasks[0], variant, known.profile_on(class).unwrap());
        (floor.value.ppm(), floor.from, floor.counts)
    };
    assert_eq!(floor(declared, CPU).await, (990_000, Provenance::Declared, true), "nothing else is known");
    assert_eq!(store.catalog().await.unwrap().measured(declared), None);
    // A candidate answers nobody, so it takes nothing from what does.
    let second = NewModel { version: 2, ..model(fashion.id, "m", &["measured"]) };
    let second = store.register_model(second).await.unwrap();
    assert_eq!(floor(declared, CPU).await.0, 990_000);
    let other = store.register_model(model(fashion.id, "other", &["other"])).await.unwrap();
    assert_eq!(floor(declared, CPU).await, (0, Provenance::Declared, false));
    let change = |rule| TaskChange { declared_accuracy: Some(rule), ..TaskChange::default() };
    store.change_task(fashion.id, change(DeclaredRule::Floors)).await.unwrap();
    assert_eq!(floor(declared, CPU).await, (990_000, Provenance::Declared, true));
    store.change_task(fashion.id, change(DeclaredRule::UnlessMeasured)).await.unwrap();
    store.remove_model(other.model.id, true, Signed::default()).await.unwrap();
    assert_eq!(floor(declared, CPU).await.0, 990_000, "nothing that answers was measured any more");
    // What was measured anywhere goes before what was declared.
    let measured = second.variants[0].id;
    store.put_profile(measured, said("cpu:other:1", 990_000)).await.unwrap();
    let lower_end = profile(CPU).accuracy.low.ppm();
    assert_eq!(floor(measured, "cpu:other:1").await, (lower_end, Provenance::Measured, true));
}

async fn verdicts_profiles_and_promotions_side_by_side_never_wait_for_each_other_for_ever(backend: Backend) {
    let store = backend.open().await;
    let variant = measured(&*store).await;
    let task = store.catalog().await.unwrap().tasks[0].id;
    let models = [2, 3].map(|version| NewModel { version, ..model(task, "m", &[&format!("v{version}")]) });
    let mut known = Vec::new();
    for model in models {
        known.push(store.register_model(model).await.unwrap());
    }
    let verdicts = async |of: VariantId, at: u32| {
        for round in 0..25_u32 {
            let given = (0..4).map(|n| said(&format!("{at} {round} {n}"), of, n > 0)).collect();
            store.put_feedback(given, UnixMicros(0)).await.unwrap();
        }
    };
    let profiles = async |of: VariantId| {
        for round in 0..25_u32 {
            let mut other = profile(CPU);
            other.accuracy.samples += u64::from(round % 2);
            store.put_profile(of, other).await.unwrap();
        }
    };
    let promotions = async {
        for round in 0..24 {
            store.promote(known[round % 2].model.id, Signed::default()).await.unwrap();
        }
    };
    let candidate = known[0].variants[0].id;
    tokio::join!(
        verdicts(variant, 0),
        verdicts(candidate, 1),
        verdicts(variant, 2),
        profiles(variant),
        profiles(candidate),
        promotions
    );
    store.remove_model(known[0].model.id, true, Signed::default()).await.unwrap();
}
