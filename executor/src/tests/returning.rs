//! Queries that may be given back, and when they are told so.

use super::{LONG, Setup, bed_with, config, distinct};
use crate::Config;
use modelless_types::{Bytes, QueryKey};
use modelless_wire::{Body, NodeLink, ToNode};
use std::sync::Arc;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_that_is_told_while_it_is_decoded_that_it_may_go_back_does_when_its_lane_is_held_up() {
    let config = Config { decode_inline: Bytes(0), ..config() };
    // It goes back when it could just be answered elsewhere, which leaves this test a tenth of a second.
    let mut bed = bed_with(Setup { config, slow: 2_000.0, ..Setup::default() }).await;
    bed.ask(0);
    assert_eq!(bed.wrong_of(1).await, 0);
    bed.hang();
    for (key, bound) in [(1, 1), (2, 2)] {
        bed.send(key, LONG, bed.all(), distinct(key));
        while bed.handle.batches().len() < bound {
            tokio::task::yield_now().await;
        }
    }
    let decoders = Arc::clone(&bed.handle.core().decoders);
    let all = u32::try_from(decoders.available_permits()).expect("few cores");
    let busy = decoders.acquire_many_owned(all).await.expect("not closed");
    bed.send(3, Duration::from_millis(500), bed.all(), distinct(3));
    bed.handle.send(ToNode::MayReturn { key: QueryKey(3) });
    drop(busy);
    let heard = bed.hear().await;
    assert!(matches!(heard, Body::HandedBack { key: QueryKey(3), .. }), "{heard:?}");
}
