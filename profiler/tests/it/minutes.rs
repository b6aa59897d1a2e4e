//! One bad minute on a machine that is otherwise steady, with a clock of its own.

use crate::fake::{FIRST, echo, measured, package, profiler};
use crate::registrar;
use modelless_engine::FakeEngine;
use modelless_engine::fake::FakeModel;
use modelless_profiler::{Host, Profiler, Registrar};
use modelless_types::Profile;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, advance};

/// How much slower the machine is at a moment, after its start.
type Slower = fn(Duration) -> f64;

/// A machine on which everything takes that much longer: batches, and work that is always the same.
fn machine(slower: Slower) -> (Arc<FakeEngine>, Host) {
    let start = Instant::now();
    let engine = Arc::new(FakeEngine::new());
    let latency =
        move |batch: u32| Duration::from_millis(10).mul_f64(f64::from(batch) * slower(start.elapsed()));
    engine.behave(FIRST, FakeModel { latency: Arc::new(latency), ..echo() });
    let host = Host::new(move || Duration::from_micros(500).mul_f64(slower(start.elapsed())), || None);
    (engine, host)
}

fn alone_ms(profile: &Profile) -> f64 {
    profile.latency[0].mean_us / 1e3
}

#[tokio::test(start_paused = true)]
async fn what_was_measured_in_a_bad_minute_says_so_and_the_steadier_of_two_stays_until_a_good_one() {
    let slower: Slower = |since| match since.as_secs() {
        1_000..2_000 => 1.4,
        2_000..3_000 => 1.8,
        _ => 1.0,
    };
    let start = Instant::now();
    let (engine, host) = machine(slower);
    let on = |class: &str| {
        Profiler::new(Arc::<FakeEngine>::clone(&engine), profiler(&engine).config().clone(), class, "again")
            .on(host.clone())
    };
    let (registrar, _artefacts) = registrar(on("cpu:first:1"));
    let (_folder, package) = package();
    registrar.package(&package, &mut |_, _| ()).await.unwrap();
    let catalog = registrar.store.catalog().await.unwrap();
    assert_eq!(catalog.variants[0].profiles[0].detail.unsteady, None);

    let again = async |at: u64| {
        advance(Duration::from_secs(at).saturating_sub(start.elapsed())).await;
        let catalog = registrar.store.catalog().await.unwrap();
        let (task, model, variant) = (&catalog.tasks[0], &catalog.models[0], &catalog.variants[0]);
        let set = package.open_set(task).unwrap();
        // Each begins to count variants anew, so that the engine knows this one.
        let registrar = Registrar { profiler: on("cpu:second:1"), ..registrar.clone() };
        registrar.again((task, model, variant), (set.as_ref(), None), &mut |_, _| ()).await.unwrap();
        let catalog = registrar.store.catalog().await.unwrap();
        catalog.variants[0].profile_on("cpu:second:1").unwrap().clone()
    };
    let first = again(1_000).await;
    let seen = first.detail.unsteady.unwrap();
    assert!((seen.same_work - 0.4).abs() < 0.01 && seen.sizes < 0.01, "even, but slow: {seen:?}");
    assert!((alone_ms(&first) - 14.0).abs() < 0.1 && first.is_provisional(), "{first:?}");

    let second = again(2_000).await;
    assert!((alone_ms(&second) - 14.0).abs() < 0.1, "the worse minute does not stand: {second:?}");
    let seen = second.detail.unsteady.unwrap();
    assert_eq!((seen.tries, seen.left), (2, 2));

    let third = again(3_000).await;
    assert!((alone_ms(&third) - 10.0).abs() < 0.1, "{third:?}");
    assert!(third.detail.unsteady.is_none() && !third.is_provisional());
}

#[tokio::test(start_paused = true)]
async fn a_minute_that_becomes_bad_while_it_is_measured_is_seen_by_how_series_compare() {
    // The first series of every size is quick, and the two others are slow, so the middle one is.
    let (engine, _) = machine(|since| if since < Duration::from_secs(3) { 1.0 } else { 1.5 });
    // Nothing but the batches tells of it.
    let host = Host::new(|| Duration::from_micros(500), || None);
    let profile = measured(&profiler(&engine).on(host), &mut |_, _| ()).await.unwrap();
    let seen = profile.detail.unsteady.expect("half of it was slow");
    assert!((seen.sizes - 0.5).abs() < 0.05 && seen.same_work < 0.01, "{seen:?}");

    let (engine, host) = machine(|_| 1.0);
    let steady = measured(&profiler(&engine).on(host), &mut |_, _| ()).await.unwrap();
    assert_eq!(steady.detail.unsteady, None);
}
