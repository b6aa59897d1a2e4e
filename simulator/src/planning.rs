//! The scheduler's part: what the live planner pins, from what nodes offer and what was asked lately.

use crate::Error;
use crate::node::Node;
use crate::world::{Ev, World};
use modelless_decision::plan::{Input, PlanClass, PlanDevice, PlanVariant, plan};
use modelless_decision::worker::Event;
use modelless_types::{DeviceIx, Time, VariantId};

impl World<'_> {
    /// Plans, tells the nodes whose pins changed, and plans again a while later.
    pub(crate) fn plan(&mut self) -> Result<(), Error> {
        let Some(planner) = self.scenario.planner else { return Ok(()) };
        let input = self.plan_input(planner.discretionary_permille);
        let next = plan(&input, &self.planned);
        for at in 0..self.nodes.len() {
            let id = self.nodes[at].id;
            let pins = |plan: &modelless_decision::plan::Plan| -> Vec<(DeviceIx, VariantId)> {
                plan.pins.iter().filter(|pin| pin.node == id).map(|pin| (pin.device, pin.variant)).collect()
            };
            let (before, after) = (pins(&self.planned), pins(&next));
            if before != after && self.nodes[at].up {
                self.feed_worker(at, Event::Pin(after))?;
            }
        }
        self.planned = next;
        // Before the first query there is nothing to watch, and what was supposed stands.
        if self.now >= Time::ZERO + self.scenario.start {
            self.asked.pass(planner.every);
        }
        if self.now - Time::ZERO < self.scenario.start + self.scenario.duration {
            self.push_idle(self.now + planner.every, Ev::Plan);
        }
        Ok(())
    }

    fn plan_input(&self, discretionary_permille: u16) -> Input {
        let device = |(at, node): (usize, &Node)| {
            let spec = &self.scenario.nodes[at];
            let first = spec.worker.devices.first()?;
            let variant = |known: &crate::known::Known<'_>| PlanVariant {
                id: known.spec.id,
                task: known.task,
                accuracy: known.spec.accuracy,
                latency: known.told.service().p99(),
                cost: known.told.cost(1, first.price),
                work: known.told.work(known.max_batch),
                memory: known.memory,
                demand: self.asked.level(known.task, known.spec.ordinal),
                least: self.asked.level_at_least(known.task, known.spec.ordinal, |ordinal| {
                    let mut all = self.known.all_on(at);
                    all.find(|v| v.task == known.task && v.spec.ordinal == ordinal).map(|v| v.spec.accuracy)
                }),
                candidate: false,
            };
            Some(PlanDevice {
                node: node.id,
                device: DeviceIx(0),
                memory: first.memory,
                discretionary_permille,
                variants: self.known.all_on(at).map(variant).collect(),
            })
        };
        let there = self.nodes.iter().enumerate().filter(|(_, node)| node.up && !node.drained);
        let classes = PlanClass::of(&self.asked, |task, ordinal| self.known.number(task, ordinal));
        Input { devices: there.filter_map(device).collect(), classes, ..Input::default() }
    }
}
