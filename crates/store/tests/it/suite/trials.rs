//! Trials of new versions: one of a task at a time, each ended once, and promoted only in place of what it was compared with.

use super::{missing, refused, store_suite};
use crate::backends::Backend;
use crate::samples::{a_task, model, task};
use modelless_store::{
    EndTrial, Error, EventKind, NewModel, NewTask, NewTrial, Signed, Store, TRIALS_AT_ONCE, TRIALS_KEPT,
    Trial, TrialEnded, UnixMicros,
};
use modelless_types::{Micros, ModelId, Share, TaskId, TenantId, TrialId, TrialState};
use std::sync::Arc;
use tokio::task::JoinSet;

store_suite! {
    a_trial_is_told_from_its_beginning_to_its_end,
    a_trial_by_copies_is_told_as_one,
    of_one_task_one_version_is_on_trial_at_a_time,
    a_version_is_promoted_only_in_place_of_the_one_that_it_was_compared_with,
    of_many_who_end_a_trial_one_does,
    a_trial_ends_when_the_default_changes_or_one_of_the_two_is_removed,
    the_oldest_that_ended_are_forgotten,
    no_more_run_at_a_time_than_gateways_tell_of_and_half_of_one_tenant,
}

fn by(who: &str, at: u64) -> Signed {
    Signed { who: who.to_owned(), at: UnixMicros(at) }
}

async fn version(store: &dyn Store, task: TaskId, name: &str, version: u32) -> ModelId {
    let variant = format!("{name}{version}");
    let new = NewModel { version, ..model(task, name, &[&variant]) };
    store.register_model(new).await.unwrap().model.id
}

fn new(candidate: ModelId) -> NewTrial {
    NewTrial {
        candidate,
        share: Share::from_ppm(50_000).unwrap(),
        shadow: false,
        lasts: Micros::from_secs(3_600),
        promote_when_good: true,
        forced: true,
        by: by("ann", 7),
    }
}

