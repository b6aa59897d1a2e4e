//! Artefacts that a node fetches from gateways.

use super::{FakeGateway, FakeNode, NODE, PATIENCE, config, dial, status};
use crate::seam::{GatewayLink, NodeLink};
use crate::sim::Host;
use crate::{Address, Config, Dial, Fetcher, Listener, Piece, Shelf, keep, limits, serve_node};
use bytes::Bytes as Buffer;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// One artefact under one name.
struct One(&'static str, Vec<u8>);

impl Shelf for One {
    fn piece(&self, sha256: &str, offset: u64, most: usize) -> io::Result<Option<Piece>> {
        if sha256 != self.0 {
            return Ok(None);
        }
        let rest = &self.1[usize::try_from(offset).expect("small").min(self.1.len())..];
        let bytes = Buffer::copy_from_slice(&rest[..rest.len().min(most)]);
        Ok(Some(Piece { total: self.1.len() as u64, bytes }))
    }
}

struct World {
    fetcher: Fetcher,
    tasks: JoinSet<()>,
    stop: CancellationToken,
    /// While it is there, so is the node.
    _status: watch::Sender<crate::NodeStatus>,
}

/// A node, and gateways with these shelves that are connected to it.
async fn world(shelves: Vec<Option<Arc<dyn Shelf>>>) -> World {
    let address = Address::Sim(Host::new(9, Duration::from_micros(100)));
    let listener = Listener::bind(&address).await.expect("a free address");
    let (told, watched) = watch::channel(status());
    let server = serve_node(listener, Arc::new(FakeNode::default()) as Arc<dyn NodeLink>, watched, config());
    let (fetcher, stop, mut tasks) = (server.fetcher(), CancellationToken::new(), JoinSet::new());
    tasks.spawn(server.run(stop.clone()));
    for shelf in shelves {
        let gateway: Arc<dyn GatewayLink> = Arc::new(FakeGateway::default());
        let dial = Dial { config: Config { shelf, ..config() }, node: Some(NODE), ..dial(&address) };
        let (sender, mut joined) = watch::channel(false);
        let held = Arc::clone(&gateway);
        let note = move |_, _| {
            let _ = &held; // as long as the connection is kept
            sender.send_replace(true);
        };
        tasks.spawn(keep(dial, gateway, note, stop.clone()));
        timeout(PATIENCE, joined.wait_for(|joined| *joined)).await.expect("in time").expect("a connection");
    }
    World { fetcher, tasks, stop, _status: told }
}

async fn whole(fetcher: &Fetcher, sha256: &str) -> Option<Vec<u8>> {
    for source in fetcher.sources() {
        let mut all = Vec::new();
        while let Some(piece) = source.piece(sha256, all.len() as u64).await {
            all.extend_from_slice(&piece.bytes);
            assert!(piece.bytes.len() <= limits::PIECE && !piece.bytes.is_empty());
            if all.len() as u64 == piece.total {
                return Some(all);
            }
        }
    }
    None
}

#[tokio::test]
async fn what_a_node_lacks_comes_whole_from_whichever_gateway_has_it() {
    let bytes: Vec<u8> = (0..limits::PIECE * 2 + 77).map(|n| u8::try_from(n % 251).expect("small")).collect();
    let shelf: Arc<dyn Shelf> = Arc::new(One("here", bytes.clone()));
    let mut world = world(vec![None, Some(Arc::new(One("other", vec![1]))), Some(shelf)]).await;
    let fetched = timeout(PATIENCE, whole(&world.fetcher, "here")).await.expect("in time");
    assert!(fetched == Some(bytes), "it came changed");
    assert!(timeout(PATIENCE, whole(&world.fetcher, "nowhere")).await.expect("in time").is_none());
    let last = world.fetcher.sources().pop().expect("a gateway");
    world.stop.cancel();
    while world.tasks.join_next().await.is_some() {}
    assert!(last.piece("here", 0).await.is_none(), "it is gone");
    assert!(world.fetcher.sources().is_empty(), "no gateway is left");
}
