//! A variant that computes elsewhere than on a lane, on another server or on a GPU: what its batches cost is the price of that.

use super::echo;
use super::{Bed, LONG, Setup, bed_with, config, distinct};
use crate::{Config, RemoteServer};
use modelless_engine::fake::{FakeModel, Fault};
use modelless_types::{CostPer1k, Prefer, PricePerHour, Processor, ReplicaState};
use modelless_wire::{Answer, Body, Gpu, Hardware, NodeLink, NodeStatus, ToNode};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// `good` is here and takes 200 us; `fast` is on the server and takes 50.
async fn with_server_at(price: Option<u64>) -> Bed {
    let server = RemoteServer { price: price.map(PricePerHour), ..RemoteServer::default() };
    let remotes = [("10.0.0.7:8000".to_owned(), server)].into();
    let config = Config { remotes, price: PricePerHour(50_000), ..config() };
    bed_with(Setup { config, remote: true, ..Setup::default() }).await
}

/// Both in memory.
async fn resident(bed: &mut Bed) {
    for variant in &bed.variants {
        bed.handle.send(ToNode::Wake { task: bed.task, ordinal: variant.ordinal });
    }
    let resident = |status: &NodeStatus| {
        status.replicas.iter().filter(|replica| replica.state == ReplicaState::Active).count() == 2
    };
    let mut status = bed.handle.status();
    timeout(LONG, status.wait_for(resident)).await.expect("in time").expect("still there");
}

async fn answer(bed: &mut Bed, key: u64, prefer: Prefer) -> Answer {
    let ToNode::Query(mut frame) = bed.frame(key, LONG, bed.all(), distinct(key)) else {
        panic!("a query is a query")
    };
    frame.prefer = prefer;
    bed.handle.send(ToNode::Query(frame));
    match bed.hear().await {
        Body::Answer { answer, .. } => *answer,
        other @ (Body::Refused { .. }
        | Body::BadInput { .. }
        | Body::HandedBack { .. }
        | Body::Declined { .. }
        | Body::Claim { .. }
        | Body::Report) => {
            panic!("{other:?}")
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_wants_the_cheapest_gets_it_by_the_prices_of_lane_and_server() {
    for (price, chosen, each) in [
        // 200 us of 0.05 dollars are dearer than 50 us of 0.1, and cheaper than 50 us of 1.
        (Some(100_000), 1, 100_000),
        (Some(1_000_000), 0, 50_000),
        // Nothing said: what its lane costs.
        (None, 1, 50_000),
    ] {
        let mut bed = with_server_at(price).await;
        let offered = {
            let offers = bed.handle.status().borrow().info.offers.clone();
            let price = |ordinal| offers.iter().find(|offer| offer.ordinal == ordinal).map(|o| o.run.price);
            (price(bed.variants[0].ordinal), price(bed.variants[1].ordinal))
        };
        assert_eq!(offered, (Some(None), Some(price.map(PricePerHour))));
        resident(&mut bed).await;
        let answer = answer(&mut bed, 1, Prefer::Cost).await;
        assert_eq!(answer.variant, bed.variants[chosen].id, "at {price:?}");
        // A thousand queries of one each cost a thousand times its share of an hour, which is what was asked for.
        let (cost, ran) = (answer.cost, answer.at_node);
        assert!(cost <= CostPer1k::of_batch(ran, PricePerHour(each), 1), "{cost:?}");
        assert!(cost.0 > 0);
        bed.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gpu_costs_what_its_name_or_who_pays_for_it_says_and_not_what_a_lane_does() {
    let gpus = vec![Gpu { name: "NVIDIA L4".into(), memory: None }];
    for (declared, expected) in [(vec![], 804_800), (vec![PricePerHour(100_000)], 100_000)] {
        let hardware = Hardware { gpus: gpus.clone(), ..Hardware::default() };
        let config = Config { hardware, gpu_prices: declared, price: PricePerHour(50_000), ..config() };
        let mut bed = bed_with(Setup { config, processor: Processor::Cuda(0), ..Setup::default() }).await;
        let offers = bed.handle.status().borrow().info.offers.clone();
        let price = |ordinal| offers.iter().find(|offer| offer.ordinal == ordinal).map(|o| o.run.price);
        assert_eq!(price(bed.variants[0].ordinal), Some(None), "the CPU's is its lane's");
        assert_eq!(price(bed.variants[1].ordinal), Some(Some(PricePerHour(expected))));
        resident(&mut bed).await;
        // Four times as fast: cheaper only where its hour costs less than four of a lane's.
        let chosen = usize::from(expected < 4 * 50_000);
        assert_eq!(answer(&mut bed, 1, Prefer::Cost).await.variant, bed.variants[chosen].id);
        bed.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_asks_while_a_server_is_down_is_answered_by_what_is_here() {
    let mut bed = with_server_at(None).await;
    resident(&mut bed).await;
    let (here, there) = (bed.variants[0].id, bed.variants[1].id);
    assert_eq!(answer(&mut bed, 1, Prefer::Latency).await.variant, there, "while it is up");
    let down = |_, _| Some(Fault::Unreachable("the server cannot be reached".into()));
    bed.engine.behave(there, FakeModel { faults: Arc::new(down), ..echo() });
    let rests = |status: &NodeStatus| {
        !status.replicas.iter().any(|r| r.variant == there && r.state == ReplicaState::Active)
    };
    let mut status = bed.handle.status();
    for key in 2..100 {
        assert_eq!(answer(&mut bed, key, Prefer::Latency).await.variant, here);
    }
    timeout(LONG, status.wait_for(rests)).await.expect("in time").expect("still there");
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_a_server_computes_keeps_nobody_from_the_only_lane() {
    let mut bed = with_server_at(None).await;
    resident(&mut bed).await;
    let [here, there] = [0, 1].map(|at| (bed.variants[at].id, bed.variants[at].ordinal));
    let slow: Arc<dyn Fn(u32) -> Duration + Send + Sync> = Arc::new(|_| Duration::from_secs(2));
    bed.engine.behave(there.0, FakeModel { latency: slow, ..echo() });
    bed.send(1, LONG, [there.1].into_iter().collect(), distinct(1));
    for key in 2..7 {
        bed.send(key, LONG, [here.1].into_iter().collect(), distinct(key));
    }
    let mut answered = Vec::new();
    while answered.len() < 6 {
        match bed.hear().await {
            Body::Answer { key, .. } => answered.push(key.0),
            other @ (Body::Refused { .. }
            | Body::BadInput { .. }
            | Body::HandedBack { .. }
            | Body::Declined { .. }
            | Body::Claim { .. }
            | Body::Report) => {
                panic!("{other:?}")
            }
        }
    }
    assert_eq!(
        answered.pop(),
        Some(1),
        "the others, which came later, were answered while it was computed: {answered:?}"
    );
    bed.end().await;
}