fn ended(cause: &str) -> TrialEnded {
    TrialEnded { cause: cause.to_owned(), figures: Some(r#"{"n": 1}"#.to_owned()), by: by("scheduler s", 9) }
}

fn end(trial: TrialId, state: TrialState, catalog: u64) -> EndTrial {
    EndTrial { trial, state, catalog, ended: ended("it fails more often") }
}

async fn running(store: &dyn Store) -> Vec<Trial> {
    store.catalog().await.unwrap().trials
}

async fn default(store: &dyn Store, task: TaskId) -> Vec<u32> {
    let catalog = store.catalog().await.unwrap();
    let defaults = catalog.defaults();
    catalog.models_of(task).filter(|model| defaults.contains(&model.id)).map(|model| model.version).collect()
}

async fn a_trial_is_told_from_its_beginning_to_its_end(backend: Backend) {
    let store = backend.open().await;
    let fashion = a_task(&*store).await.id;
    let (one, two) = (version(&*store, fashion, "m", 1).await, version(&*store, fashion, "m", 2).await);
    let before = store.catalog_version().await.unwrap();
    let trial = store.on_trial().begin_trial(new(two)).await.unwrap();
    assert!(store.catalog_version().await.unwrap() > before, "gateways have to see it");
    assert_eq!((trial.task, trial.candidate, trial.version), (fashion, two, 2));
    assert_eq!((trial.against, trial.against_version, trial.state), (one, 1, TrialState::Running));
    assert!(trial.promote_when_good && trial.forced && trial.ended.is_none());
    assert_eq!(trial.began, by("ann", 7));
    assert_eq!(running(&*store).await, std::slice::from_ref(&trial));

    let before = store.catalog_version().await.unwrap();
    let over = store.on_trial().end_trial(end(trial.id, TrialState::RolledBack, 0)).await.unwrap().unwrap();
    assert!(store.catalog_version().await.unwrap() > before);
    assert_eq!(over.state, TrialState::RolledBack);
    assert_eq!(over.ended, Some(ended("it fails more often")));
    assert_eq!(running(&*store).await, []);
    assert_eq!(store.on_trial().trials(Some(fashion), 9).await.unwrap(), std::slice::from_ref(&over));
    assert_eq!(store.on_trial().trials(None, 9).await.unwrap(), [over]);
    assert_eq!(store.on_trial().trials(Some(TaskId(99)), 9).await.unwrap(), []);
    assert_eq!(default(&*store, fashion).await, [1], "whoever did worse never was the default");
    let told: Vec<_> = store.events(None, 100).await.unwrap().into_iter().map(|event| event.about).collect();
    let of_trials: Vec<_> = told.iter().filter(|event| event.kind == EventKind::Trial).collect();
    assert_eq!(of_trials[0].what, format!("{} began", trial.id));
    assert_eq!(
        of_trials[0].cause,
        "m version 2: it answers 5 % of what pins nothing, compared with version 1"
    );
    assert_eq!(of_trials[1].what, format!("{} rolled back", trial.id));
    assert_eq!((of_trials[1].cause.as_str(), of_trials.len()), ("m version 2: it fails more often", 2));
    assert_eq!(of_trials[1].who, "scheduler s");
}

async fn a_trial_by_copies_is_told_as_one(backend: Backend) {
    let store = backend.open().await;
    let fashion = a_task(&*store).await.id;
    version(&*store, fashion, "m", 1).await;
    let two = version(&*store, fashion, "m", 2).await;
    let trial = store.on_trial().begin_trial(NewTrial { shadow: true, ..new(two) }).await.unwrap();
    assert!(trial.shadow);
    assert_eq!(running(&*store).await, [trial]);
    let told = store.events(None, 100).await.unwrap();
    assert!(told.last().unwrap().about.cause.contains("it is asked copies of 5 %"), "{told:?}");
}

async fn of_one_task_one_version_is_on_trial_at_a_time(backend: Backend) {
    let store = backend.open().await;
    let fashion = a_task(&*store).await.id;
    let other = store.create_task(task("other")).await.unwrap().id;
    let one = version(&*store, fashion, "m", 1).await;
    let two = version(&*store, fashion, "m", 2).await;
    version(&*store, fashion, "n", 1).await;
    let second = version(&*store, fashion, "n", 2).await;
    version(&*store, other, "m", 1).await;
    let elsewhere = version(&*store, other, "m", 2).await;
    let on_trial = store.on_trial();
    refused(on_trial.begin_trial(new(one)).await); // the default
    missing(on_trial.begin_trial(new(ModelId(99))).await);
    refused(on_trial.begin_trial(NewTrial { by: by("tab\t", 1), ..new(two) }).await);
    assert_eq!(on_trial.stop_trial(fashion, ended("nobody")).await.unwrap(), None);
    on_trial.begin_trial(new(two)).await.unwrap();
    for again in [two, second] {
        let error = on_trial.begin_trial(new(again)).await.unwrap_err();
        assert!(matches!(error, Error::TrialRuns { version: 2, .. }), "{error}");
    }
    let there = on_trial.begin_trial(new(elsewhere)).await.unwrap();
    refused(on_trial.stop_trial(fashion, TrialEnded { figures: Some("{".to_owned()), ..ended("x") }).await);
    let stopped = on_trial.stop_trial(fashion, ended("by hand")).await.unwrap().unwrap();
    assert_eq!((stopped.candidate, stopped.state), (two, TrialState::Stopped));
    assert_eq!(running(&*store).await, [there]);
    on_trial.begin_trial(new(second)).await.unwrap();
}

async fn a_version_is_promoted_only_in_place_of_the_one_that_it_was_compared_with(backend: Backend) {
    let store = backend.open().await;
    let fashion = a_task(&*store).await.id;
    version(&*store, fashion, "m", 1).await;
    let two = version(&*store, fashion, "m", 2).await;
    let trial = store.on_trial().begin_trial(new(two)).await.unwrap();
    let read = store.catalog_version().await.unwrap();
    refused(store.on_trial().end_trial(end(trial.id, TrialState::Running, read)).await);
    version(&*store, fashion, "m", 3).await; // the catalogue is another one
    let stale = store.on_trial().end_trial(end(trial.id, TrialState::Promoted, read)).await.unwrap();
    assert_eq!((stale, default(&*store, fashion).await), (None, vec![1]));
    assert_eq!(running(&*store).await.len(), 1, "it goes on, and is looked at again");
    let read = store.catalog_version().await.unwrap();
    let over = store.on_trial().end_trial(end(trial.id, TrialState::Promoted, read)).await.unwrap().unwrap();
    assert_eq!((over.state, default(&*store, fashion).await), (TrialState::Promoted, vec![2]));
    let changes = store.version_changes(fashion, "m", 1).await.unwrap();
    assert_eq!(
        (changes[0].version, changes[0].before, changes[0].by.who.as_str()),
        (2, Some(1), "scheduler s")
    );
    assert_eq!(store.on_trial().end_trial(end(trial.id, TrialState::Stopped, read)).await.unwrap(), None);
}

async fn of_many_who_end_a_trial_one_does(backend: Backend) {
    let store = backend.open().await;
    let fashion = a_task(&*store).await.id;
    version(&*store, fashion, "m", 1).await;
    let two = version(&*store, fashion, "m", 2).await;
    let trial = store.on_trial().begin_trial(new(two)).await.unwrap();
    let read = store.catalog_version().await.unwrap();
    let mut all = JoinSet::new();
    for n in 0..8 {
        let store = Arc::clone(&store);
        all.spawn(async move {
            let end = match n % 3 {
                0 => store.on_trial().stop_trial(fashion, ended("by hand")).await,
                1 => store.on_trial().end_trial(end(trial.id, TrialState::RolledBack, read)).await,
                _ => store.on_trial().end_trial(end(trial.id, TrialState::Promoted, read)).await,
            };
            end.unwrap()
        });
    }
    let ended: Vec<Trial> = all.join_all().await.into_iter().flatten().collect();
    assert_eq!(ended.len(), 1, "{ended:?}");
    assert_eq!(store.on_trial().trials(None, 9).await.unwrap(), ended);
    let promoted = ended[0].state == TrialState::Promoted;
    assert_eq!(default(&*store, fashion).await, [if promoted { 2 } else { 1 }]);
}

async fn a_trial_ends_when_the_default_changes_or_one_of_the_two_is_removed(backend: Backend) {
    let store = backend.open().await;
    let fashion = a_task(&*store).await.id;
    let one = version(&*store, fashion, "m", 1).await;
    version(&*store, fashion, "n", 1).await;
    let other = version(&*store, fashion, "n", 2).await;
    let last = async |expected: &str| {
        assert_eq!(running(&*store).await, []);
        let trial = store.on_trial().trials(Some(fashion), 1).await.unwrap().remove(0);
        let ended = trial.ended.unwrap();
        assert_eq!((trial.state, ended.cause.as_str()), (TrialState::Stopped, expected));
        assert_eq!((ended.figures, ended.by), (None, by("bob", 5)));
    };
    let two = version(&*store, fashion, "m", 2).await;
    store.on_trial().begin_trial(new(two)).await.unwrap();
    store.promote(other, by("bob", 5)).await.unwrap(); // of another name
    store.promote(one, by("bob", 5)).await.unwrap(); // the default already
    assert_eq!(running(&*store).await.len(), 1);
    store.promote(two, by("bob", 5)).await.unwrap();
    last("version 2 is the default now").await;
    store.on_trial().begin_trial(new(one)).await.unwrap();
    store.roll_back(two, by("bob", 5)).await.unwrap();
    last("version 2 was taken back and is not the default any more").await;
    store.on_trial().begin_trial(new(two)).await.unwrap();
    store.remove_model(two, false, by("bob", 5)).await.unwrap();
    last("version 2 was removed").await;
    let three = version(&*store, fashion, "m", 3).await;
    let four = version(&*store, fashion, "m", 4).await;
    store.on_trial().begin_trial(new(three)).await.unwrap();
    store.remove_model(four, false, by("bob", 5)).await.unwrap();
    assert_eq!(running(&*store).await.len(), 1, "it has nothing to do with it");
    let new = NewModel { version: 5, promote: true, by: by("bob", 5), ..model(fashion, "m", &["five"]) };
    store.register_model(new).await.unwrap();
    last("version 5 is the default now").await;
}

async fn the_oldest_that_ended_are_forgotten(backend: Backend) {
    let store = backend.open().await;
    let fashion = a_task(&*store).await.id;
    version(&*store, fashion, "m", 1).await;
    let two = version(&*store, fashion, "m", 2).await;
    let most = usize::try_from(TRIALS_KEPT).unwrap();
    for _ in 0..most + 3 {
        store.on_trial().begin_trial(new(two)).await.unwrap();
        store.on_trial().stop_trial(fashion, ended("again")).await.unwrap().unwrap();
    }
    let last = store.on_trial().begin_trial(new(two)).await.unwrap();
    let kept = store.on_trial().trials(None, u32::MAX).await.unwrap();
    assert_eq!((kept.len(), kept[0].id), (most, last.id));
}

async fn no_more_run_at_a_time_than_gateways_tell_of_and_half_of_one_tenant(backend: Backend) {
    let store = backend.open().await;
    let other = store.access().create_tenant("team-a").await.unwrap().id;
    let mut candidates = Vec::new();
    for n in 0..=TRIALS_AT_ONCE {
        // One more than half are the one's, and half are the other's.
        let tenant = if n <= TRIALS_AT_ONCE / 2 { TenantId::DEFAULT } else { other };
        let new = NewTask { tenant, ..task(&format!("t{n}")) };
        let of = store.create_task(new).await.unwrap().id;
        let mut made = None;
        for version in [1, 2] {
            let variant = format!("m{version}");
            let new = NewModel { version, tenant, ..model(of, "m", &[&variant]) };
            made = Some(store.register_model(new).await.unwrap().model.id);
        }
        candidates.push((of, made.unwrap()));
    }
    let half = TRIALS_AT_ONCE / 2;
    for (_, candidate) in &candidates[..half] {
        store.on_trial().begin_trial(new(*candidate)).await.unwrap();
    }
    let full = |error: Error, most: usize, of: &str| {
        assert!(
            matches!(error, Error::Full { what: "trial", limit, whose } if limit == most && whose == of),
            "{error}"
        );
    };
    let error = store.on_trial().begin_trial(new(candidates[half].1)).await.unwrap_err();
    full(error, half, "of this tenant");
    for (_, candidate) in &candidates[half + 1..] {
        store.on_trial().begin_trial(new(*candidate)).await.unwrap();
    }
    assert_eq!(running(&*store).await.len(), TRIALS_AT_ONCE);
    let error = store.on_trial().begin_trial(new(candidates[half].1)).await.unwrap_err();
    full(error, TRIALS_AT_ONCE, "of all tenants together");
    store.on_trial().stop_trial(candidates[0].0, ended("by hand")).await.unwrap().unwrap();
    store.on_trial().begin_trial(new(candidates[half].1)).await.unwrap();
}
