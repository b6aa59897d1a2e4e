//! Keeps a connection to every node that is there.

use super::habits::Habits;
use modelless_drive::Clock;
use modelless_live::{Member, Role};
use modelless_types::NodeId;
use modelless_wire::{
    Address, Config, Dial, GatewayLink, Key, NodeLink, NodeStatus, Received, Shelf, TlsConnect, keep,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

/// How often it is asked whether the connections of absent nodes still stand.
const LOOK: Duration = Duration::from_secs(1);

/// Told of every connection that stands.
pub(super) type OnJoined = Arc<dyn Fn(watch::Receiver<NodeStatus>, Arc<dyn NodeLink>) + Send + Sync>;

/// Who connects, and to whom what is heard goes.
#[derive(Clone)]
pub(super) struct Side {
    pub(super) name: String,
    pub(super) habits: Habits,
    /// Whether it sends queries.
    pub(super) queries: bool,
    pub(super) seed: u64,
    pub(super) clock: Clock,
    pub(super) key: Option<Key>,
    pub(super) connect: Option<TlsConnect>,
    pub(super) shelf: Option<Arc<dyn Shelf>>,
    /// What all of its connections hold together of what they receive.
    pub(super) received: Arc<Received>,
    /// The store that nodes must serve as well.
    pub(super) store: String,
    pub(super) gateway: Arc<dyn GatewayLink>,
    pub(super) joined: OnJoined,
}

impl Side {
    async fn keep(self, address: Address, node: Option<NodeId>, stop: CancellationToken) {
        let Self {
            name,
            habits,
            queries,
            seed,
            clock,
            key,
            connect,
            shelf,
            received,
            store,
            gateway,
            joined,
        } = self;
        // Each node at its own pace, so that they are not all looked for at once.
        let seed = seed ^ node.map_or(0, |node| u64::from(node.0) << 32);
        let config = habits.of(Config::new(move || clock.now()));
        let config = Config { key, connect, shelf, received, store: Some(store), ..config };
        let dial = Dial { address, node, name, queries, seed, config };
        keep(dial, gateway, move |status, link| joined(status, link), stop).await;
    }
}

/// Nodes that were told by address, and those that `members` tells, until `stop`. One that is told and announces itself, or is told
/// twice, has one connection: over two it would be told of credit twice, and what it says would come in no order.
pub(super) async fn keep_all(
    side: Side,
    told: Vec<Address>,
    mut members: watch::Receiver<Vec<Member>>,
    stop: CancellationToken,
) {
    let mut tasks = JoinSet::new();
    let joined = Arc::new(Notify::new());
    let mut told: Vec<Told> = told.into_iter().map(Told::new).collect();
    let mut kept: BTreeMap<NodeId, Kept> = BTreeMap::new();
    let mut look = interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        for at in look_for(&mut told) {
            let (end, sessions) = (stop.child_token(), Sessions::default());
            let side = sessions.noted(side.clone(), Some(Arc::clone(&joined)));
            tasks.spawn(side.keep(told[at].address.clone(), None, end.clone()));
            (told[at].end, told[at].sessions) = (Some(end), sessions);
        }
        let mut wanted = addresses(&members.borrow_and_update());
        wanted.retain(|node, address| !told.iter().any(|told| told.is(*node, address)));
        kept.retain(|node, kept| {
            let twice = told.iter().any(|told| told.is(*node, &kept.address));
            let stays = !twice && stays(&kept.address, wanted.get(node), kept.sessions.stands().is_some());
            if !stays {
                kept.end.cancel();
            }
            stays
        });
        for (node, address) in &wanted {
            kept.entry(*node).or_insert_with(|| {
                let (end, sessions) = (stop.child_token(), Sessions::default());
                let side = sessions.noted(side.clone(), None);
                tasks.spawn(side.keep(address.clone(), Some(*node), end.clone()));
                Kept { address: address.clone(), end, sessions }
            });
        }
        let elsewhere = |(node, kept): (&NodeId, &Kept)| wanted.get(node) != Some(&kept.address);
        let watched = !told.is_empty() || kept.iter().any(elsewhere);
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Some(_) = tasks.join_next(), if !tasks.is_empty() => {}
            () = joined.notified() => {}
            // Nobody tells when the connection of one ends that is absent, told to be elsewhere, or was told.
            _ = look.tick(), if watched => {}
            changed = members.changed() => if changed.is_err() {
                break;
            },
        }
    }
    while tasks.join_next().await.is_some() {}
}

/// An address that is looked for whoever is there.
struct Told {
    address: Address,
    sessions: Sessions,
    /// Ends looking for it, while somebody does.
    end: Option<CancellationToken>,
    /// The node that was found there, and at an earlier address as well: nobody looks here while it is reached there.
    twice: Option<NodeId>,
}

impl Told {
    fn new(address: Address) -> Self {
        Self { address, sessions: Sessions::default(), end: None, twice: None }
    }

    /// Whether the node is reached, or looked for, there.
    fn is(&self, node: NodeId, address: &Address) -> bool {
        (self.twice.is_none() && self.address == *address) || self.sessions.stands() == Some(node)
    }
}

