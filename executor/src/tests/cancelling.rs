//! Clients that go away while their batch stands behind another in its runner.

use super::profile;
use super::real::{Node, Served, file};
use modelless_types::{DType, Engine as Kind, QueryKey, VariantSettings};
use modelless_wire::{Body, NodeLink, ToNode};

/// Takes as long as its input says, and gives it back.
const SLOW: &str = "crates/engine/tests/models/slow.onnx";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_its_client_left_before_its_turn_is_never_run_though_its_runner_has_it() {
    let served = Served {
        model: file(SLOW),
        input: ("rounds", DType::Int64, &[]),
        output: ("done", DType::Int64, &[]),
        variants: vec![(VariantSettings::new(Kind::Onnx, "fp32", 1), profile(900_000, 1_000.0))],
    };
    let mut node = Node::start(1, served).await;
    // How many rounds take long enough for the second to get behind the first?
    let (mut rounds, mut key) = (1_000_i64, 0);
    loop {
        node.ask(key, rounds.to_le_bytes().to_vec());
        let Body::Answer { answer, .. } = node.hear().await else { panic!("not answered") };
        if answer.run.0 > 300_000 {
            break;
        }
        (rounds, key) = (rounds * 2, key + 1);
    }
    node.ask(100, rounds.to_le_bytes().to_vec());
    // It would run until it is taken for hung, and nobody would be answered by this runner again.
    node.ask(101, i64::MAX.to_le_bytes().to_vec());
    while node.handle.core().driver.look(|worker, _| worker.load().running) < 2 {
        tokio::task::yield_now().await;
    }
    node.handle.send(ToNode::Cancel { key: QueryKey(101) });
    node.ask(102, 5_i64.to_le_bytes().to_vec());
    for wanted in [100, 102] {
        let heard = node.hear().await;
        assert!(matches!(&heard, Body::Answer { key: QueryKey(key), .. } if *key == wanted), "{heard:?}");
    }
    let loads = node.handle.status().borrow().replicas[0].loads.count;
    assert_eq!(loads, 1, "its runner did not have to be ended");
    node.end().await;
}
