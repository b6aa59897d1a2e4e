//! What goes wrong, and is over again.

use crate::Error;
use crate::scenario::Fault;
use crate::world::{Ev, World};
use modelless_decision::Rank;
use modelless_decision::worker::Event;
use modelless_types::{DeviceIx, Engine, Micros, Time};

impl World<'_> {
    pub(crate) fn fault_at(fault: &Fault) -> Micros {
        match fault {
            Fault::NodeDown { at, .. }
            | Fault::GatewayDown { at, .. }
            | Fault::RunnerCrash { at, .. }
            | Fault::Slow { at, .. }
            | Fault::Pause { at, .. }
            | Fault::Drain { at, .. }
            | Fault::Recut { at, .. }
            | Fault::Pin { at, .. } => *at,
        }
    }

    pub(crate) fn fault(&mut self, fault: usize) -> Result<(), Error> {
        let start = Time::ZERO + self.scenario.start;
        let over = match &self.scenario.faults[fault] {
            Fault::NodeDown { node, back, .. } => {
                self.node_down(*node);
                *back
            }
            Fault::GatewayDown { gateway, back, .. } => {
                self.gateway_down(*gateway)?;
                *back
            }
            Fault::RunnerCrash { node, model, .. } => {
                for engine in Engine::ALL {
                    if self.nodes[*node].up {
                        self.crash(*node, *model, engine)?;
                    }
                }
                None
            }
            Fault::Slow { node, until, factor, .. } => {
                self.nodes[*node].slow = *factor;
                Some(*until)
            }
            Fault::Pause { node, at, until } => {
                let length = Micros(until.0.saturating_sub(at.0));
                self.pause(*node, length);
                Some(*until)
            }
            Fault::Drain { node, .. } => {
                self.nodes[*node].drained = true;
                self.feed_worker(*node, Event::Drain)?;
                None
            }
            Fault::Recut { node, width, .. } => {
                self.feed_worker(*node, Event::Recut { device: DeviceIx(0), width: *width })?;
                None
            }
            Fault::Pin { node, variants, .. } => {
                self.pin(*node, variants)?;
                None
            }
        };
        if let Some(over) = over {
            self.push((start + over).max(self.now), Rank::Arrival, Ev::FaultOver { fault });
        }
        Ok(())
    }

    pub(crate) fn fault_over(&mut self, fault: usize) -> Result<(), Error> {
        match &self.scenario.faults[fault] {
            Fault::NodeDown { node, .. } if !self.nodes[*node].up => self.node_up(*node),
            Fault::GatewayDown { gateway, .. } => self.gateway_back(*gateway),
            Fault::Slow { node, .. } => {
                self.nodes[*node].slow = 1.0;
                Ok(())
            }
            Fault::Pause { node, .. } => self.go_on(*node),
            Fault::NodeDown { .. }
            | Fault::RunnerCrash { .. }
            | Fault::Drain { .. }
            | Fault::Recut { .. }
            | Fault::Pin { .. } => Ok(()),
        }
    }
}