/// Ends the later of two connections to one node, and gives the places of those that are to be looked for from now on.
fn look_for(told: &mut [Told]) -> Vec<usize> {
    let (mut reached, mut begin) = (BTreeSet::new(), Vec::new());
    for (at, told) in told.iter_mut().enumerate() {
        let stands = told.sessions.stands();
        if let Some(node) = stands.filter(|node| reached.contains(node)) {
            if let Some(end) = told.end.take() {
                tracing::warn!(address = %told.address, %node, "`nodes` names a node twice; the later address is left alone");
                end.cancel();
            }
            told.twice = Some(node);
            continue;
        }
        told.twice = told.twice.filter(|node| reached.contains(node));
        if told.twice.is_none() && told.end.is_none() {
            begin.push(at);
        }
        reached.extend(stands);
    }
    begin
}

/// A node that is looked for, or found.
struct Kept {
    address: Address,
    end: CancellationToken,
    sessions: Sessions,
}

/// The newest connection to a node: its status ends with it.
#[derive(Clone, Default)]
struct Sessions(Arc<Mutex<Option<watch::Receiver<NodeStatus>>>>);

impl Sessions {
    /// The same side, which notes every connection that stands here too, and tells `joined` then.
    fn noted(&self, side: Side, tell: Option<Arc<Notify>>) -> Side {
        let (newest, joined) = (Arc::clone(&self.0), side.joined);
        let joined: OnJoined = Arc::new(move |status, link| {
            *newest.lock().unwrap_or_else(PoisonError::into_inner) = Some(status.clone());
            if let Some(tell) = &tell {
                tell.notify_one();
            }
            joined(status, link);
        });
        Side { joined, ..side }
    }

    /// The node at the other end, while there is one.
    fn stands(&self) -> Option<NodeId> {
        let newest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        newest.as_ref().filter(|status| status.has_changed().is_ok()).map(|status| status.borrow().node)
    }
}

/// Whether a node is kept that is reached, or looked for, at `address`. The live state finds nodes; it does not end what
/// stands: one that takes no writes any more has everybody absent, though all are well, and a process that was
/// stopped while another became its node may for a moment tell its old address. A node that ends or moves ends its
/// connection.
fn stays(address: &Address, told: Option<&Address>, stands: bool) -> bool {
    stands || told == Some(address)
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

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_decision::Moments;
    use modelless_decision::route::NodeInfo;
    use modelless_types::PricePerHour;

    #[test]
    fn nothing_that_is_told_ends_a_connection_that_stands() {
        let (here, there): (Address, Address) =
            ("10.0.0.1:1".parse().unwrap(), "10.0.0.1:2".parse().unwrap());
        let nobody = addresses(&[]);
        assert!(stays(&here, nobody.get(&NodeId(1)), true), "the live state lost it, its connection did not");
        assert!(!stays(&here, None, false), "absent and not reached");
        assert!(stays(&here, Some(&here), false), "announced: it is looked for");
        assert!(stays(&here, Some(&here), true));
        assert!(!stays(&here, Some(&there), false), "it moved");
        assert!(stays(&here, Some(&there), true), "somebody says that it moved, but it is still here");
    }

    /// As long as what it gives is kept.
    fn reached(told: &Told, node: u32) -> watch::Sender<NodeStatus> {
        let info =
            NodeInfo { id: NodeId(node), rtt: Moments::ZERO, price: PricePerHour(1), offers: Vec::new() };
        let (status, watched) = watch::channel(NodeStatus::idle(info, "one", "cpu:a:1"));
        *told.sessions.0.lock().unwrap() = Some(watched);
        status
    }

    #[test]
    fn of_two_addresses_of_one_node_the_later_is_left_alone_while_the_earlier_reaches_it() {
        let at = |address: &str| Told::new(address.parse().unwrap());
        let mut told = vec![at("localhost:1"), at("127.0.0.1:1"), at("10.0.0.1:1")];
        let looked = |told: &mut Vec<Told>, places: Vec<usize>| {
            for at in places {
                told[at].end = Some(CancellationToken::new());
            }
        };
        let all = look_for(&mut told);
        assert_eq!(all, [0, 1, 2]);
        looked(&mut told, all);
        let (first, later, other) = (reached(&told[0], 1), reached(&told[1], 1), reached(&told[2], 2));
        let ended = told[1].end.clone().unwrap();
        assert!(look_for(&mut told).is_empty());
        assert!(ended.is_cancelled() && told[0].end.is_some() && told[2].end.is_some());
        drop(later);
        assert!(look_for(&mut told).is_empty(), "it is reached over the first");
        assert!(!told[1].is(NodeId(3), &told[1].address), "who announces itself there is looked for");
        drop(first);
        let again = look_for(&mut told);
        assert_eq!(again, [1], "it may be reached there only");
        looked(&mut told, again);
        let later = reached(&told[1], 1);
        assert!(look_for(&mut told).is_empty() && told[1].end.is_some());
        let first = reached(&told[0], 1);
        assert!(look_for(&mut told).is_empty() && told[1].end.is_none());
        drop((first, later, other));
    }

    #[test]
    fn a_node_that_was_told_is_known_by_its_address_and_by_who_answers_there() {
        let (here, there): (Address, Address) =
            ("localhost:1".parse().unwrap(), "127.0.0.1:1".parse().unwrap());
        let told = Told::new(here.clone());
        assert!(told.is(NodeId(1), &here), "it is looked for there already");
        assert!(!told.is(NodeId(1), &there), "nobody has answered yet: who that is is not known");
        let status = reached(&told, 1);
        assert!(told.is(NodeId(1), &there), "it is the same node by another name");
        assert!(!told.is(NodeId(2), &there));
        drop(status);
        assert!(!told.is(NodeId(1), &there), "its connection ended: it may be found elsewhere");
    }
}
