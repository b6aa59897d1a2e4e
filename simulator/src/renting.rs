//! Machines that are started and stopped in the world of ours: what `hire` wants, carried out.

use crate::Error;
use crate::hire::{self, Asked, Counts};
use crate::world::{Ev, World};
use modelless_decision::Moments;
use modelless_decision::hire::Kind;
use modelless_decision::worker::Event;
use modelless_types::{Micros, TaskId, Time, Within};
use std::collections::BTreeMap;

const EVERY: Micros = Micros::from_secs(1);
/// So much of a sample stands for what was asked before the first query.
const SAMPLE: Micros = Micros::from_secs(10);

/// Whether a machine is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Life {
    Away,
    /// On its way, and which start it was.
    Starting(u64),
    Here,
    /// It serves nobody new, and is gone when nobody is left.
    Leaving,
}

/// Who is rented.
pub(crate) struct Rented {
    lives: Vec<Life>,
    starts: u64,
    counts: Counts,
    /// Whether anything is rented at all.
    any: bool,
    kinds: Vec<Kind>,
    /// Their nodes, those that stay first.
    nodes: Vec<Vec<usize>>,
    takes: BTreeMap<(usize, Asked), Option<f64>>,
}

impl Rented {
    pub(crate) fn new(scenario: &crate::Scenario) -> Self {
        let (kinds, nodes) = hire::kinds(scenario);
        let life = |node: &crate::NodeSpec| if node.there_at_start() { Life::Here } else { Life::Away };
        Self {
            lives: scenario.nodes.iter().map(life).collect(),
            starts: 0,
            counts: Counts::default(),
            any: scenario.nodes.iter().any(|node| node.rented.is_some()),
            kinds,
            nodes,
            takes: BTreeMap::new(),
        }
    }

    /// A query came.
    pub(crate) fn came(&mut self, asked: Asked) {
        if self.any {
            self.counts.came(asked, 1);
        }
    }
}

