//! A node that is told to end gives back what it has not begun.

use super::{Bed, LONG, Setup, bed_with, config, distinct};
use crate::Config;
use modelless_types::{Bytes, Micros, QueryKey, Refusal};
use modelless_wire::Body;
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::time::timeout;

/// A node to which every input is large.
async fn bed(config: Config) -> Bed {
    bed_with(Setup { config: Config { decode_inline: Bytes(0), ..config }, ..Setup::default() }).await
}

async fn ended(bed: &mut Bed) {
    timeout(LONG, &mut bed.service).await.expect("it ends in time").expect("it does not panic");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_inputs_that_wait_to_be_decoded_are_given_back_by_a_drain() {
    let mut bed = bed(config()).await;
    let decoders = Arc::clone(&bed.handle.core().decoders);
    let all = u32::try_from(decoders.available_permits()).expect("few cores");
    let busy = decoders.acquire_many_owned(all).await.expect("not closed");
    for key in 0..20 {
        bed.ask(key);
    }
    bed.stop.cancel();
    let mut back = BTreeSet::new();
    for _ in 0..20 {
        let heard = bed.hear().await;
        let Body::HandedBack { key, why: Refusal::Draining } = heard else {
            panic!("not given back: {heard:?}")
        };
        back.insert(key.0);
    }
    assert_eq!(back, (0..20).collect());
    // One that was on its way when the drain began.
    bed.ask(20);
    let heard = bed.hear().await;
    assert!(matches!(heard, Body::HandedBack { key: QueryKey(20), .. }), "{heard:?}");
    drop(busy);
    ended(&mut bed).await;
    assert!(bed.heard.try_recv().is_err(), "nothing is said twice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_inputs_that_are_being_decoded_while_a_node_drains_are_answered_or_given_back() {
    for round in 0..20 {
        let mut bed = bed(config()).await;
        for key in 0..100 {
            bed.ask(key);
            if key == 5 * round {
                bed.stop.cancel();
            }
        }
        let mut told = BTreeSet::new();
        for _ in 0..100 {
            match bed.hear().await {
                Body::Answer { key, .. } | Body::HandedBack { key, .. } => {
                    assert!(told.insert(key), "{key:?}");
                }
                other @ (Body::Refused { .. }
                | Body::BadInput { .. }
                | Body::Declined { .. }
                | Body::Claim { .. }
                | Body::Report) => panic!("{other:?}"),
            }
        }
        ended(&mut bed).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_a_drains_deadline_what_runs_is_refused_and_what_never_ran_is_given_back() {
    let mut bed =
        bed(Config { drain: Micros::from_millis(300), hung_after: Micros::from_secs(1), ..config() }).await;
    bed.ask(0);
    assert_eq!(bed.wrong_of(1).await, 0);
    bed.hang();
    for (key, bound) in [(1, 1), (2, 2)] {
        bed.send(key, LONG, bed.all(), distinct(key));
        while bed.handle.batches().len() < bound {
            tokio::task::yield_now().await;
        }
    }
    bed.stop.cancel();
    let mut heard = [bed.hear().await, bed.hear().await];
    heard.sort_by_key(|body| matches!(body, Body::HandedBack { .. }));
    assert!(
        matches!(
            &heard,
            [
                Body::Refused { key: QueryKey(1), refusal: Refusal::Draining },
                Body::HandedBack { key: QueryKey(2), .. }
            ]
        ),
        "{heard:?}"
    );
    ended(&mut bed).await;
}
