//! Keeps a connection to every node that is there.

use modelless_drive::Clock;
use modelless_live::{Member, Role};
use modelless_types::NodeId;
use modelless_wire::{Address, Config, Dial, GatewayLink, Key, NodeLink, NodeStatus, Shelf, keep};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Told of every connection that stands.
pub(super) type OnJoined = Arc<dyn Fn(watch::Receiver<NodeStatus>, Arc<dyn NodeLink>) + Send + Sync>;

/// Who connects, and to whom what is heard goes.
#[derive(Clone)]
pub(super) struct Side {
    pub(super) name: String,
    /// Whether it sends queries.
    pub(super) queries: bool,
    pub(super) seed: u64,
    pub(super) clock: Clock,
    pub(super) key: Option<Key>,
    pub(super) shelf: Option<Arc<dyn Shelf>>,
    pub(super) gateway: Arc<dyn GatewayLink>,
    pub(super) joined: OnJoined,
}

impl Side {
    async fn keep(self, address: Address, node: Option<NodeId>, stop: CancellationToken) {
        let Self { name, queries, seed, clock, key, shelf, gateway, joined } = self;
        // Each node at its own pace, so that they are not all looked for at once.
        let seed = seed ^ node.map_or(0, |node| u64::from(node.0) << 32);
        let config = Config { key, shelf, ..Config::new(move || clock.now()) };
        let dial = Dial { address, node, name, queries, seed, config };
        keep(dial, gateway, move |status, link| joined(status, link), stop).await;
    }
}

/// Nodes that were told by address, and those that `members` tells, until `stop`.
pub(super) async fn keep_all(
    side: Side,
    told: Vec<Address>,
    mut members: watch::Receiver<Vec<Member>>,
    stop: CancellationToken,
) {
    let mut tasks = JoinSet::new();
    for address in told {
        tasks.spawn(side.clone().keep(address, None, stop.clone()));
    }
    let mut kept: BTreeMap<NodeId, (Address, CancellationToken)> = BTreeMap::new();
    loop {
        let wanted = addresses(&members.borrow_and_update());
        kept.retain(|node, (address, end)| {
            let stays = wanted.get(node) == Some(address);
            if !stays {
                end.cancel();
            }
            stays
        });
        for (node, address) in wanted {
            kept.entry(node).or_insert_with(|| {
                let end = stop.child_token();
                tasks.spawn(side.clone().keep(address.clone(), Some(node), end.clone()));
                (address, end)
            });
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Some(_) = tasks.join_next(), if !tasks.is_empty() => {}
            changed = members.changed() => if changed.is_err() {
                break;
            },
        }
    }
    while tasks.join_next().await.is_some() {}
}

fn addresses(members: &[Member]) -> BTreeMap<NodeId, Address> {
    let nodes = members.iter().filter(|member| member.role == Role::Node);
    nodes
        .filter_map(|member| {
            let address = member.address.as_ref()?;
            match address.parse() {
                Ok(address) => Some((member.node?, address)),
                Err(why) => {
                    tracing::warn!(name = member.name, why, "a node tells an address that cannot be used");
                    None
                }
            }
        })
        .collect()
}
