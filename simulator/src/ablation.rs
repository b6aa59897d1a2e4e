//! What each idea of ours is worth: the same scenarios with one of them switched off at a time, and with what a second hop of queues costs
//! taken away.

use crate::outcome::ratio;
use crate::scenario::file::File;
use crate::scoreboard::{cut, headroom};
use crate::spread::spread;
use crate::{Error, Outcome, Scenario, run};
use modelless_types::{Batching, Micros};
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;

/// One idea less.
struct Idea {
    /// As it is called in `docs/policies.md`.
    name: &'static str,
    /// What is done instead.
    without: &'static str,
    change: fn(&mut Scenario),
}

fn each_worker(world: &mut Scenario, change: impl Fn(&mut modelless_decision::worker::WorkerConfig)) {
    world.nodes.iter_mut().for_each(|node| change(&mut node.worker));
}

const IDEAS: &[Idea] = &[
    Idea { name: "as it is", without: "", change: |_| {} },
    Idea {
        name: "`to_come`",
        without: "only those who wait count",
        change: |world| each_worker(world, |worker| worker.foresight.to_come = false),
    },
    Idea {
        name: "`margin_permille`",
        without: "no more than came lately is taken to come",
        change: |world| each_worker(world, |worker| worker.foresight.margin_permille = 1_000),
    },
    Idea {
        name: "`reserve_permille`",
        without: "in time with nothing to spare is as good as any",
        change: |world| each_worker(world, |worker| worker.foresight.reserve_permille = 0),
    },
    Idea {
        name: "`caution`",
        without: "who is missed teaches nothing",
        change: |world| each_worker(world, |worker| worker.foresight.caution = false),
    },
    Idea {
        name: "`chances`",
        without: "whoever is more likely than not in time is answered, however many of those come late",
        change: |world| each_worker(world, |worker| worker.foresight.chances = false),
    },
    Idea {
        name: "`levels`",
        without: "only the look ahead says how accurate answers are",
        change: |world| each_worker(world, |worker| worker.foresight.levels = false),
    },
    Idea {
        name: "`full_batches`",
        without: "a device that is asked for more than it can do looks ahead as ever",
        change: |world| each_worker(world, |worker| worker.foresight.full_batches = false),
    },
    Idea {
        name: "`eases`",
        without: "how accurate answers may be is limited, and the reserve kept, however little is asked",
        change: |world| each_worker(world, |worker| worker.foresight.eases = false),
    },
    Idea {
        name: "`turns`",
        without: "who gathered while a model was loaded goes by deadlines, however many they are",
        change: |world| each_worker(world, |worker| worker.foresight.turns = false),
    },
    Idea {
        name: "`whole_batches`",
        without: "each query goes where it would be done first",
        change: |world| world.limits.whole_batches = false,
    },
    Idea {
        name: "`gives_way`",
        without: "the first in line goes first while it can be in time",
        change: |world| each_worker(world, |worker| worker.foresight.gives_way = false),
    },
    Idea {
        name: "`pool`",
        without: "credit for one batch of all classes together",
        change: |world| each_worker(world, |worker| worker.foresight.pool = 1),
    },
    Idea {
        name: "batching by deadline",
        without: "batches grow by one and shrink by a tenth (AIMD)",
        change: |world| batching(world, Batching::Aimd),
    },
    Idea { name: "batching", without: "one query at a time", change: |world| batching(world, Batching::Off) },
    Idea {
        name: "choice of variant at dispatch",
        without: "the most accurate variant answers everybody",
        change: only_the_best,
    },
    Idea {
        name: "credits",
        without: "gateways send at once whatever comes",
        change: |world| world.credits = false,
    },
    Idea {
        name: "`hand_back`",
        without: "who cannot be in time at a node is refused there",
        change: |world| each_worker(world, |worker| worker.hand_back = false),
    },
    Idea {
        name: "`announce`",
        without: "each query goes to one node, or waits for one",
        change: |world| world.limits.announce = 0,
    },
    Idea { name: "queues at nodes", without: "one queue for all nodes, at no distance", change: central },
];

fn batching(world: &mut Scenario, batching: Batching) {
    world.tasks.iter_mut().for_each(|task| task.batching = Some(batching));
    each_worker(world, |worker| worker.batching = batching);
}

