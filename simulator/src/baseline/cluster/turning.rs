//! How the machines go on: what happens next, and what is left at the end.

use super::{Ask, Cluster, Ev, Ran, State};
use crate::check::Broken;
use crate::outcome::{Outcome, ratio};
use modelless_decision::Rank;
use modelless_types::{Bytes, CostPer1k, Micros, Time, VariantId};

/// What a policy is to be told.
pub(in crate::baseline) enum Next {
    /// A query came.
    Came(Ask),
    /// A batch has ended.
    Ran(Ran),
    /// A while has passed.
    Tick,
    /// A machine that was asked for is there.
    Started(usize),
    /// Something else; lanes are to be looked at.
    Look,
    /// Nothing is left.
    Over,
}

impl Cluster<'_> {
    pub(in crate::baseline) fn begin(&mut self, every: Option<Micros>) {
        for stream in 0..self.sources.len() {
            self.offer_next(stream);
        }
        self.heap.push(self.start(), Rank::Timer, Ev::Look);
        if every.is_some() {
            self.heap.push(self.start(), Rank::Timer, Ev::Tick);
        }
    }

    fn offer_next(&mut self, stream: usize) {
        if let Some(at) = self.sources[stream].next()
            && at < self.scenario.duration
        {
            self.heap.push(self.start() + at, Rank::Arrival, Ev::Offer { stream });
        }
    }

    /// What happens next.
    pub(in crate::baseline) fn turn(&mut self, every: Option<Micros>) -> Result<Next, Broken> {
        if let Some(broken) = self.broken.take() {
            return Err(broken);
        }
        let Some((at, event)) = self.heap.pop() else { return Ok(Next::Over) };
        self.now = at;
        self.outcome.events += 1;
        let lasts = self.now < self.start() + self.scenario.duration;
        Ok(match event {
            Ev::Offer { stream } => {
                self.offer_next(stream);
                self.offer(stream);
                Next::Look
            }
            Ev::Come(ask) => Next::Came(ask),
            Ev::Ran { lane } => self.ended(lane).map_or(Next::Look, Next::Ran),
            Ev::Loaded { node, variant, load } => {
                self.loaded(node, variant, load);
                Next::Look
            }
            Ev::Unloaded { node, memory, lives } => {
                let machine = &mut self.machines[node];
                if machine.lives == lives {
                    machine.free = Bytes(machine.free.0 + memory.0);
                }
                Next::Look
            }
            Ev::Started { node, start } if self.came(node, start) => Next::Started(node),
            Ev::Started { .. } => Next::Look,
            Ev::Tick => {
                if let Some(every) = every.filter(|_| lasts) {
                    self.heap.push(self.now + every, Rank::Timer, Ev::Tick);
                }
                Next::Tick
            }
            Ev::Wake => {
                self.wakes.remove(&self.now);
                Next::Look
            }
            Ev::Look => {
                self.look();
                if lasts {
                    self.heap.push(self.now + self.record.every(), Rank::Timer, Ev::Look);
                }
                Next::Look
            }
        })
    }

    fn offer(&mut self, stream: usize) {
        self.record.offered(stream, self.now);
        let admitted = match self.admitted[stream] {
            Ok(admitted) => admitted,
            Err(why) => {
                self.record.refused((stream, self.now), why);
                return;
            }
        };
        let key = self.next_key;
        self.next_key += 1;
        // Where it will run is not known yet: the nearest node's way stands for all.
        let near = (0..self.nodes()).min_by_key(|node| self.scenario.nodes[*node].far).unwrap_or(0);
        let decode = {
            let admits = |v: &&crate::known::Known<'_>| {
                v.task == admitted.class.task && admitted.class.admits.contains(v.spec.ordinal)
            };
            let like = self.known.all_on(near).find(admits);
            like.map_or(Micros::ZERO, |v| v.spec.decoding(&mut self.runs))
        };
        let came = self.now + self.way(near) + decode;
        let due = self.now + admitted.latency;
        let back = self.scenario.link.one_way + self.scenario.link.jitter + self.scenario.nodes[near].far;
        let deadline = Time(due.0.saturating_sub(back.0));
        let (task, admits, bound) = (admitted.class.task, admitted.class.admits, admitted.latency);
        let ask = Ask { key, task, admits, bound, came, deadline, stream, arrived: self.now, due };
        self.open.insert(key, ask);
        self.heap.push(came, Rank::Arrival, Ev::Come(ask));
    }

    fn ended(&mut self, lane: usize) -> Option<Ran> {
        let (node, run) = (self.lanes[lane].0, self.lanes[lane].1.take()?);
        let spec = self.known.spec(run.variant)?;
        let mut late = 0;
        for ask in &run.members {
            self.open.remove(&ask.key);
            let answered = self.now + self.way(node);
            let in_time = answered <= ask.due;
            late += u32::from(!in_time);
            self.record.answered(
                (ask.stream, ask.arrived),
                answered,
                in_time,
                spec.accuracy,
                (spec.id, &spec.name),
            );
            self.last_left = self.last_left.max(answered);
        }
        self.gone_if_idle(node);
        let batch = u32::try_from(run.members.len()).unwrap_or(u32::MAX);
        Some(Ran { lane, variant: run.variant, batch, took: run.took, late })
    }

    fn loaded(&mut self, node: usize, variant: VariantId, load: u64) {
        let failed = self.faults.chance(self.scenario.nodes[node].load_failure);
        let memory = self.memory(node, variant);
        let machine = &mut self.machines[node];
        let Some(state) = machine.models.get_mut(&variant) else { return };
        if !matches!(state, State::Loading { load: of, .. } if *of == load) {
            return;
        }
        if failed {
            machine.models.remove(&variant);
            machine.free = Bytes(machine.free.0 + memory.0);
            self.outcome.load_failures += 1;
        } else {
            *state = State::Ready;
        }
    }

    fn look(&mut self) {
        let busy = self.lanes.iter().filter(|(_, run)| run.is_some()).count() as u64;
        let ready = |(id, state): (&VariantId, &State)| (*state == State::Ready).then_some(*id);
        let resident: Vec<VariantId> =
            self.machines.iter().flat_map(|m| m.models.iter().filter_map(ready)).collect();
        let here = (0..self.nodes()).filter(|node| self.here(*node));
        let machines = u32::try_from(here.count()).unwrap_or(u32::MAX);
        let lanes = self.lanes.iter().filter(|(node, _)| self.here(*node)).count() as u64;
        self.record.look(self.now, resident.into_iter(), machines, (busy, lanes));
    }

    /// Whoever was never served is told so; then all is counted.
    pub(in crate::baseline) fn finish(mut self) -> Outcome {
        for ask in self.open.values().copied().collect::<Vec<_>>() {
            self.refuse(&ask, "too_late");
        }
        let lasted = self.last_left - Time::ZERO;
        let bill = self.meter.finish(self.last_left);
        let (total, streams, series) = self.record.finish();
        Outcome {
            scenario: self.scenario.name.clone(),
            seed: self.seed,
            lasted,
            total,
            streams,
            series,
            busy: ratio(self.busy_us, bill.lanes_us),
            machines_usd: bill.usd,
            served_usd: bill.served_usd,
            machine_starts: bill.starts,
            device_usd: CostPer1k(self.nano_usd).as_usd(),
            ..self.outcome
        }
    }
}
