//! What live traffic says of profiles reaches the store, sooner or later, and outlives the process that said it.

use super::stalled::Stalls;
use super::{Bed, DEVICE_CLASS, LONG, Setup, bed_with, config};
use crate::Config;
use modelless_store::{StaleProfile, Store, UnixMicros};
use modelless_types::{Micros, VariantId};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::watch;
use tokio::time::timeout;

pub(super) fn by(node: &str, variant: VariantId) -> StaleProfile {
    StaleProfile {
        variant,
        device_class: DEVICE_CLASS.to_owned(),
        node: node.to_owned(),
        ratio_ppm: 2_000_000,
        since: UnixMicros(7),
    }
}

/// Waits until the store tells so of who marked what.
async fn told(store: &dyn Store, wanted: &[(VariantId, &str)]) {
    let all = async || {
        let catalog = store.catalog().await.expect("a catalogue");
        catalog.stale.iter().map(|stale| (stale.variant, stale.node.clone())).collect::<Vec<_>>()
    };
    let wanted: Vec<_> = wanted.iter().map(|(variant, node)| (*variant, (*node).to_owned())).collect();
    timeout(LONG, async {
        while all().await != wanted {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("it is written in time");
}

fn drifted(bed: &Bed) -> Vec<bool> {
    let of = |variant: &modelless_types::Variant| {
        bed.handle.core().driver.look(|worker, _| worker.has_drifted(variant.id))
    };
    bed.variants.iter().map(of).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mark_waits_for_a_store_that_is_away_and_the_last_word_counts() {
    let (stall, stalled) = watch::channel(false);
    let store = Arc::new(Stalls::new(stalled));
    let config = Config { store_within: Micros::from_millis(20), ..config() };
    let shared: Arc<dyn Store> = Arc::<Stalls>::clone(&store);
    let bed = bed_with(Setup { store: Some(shared), config, ..Setup::default() }).await;
    let [good, fast] = [&bed.variants[0], &bed.variants[1]].map(|variant| variant.id);
    stall.send_replace(true);
    bed.handle.note_drift(good, Some(1_900_000));
    timeout(LONG, async {
        // Tried, given up, and tried again.
        while store.marks.load(Ordering::Relaxed) < 3 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("it is tried again");
    // It kept to its profile again, was off again, and the other one was off for a while only.
    for (variant, said) in [(good, None), (fast, Some(3_000_000)), (good, Some(2_000_000)), (fast, None)] {
        bed.handle.note_drift(variant, said);
    }
    stall.send_replace(false);
    let name = bed.handle.config().name.clone();
    told(&*store, &[(good, &name)]).await;
    assert_eq!(store.catalog().await.expect("a catalogue").stale[0].ratio_ppm, 2_000_000);
    bed.handle.note_drift(good, None);
    told(&*store, &[]).await;
    // Whatever is said last is written before it ends.
    bed.handle.note_drift(fast, Some(2_000_000));
    let store = bed.end().await;
    told(&*store, &[(fast, &name)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_starts_again_knows_what_it_had_marked_and_nothing_of_others() {
    let own = Setup { config: Config { name: "one".to_owned(), ..config() }, ..Setup::default() };
    let bed = bed_with(Setup { marked_by: &["one", "two"], ..own }).await;
    assert_eq!(drifted(&bed), [true, false]);
    let variant = bed.variants[0].id;
    bed.handle.note_drift(variant, None);
    told(&*bed.store, &[(variant, "two")]).await;
    bed.end().await;
    let own = Setup { config: Config { name: "one".to_owned(), ..config() }, ..Setup::default() };
    let bed = bed_with(Setup { marked_by: &["two"], ..own }).await;
    assert_eq!(drifted(&bed), [false, false]);
    bed.end().await;
}
