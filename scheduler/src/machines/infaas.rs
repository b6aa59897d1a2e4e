//! What INFaaS' rules are told of machines, where they say how many there should be: as a baseline, see `decision::baseline`.

use modelless_decision::baseline::{Pool, Seen, Targets};
use modelless_decision::fleet;
use modelless_live::Member;
use modelless_store::Machine;
use modelless_types::{MachineState, ReplicaState, Time};
use std::collections::BTreeMap;

/// At least and at most so many machines of each pool: the same, since these rules know one number. What nodes tell is left out where
/// nobody hears them.
pub(super) fn wanted(
    targets: &mut Targets,
    now: Time,
    pools: &[fleet::Pool],
    (machines, members): (&[Machine], Option<&[Member]>),
) -> BTreeMap<String, (u32, u32)> {
    let nodes: BTreeMap<&str, &Member> =
        members.unwrap_or_default().iter().map(|member| (member.name.as_str(), member)).collect();
    let seen: Vec<Pool> = pools.iter().map(|pool| look(pool, machines, &nodes)).collect();
    let wanted = targets.look(now, &seen);
    pools.iter().zip(wanted).map(|(pool, many)| (pool.name.clone(), (many, many))).collect()
}

fn look(pool: &fleet::Pool, machines: &[Machine], nodes: &BTreeMap<&str, &Member>) -> Pool {
    let stay: Vec<&Machine> =
        machines.iter().filter(|machine| machine.pool == pool.name && machine.state.stays()).collect();
    let serves = |machine: &&&Machine| machine.state == MachineState::Joined;
    let workers = stay.iter().filter(serves).filter_map(|machine| {
        let node = nodes.get(machine.name.as_str())?;
        Some((machine.name.clone(), seen(node)))
    });
    let count = |many: usize| u32::try_from(many).unwrap_or(u32::MAX);
    Pool {
        least: pool.least,
        most: pool.most,
        there: count(stay.len()),
        coming: count(stay.iter().filter(|machine| machine.state != MachineState::Joined).count()),
        workers: workers.collect(),
    }
}

fn seen(node: &Member) -> Seen {
    let any = |state: ReplicaState| node.resident.iter().any(|replica| replica.state == state);
    Seen {
        busy_lanes: node.load.busy_lanes,
        lanes: node.load.lanes,
        overloaded: any(ReplicaState::Overloaded),
        interfered: any(ReplicaState::Interfered),
    }
}