impl World<'_> {
    /// Before the first query: what is there, and what a sample of the load asks for.
    pub(crate) fn begin_renting(&mut self) {
        for at in 0..self.nodes.len() {
            self.nodes[at].up = self.rented.lives[at] == Life::Here;
        }
        // Without a time before the first query nobody could have watched anything.
        let planned = self.scenario.planner.is_some() && self.scenario.start > Micros::ZERO;
        if !self.rented.any && !planned {
            return;
        }
        let known = std::rc::Rc::clone(&self.known);
        let snapshot = crate::oracle::everything_ready(self.scenario, &known);
        let sources = crate::workload::Source::of(self.scenario, self.seed ^ 0x5A5A);
        let mut sample: Vec<(u64, Asked)> = Vec::new();
        for (mut source, stream) in sources.into_iter().zip(&self.scenario.streams) {
            let Ok(admitted) = modelless_decision::admission::admit(&snapshot, stream.task, &stream.goals)
            else {
                continue;
            };
            let times = std::iter::from_fn(|| source.next()).take_while(|at| *at < SAMPLE);
            sample.extend(times.map(|at| (at.0 / EVERY.0, (admitted.class, admitted.latency))));
        }
        if planned {
            self.suppose(&sample);
        }
        if !self.rented.any {
            return;
        }
        sample.sort_unstable();
        for second in 0..SAMPLE.0 / EVERY.0 {
            for (_, asked) in sample.iter().filter(|(at, _)| *at == second) {
                self.rented.counts.came(*asked, 1);
            }
            self.rented.counts.pass();
        }
        self.hire();
        self.push_idle(Time::ZERO + self.scenario.start + EVERY, Ev::Hire);
    }

    /// The planner knows what a sample of the load asks for, as what hires does: a live one was there before.
    fn suppose(&mut self, sample: &[(u64, Asked)]) {
        let mut rates: BTreeMap<TaskId, BTreeMap<modelless_decision::demand::Asked, f64>> = BTreeMap::new();
        for (_, (class, bound)) in sample {
            let asked = (*class, Some(Within::of(*bound)));
            *rates.entry(class.task).or_default().entry(asked).or_default() +=
                1.0 / SAMPLE.as_millis_f64() * 1e3;
        }
        for (task, rates) in rates {
            self.asked.suppose(task, &rates.into_iter().collect::<Vec<_>>());
        }
    }

    /// A second has passed: who has left is gone, and who is wanted is asked for.
    pub(crate) fn hire_again(&mut self) -> Result<(), Error> {
        self.rented.counts.pass();
        for at in 0..self.nodes.len() {
            if self.rented.lives[at] == Life::Leaving && self.nodes[at].worker.drained() {
                self.node_down(at);
                self.nodes[at].info.offers.clear();
                self.rented.lives[at] = Life::Away;
                self.meter.close(at, self.now);
            }
        }
        let leave = self.hire();
        for at in leave {
            self.release(at)?;
        }
        if self.now - Time::ZERO < self.scenario.start + self.scenario.duration {
            self.push_idle(self.now + EVERY, Ev::Hire);
        }
        Ok(())
    }

    /// Asks for what lacks; says who is too many.
    fn hire(&mut self) -> Vec<usize> {
        let wanted = {
            let (known, kinds, nodes) = (&self.known, &self.rented.kinds, &self.rented.nodes);
            let memo = std::cell::RefCell::new(std::mem::take(&mut self.rented.takes));
            let takes = |kind: usize, asked: Asked| {
                let fresh = || hire::takes(known.all_on(nodes[kind][0]), asked);
                *memo.borrow_mut().entry((kind, asked)).or_insert_with(fresh)
            };
            let wanted = hire::wanted(
                (&self.rented.counts, &hire::Expected::default()),
                hire::Room { kinds, busy: self.scenario.busy, budget_usd: f64::INFINITY },
                &takes,
            );
            self.rented.takes = memo.into_inner();
            wanted
        };
        let mut leave = Vec::new();
        for (kind, (least, most)) in wanted.into_iter().enumerate() {
            let nodes = self.rented.nodes[kind].clone();
            let hired = |life: &Life| matches!(life, Life::Here | Life::Starting(_));
            let mut has = nodes.iter().filter(|node| hired(&self.rented.lives[**node])).count();
            for node in &nodes {
                if has < least && self.rented.lives[*node] == Life::Away {
                    self.rent(*node);
                    has += 1;
                }
            }
            // A scheduler that has not watched for as long as it remembers lets nobody go.
            let most = if self.rented.counts.watched() { most } else { usize::MAX };
            for node in nodes.iter().rev() {
                let rented = self.scenario.nodes[*node].rented.is_some();
                if has > most && rented && hired(&self.rented.lives[*node]) {
                    leave.push(*node);
                    has -= 1;
                }
            }
        }
        leave
    }

    fn rent(&mut self, at: usize) {
        let Some(rented) = self.scenario.nodes[at].rented else { return };
        let mean = Moments::exactly(rented.start_up);
        let sd = mean.mean * rented.scatter;
        let took = self.rng_starts.duration(Moments { var: sd * sd, ..mean });
        self.rented.starts += 1;
        let start = self.rented.starts;
        self.rented.lives[at] = Life::Starting(start);
        self.meter.open(at, self.now);
        self.push_idle(self.now + took, Ev::Started { node: at, start });
    }

    /// A machine has come, unless it was given back meanwhile.
    pub(crate) fn started(&mut self, at: usize, start: u64) -> Result<(), Error> {
        if self.rented.lives[at] != Life::Starting(start) {
            return Ok(());
        }
        self.rented.lives[at] = Life::Here;
        // It has nothing in memory: what was pinned in an earlier life is to be told again.
        let id = self.nodes[at].id;
        self.planned.pins.retain(|pin| pin.node != id);
        self.node_up(at)
    }

    fn release(&mut self, at: usize) -> Result<(), Error> {
        if self.rented.lives[at] == Life::Here {
            self.rented.lives[at] = Life::Leaving;
            self.nodes[at].drained = true;
            return self.feed_worker(at, Event::Drain);
        }
        self.rented.lives[at] = Life::Away;
        self.meter.close(at, self.now);
        Ok(())
    }
}
