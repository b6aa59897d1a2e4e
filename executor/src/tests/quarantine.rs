//! Crashes: who pays for them, and who does not.

use super::*;
use modelless_decision::worker::Reason;
use modelless_engine::fake::Faults;
use std::sync::atomic::{AtomicU32, Ordering};

/// The input of one of these queries takes its runner down.
fn poisoned(keys: &'static [u64]) -> FakeModel {
    let marks: Vec<[u8; 4]> =
        keys.iter().map(|key| f32::from(u16::try_from(*key).expect("few queries")).to_le_bytes()).collect();
    let poison = move |item: &[u8]| {
        let hit = marks.iter().any(|mark| item.starts_with(mark));
        hit.then(|| Fault::Crash("poison".into()))
    };
    FakeModel { poison: Arc::new(poison), ..echo() }
}

/// What became of every query: answered with its own answer, and why; or refused.
async fn fates(bed: &mut Bed, n: u64) -> Vec<(u64, Result<Reason, Refusal>)> {
    let mut fates = Vec::new();
    while fates.len() < usize::try_from(n).expect("few") {
        match bed.hear().await {
            Body::Answer { key, answer } => {
                assert!(is_of(&answer.body, key.0), "{key} got {:?}", answer.body);
                fates.push((key.0, Ok(answer.why)));
            }
            Body::Refused { key, refusal } => fates.push((key.0, Err(refusal))),
            Body::Report => {}
            other @ (Body::BadInput { .. }
            | Body::HandedBack { .. }
            | Body::Declined { .. }
            | Body::Claim { .. }) => panic!("neither: {other:?}"),
        }
    }
    fates
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_poison_input_among_many_costs_exactly_one_query() {
    let mut bed = bed(None).await;
    bed.behave(&poisoned(&[137]));
    for key in 0..400 {
        bed.ask(key);
    }
    let fates = fates(&mut bed, 400).await;
    let refused: Vec<_> = fates.iter().filter(|(_, fate)| fate.is_err()).collect();
    assert!(matches!(&refused[..], [(137, Err(Refusal::InputCrashed { .. }))]), "{refused:?}");
    // Its model goes on as if nothing had been.
    for key in 400..500 {
        bed.ask(key);
    }
    let after = self::fates(&mut bed, 100).await;
    assert!(after.iter().all(|(_, fate)| fate.is_ok()), "{after:?}");
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_poison_inputs_cost_as_many_queries_and_never_the_model() {
    let mut bed = bed(None).await;
    let poison: &[u64] = &[3, 50, 51, 99, 150, 151, 152, 153, 170, 199];
    bed.behave(&poisoned(poison));
    for key in 0..200 {
        bed.ask(key);
        // Spread out, so that each is pinned before the next: none counts against the model.
        if key % 10 == 9 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    let fates = fates(&mut bed, 200).await;
    let mut crashed: Vec<u64> = fates
        .iter()
        .filter(|(_, fate)| matches!(fate, Err(Refusal::InputCrashed { .. })))
        .map(|(key, _)| *key)
        .collect();
    crashed.sort_unstable();
    assert_eq!(crashed, poison);
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runner_that_dies_of_itself_costs_nobody_and_who_was_in_it_is_told_so() {
    let mut bed = bed(None).await;
    // Three times in all, and so fewer than would open the circuit.
    let left = Arc::new(AtomicU32::new(3));
    let die = move |_: u64, items: u32| {
        let again = |left: u32| (items > 1).then(|| left.checked_sub(1)).flatten();
        let died = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, again);
        died.is_ok().then(|| Fault::Crash("made to".into()))
    };
    let die: Faults = Arc::new(die);
    for variant in &bed.variants {
        bed.engine.behave(variant.id, FakeModel { faults: Arc::clone(&die), ..echo() });
    }
    for key in 0..200 {
        bed.ask(key);
    }
    let fates = fates(&mut bed, 200).await;
    assert!(fates.iter().all(|(_, fate)| fate.is_ok()), "{fates:?}");
    assert!(fates.iter().any(|(_, fate)| *fate == Ok(Reason::Rerun)), "{fates:?}");
    let store = bed.end().await;
    let history = store.transitions(None, 1_000).await.expect("a history");
    let failed = |t: &&modelless_store::Transition| t.change.to == ReplicaState::Failed;
    assert!(history.iter().filter(failed).any(|t| t.change.cause.contains("made to")), "{history:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_crashes_alone_as_well_is_refused_with_what_was_said_there() {
    let mut bed = bed(None).await;
    for variant in &bed.variants {
        let always = |_, _| Some(Fault::Crash("first".into()));
        bed.engine.behave(variant.id, FakeModel { faults: Arc::new(always), ..echo() });
        let again = |number, _| (number == 0).then_some(Fault::Crash("second".into()));
        bed.ward.behave(variant.id, FakeModel { faults: Arc::new(again), ..echo() });
    }
    bed.ask(1);
    let fates = self::fates(&mut bed, 1).await;
    assert!(
        matches!(&fates[..], [(1, Err(Refusal::InputCrashed { why }))] if why.contains("second")),
        "{fates:?}"
    );
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_input_is_not_blamed_where_somebody_else_killed_its_quarantine_runner_once() {
    for (times, answered) in [(1, true), (2, false)] {
        let mut bed = bed(None).await;
        for variant in &bed.variants {
            let die = |number, _| (number == 0).then(|| Fault::Crash("made to".into()));
            bed.engine.behave(variant.id, FakeModel { faults: Arc::new(die), ..echo() });
            let left = AtomicU32::new(times);
            let kill = move |_, _| {
                let again = |left: u32| left.checked_sub(1);
                let killed = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, again);
                killed.is_ok().then(|| Fault::Kill("by signal 9".into()))
            };
            bed.ward.behave(variant.id, FakeModel { faults: Arc::new(kill), ..echo() });
        }
        bed.ask(1);
        let fates = self::fates(&mut bed, 1).await;
        let blamed = matches!(&fates[..], [(1, Err(Refusal::InputCrashed { .. }))]);
        assert_eq!((fates[0].1.is_ok(), blamed), (answered, !answered), "{times}: {fates:?}");
        bed.end().await;
    }
}