fn only_the_best(world: &mut Scenario) {
    for task in &mut world.tasks {
        let best = task.variants.iter().map(|v| v.accuracy).max();
        task.variants.retain(|v| Some(v.accuracy) == best);
    }
    let known: Vec<_> = world.variants().map(|(_, v)| v.id).collect();
    world.nodes.iter_mut().for_each(|node| node.pinned.retain(|id| known.contains(id)));
}

/// All lanes of nodes that are alike behind one queue that knows everything at once. What is in memory is in memory for all.
fn central(world: &mut Scenario) {
    let first = world.nodes[0].clone();
    let alike = |node: &crate::NodeSpec| node.class == first.class && node.rented.is_none();
    if !world.nodes.iter().all(alike) {
        return;
    }
    let lanes =
        world.nodes.iter().flat_map(|node| &node.worker.devices).map(|device| device.lanes.max(1)).sum();
    world.nodes.truncate(1);
    if let Some(device) = world.nodes[0].worker.devices.first_mut() {
        device.lanes = lanes;
    }
    world.nodes[0].worker.devices.truncate(1);
    world.gateways = 1;
    world.link.one_way = Micros::ZERO;
    world.link.jitter = Micros::ZERO;
}

/// What an idea is worth on a scenario.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Ablated {
    /// Which scenario.
    pub scenario: String,
    /// Under what load, of the fluid bound.
    pub load: f64,
    /// Which idea.
    pub idea: String,
    /// What is done instead.
    pub without: String,
    /// Share of queries that are violated, mean over seeds.
    pub violations: f64,
    /// Mean accuracy of the answers in time.
    pub accuracy: f64,
    /// Answers in time a second.
    pub goodput: f64,
}

/// All ideas on these scenarios, on all cores; `tell` hears of each.
pub fn ablate(
    files: &[&Path],
    loads: &[f64],
    seeds: &[u64],
    seconds: u64,
    tell: impl Fn(&Ablated) + Sync,
) -> Result<Vec<Ablated>, Error> {
    let mut jobs = Vec::new();
    for path in files {
        let headroom = headroom(path, seconds)?;
        for load in loads {
            let whole = cut(File::load(path, load * headroom)?, seconds);
            jobs.extend(IDEAS.iter().map(|idea| (whole.clone(), *load, idea)));
        }
    }
    let without = |(whole, load, idea): &(Scenario, f64, &Idea)| {
        let mut world = whole.clone();
        (idea.change)(&mut world);
        let outcomes: Vec<Outcome> = seeds.iter().map(|seed| run(&world, *seed)).collect::<Result<_, _>>()?;
        let mean = |of: &dyn Fn(&Outcome) -> f64| {
            outcomes.iter().map(of).sum::<f64>() / ratio(outcomes.len() as u64, 1).max(1.0)
        };
        let seconds = ratio(world.duration.0, 1_000_000);
        Ok(Ablated {
            scenario: world.name.clone(),
            load: *load,
            idea: idea.name.to_owned(),
            without: idea.without.to_owned(),
            violations: mean(&|o| o.total.violations),
            accuracy: mean(&|o| o.total.accuracy),
            goodput: mean(&|o| ratio(o.total.in_time(), 1) / seconds),
        })
    };
    spread(&jobs, without, tell)
}

/// As people read it.
pub fn markdown(all: &[Ablated], seeds: usize, seconds: u64) -> String {
    let mut out = format!(
        "# What each idea is worth\n\nMade by `cargo xtask scoreboard --ablate`: {seeds} seeds, at most {seconds} s of virtual time each. One idea is \
         switched off at a time; each is told in `docs/policies.md`. A load of 1 is what the fluid bound could just serve. *Queues at nodes* \
         against one queue tells what the second hop loses; where nodes are not alike it is not tried and reads as it is.\n"
    );
    let same = |a: &Ablated, b: &Ablated| a.scenario == b.scenario && a.load.to_bits() == b.load.to_bits();
    for group in all.chunk_by(same) {
        let Some(first) = group.first() else { continue };
        let _ = write!(
            out,
            "\n## {} at {:.2}\n\n| without | instead | violations | accuracy | goodput |\n|---|---|---:|---:|---:|\n",
            first.scenario, first.load
        );
        for one in group {
            let _ = writeln!(
                out,
                "| {} | {} | {:.2} % | {:.4} | {:.0} |",
                one.idea,
                one.without,
                100.0 * one.violations,
                one.accuracy,
                one.goodput
            );
        }
    }
    out
}
