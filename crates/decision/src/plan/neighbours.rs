//! What differs from a placement by one move: something comes into memory on some alike devices, and what is in its way goes.

use super::fluid::{Fluid, Group, Served, grouped};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;
use modelless_types::TaskId;

/// Of what is in the way only so many are weighed against each other: those that serve least.
const IN_THE_WAY: usize = 8;
/// Not more than so many go for one that comes.
const GO: usize = 3;
/// More moves than these are not looked at from one placement.
const LOOKED_AT: usize = 20_000;
/// A gain that is smaller, over all that is served, is none.
pub(super) const NOTHING: f64 = 1e-6;

/// A move.
pub(super) struct Move {
    /// On so many of the group's devices, the last of them.
    many: usize,
    group: usize,
    pinned: BTreeSet<usize>,
    /// What it gains at most.
    pub(super) at_most: f64,
    /// The same less what goes serves now.
    guess: f64,
}

/// All moves that could gain anything, those first that promise most.
pub(super) fn moves(fluid: &Fluid<'_>, groups: &[Group], served: &Served) -> Vec<Move> {
    let mut moves = Vec::new();
    let quick = quick(fluid, groups);
    for (at, group) in groups.iter().enumerate() {
        let servers = &fluid.kinds[group.kind].servers;
        let gains: Vec<f64> = servers.iter().map(|server| fluid.at_most(served, at, server)).collect();
        let mut better: Vec<usize> = (0..servers.len())
            .filter(|server| !group.pinned.contains(server) && gains[*server] > served.worth * NOTHING)
            .collect();
        better.sort_by(|a, b| gains[*b].total_cmp(&gains[*a]).then(a.cmp(b)));
        let of = |pin: &usize| served.by[at].get(pin).copied().unwrap_or(0.0);
        for many in parts(group.devices.len()) {
            let share = ratio(many, group.devices.len());
            let mut going: Vec<usize> = group.pinned.iter().copied().collect();
            going.sort_by(|a, b| of(a).total_cmp(&of(b)).then(a.cmp(b)));
            going.truncate(IN_THE_WAY);
            for comes in &better {
                for goes in ways(fluid, group, *comes, &going) {
                    let mut pinned: BTreeSet<usize> =
                        group.pinned.iter().filter(|pin| !goes.contains(pin)).copied().collect();
                    pinned.insert(*comes);
                    let of_task = |task, pins: &BTreeSet<usize>| {
                        pins.iter().filter(|pin| servers[**pin].quick && servers[**pin].task == task).count()
                    };
                    let last = |pin: &usize| {
                        let task = servers[*pin].task;
                        let all = quick.get(&task).copied().unwrap_or(0);
                        servers[*pin].quick
                            && all + many * of_task(task, &pinned) <= many * of_task(task, &group.pinned)
                    };
                    if goes.iter().any(last) {
                        continue;
                    }
                    let mut at_most = gains[*comes];
                    let taken: u64 = pinned.iter().map(|pin| servers[*pin].memory).sum();
                    let mut free = fluid.kinds[group.kind].room.saturating_sub(taken);
                    for also in better.iter().filter(|also| *also != comes) {
                        if servers[*also].memory <= free {
                            free -= servers[*also].memory;
                            pinned.insert(*also);
                            at_most += gains[*also];
                        }
                    }
                    let lost: f64 = goes.iter().map(of).sum();
                    let guess = (at_most - lost) * share;
                    if moves.len() >= LOOKED_AT {
                        break;
                    }
                    moves.push(Move { many, group: at, pinned, at_most, guess });
                }
            }
        }
    }
    moves.sort_by(|a, b| b.guess.total_cmp(&a.guess));
    moves
}

/// How many replicas each task has that are about as fast as its fastest.
fn quick(fluid: &Fluid<'_>, groups: &[Group]) -> BTreeMap<TaskId, usize> {
    let mut quick = BTreeMap::new();
    for group in groups {
        let servers = group.pinned.iter().map(|pin| &fluid.kinds[group.kind].servers[*pin]);
        for server in servers.filter(|server| server.quick) {
            *quick.entry(server.task).or_default() += group.devices.len();
        }
    }
    quick
}

/// Of how many devices of a group a move may be.
fn parts(devices: usize) -> BTreeSet<usize> {
    [1, devices / 2, devices].into_iter().filter(|many| *many > 0).collect()
}

/// The least that can go for something to come.
fn ways(fluid: &Fluid<'_>, group: &Group, comes: usize, going: &[usize]) -> Vec<Vec<usize>> {
    let kind = &fluid.kinds[group.kind];
    let memory = |pin: &usize| kind.servers[*pin].memory;
    let taken: u64 = group.pinned.iter().map(memory).sum();
    let short = (taken + memory(&comes)).saturating_sub(kind.room);
    if short == 0 {
        return vec![Vec::new()];
    }
    let (mut ways, mut grow) = (Vec::new(), vec![(0, Vec::new(), 0_u64)]);
    while let Some((from, goes, freed)) = grow.pop() {
        for (at, pin) in (from..).zip(&going[from..]) {
            let (mut goes, freed): (Vec<usize>, u64) = (goes.clone(), freed + memory(pin));
            goes.push(*pin);
            if freed >= short {
                ways.push(goes);
            } else if goes.len() < GO {
                grow.push((at + 1, goes, freed));
            }
        }
    }
    ways
}

/// The groups after a move.
pub(super) fn moved(groups: &[Group], to: &Move) -> Vec<Group> {
    let mut all: BTreeMap<(usize, BTreeSet<usize>), Vec<usize>> = BTreeMap::new();
    for (at, group) in groups.iter().enumerate() {
        let moving = if at == to.group { to.many } else { 0 };
        let (stay, go) = group.devices.split_at(group.devices.len().saturating_sub(moving));
        for (devices, pinned) in [(stay, &group.pinned), (go, &to.pinned)] {
            if !devices.is_empty() {
                all.entry((group.kind, pinned.clone())).or_default().extend(devices);
            }
        }
    }
    grouped(all)
}

#[expect(clippy::cast_precision_loss, reason = "counts of devices")]
fn ratio(part: usize, whole: usize) -> f64 {
    part as f64 / whole as f64
}
