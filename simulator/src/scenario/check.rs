//! What makes a scenario unusable.

use super::{Arrivals, Fault, NodeSpec, Scenario, VariantSpec};
use modelless_types::Micros;

impl Scenario {
    /// What is wrong with it, in words.
    pub fn check(&self) -> Result<(), String> {
        if self.gateways == 0 || self.nodes.is_empty() {
            return Err("it needs at least one gateway and one node".into());
        }
        if self.heartbeat == Micros::ZERO {
            return Err("heartbeats must be some time apart".into());
        }
        let unusable = |v: &VariantSpec| {
            let on = v.on.values().any(|on| v.model_of(&on.latency).is_none());
            on || (v.on.is_empty() && v.run_model().is_none())
        };
        if let Some((_, v)) = self.variants().find(|(_, v)| unusable(v)) {
            return Err(format!("variant {} has no usable latency point", v.name));
        }
        if self.planner.is_some_and(|planner| planner.every == Micros::ZERO) {
            return Err("plans must be some time apart".into());
        }
        for task in &self.tasks {
            if !task.variants.is_sorted_by(|a, b| a.ordinal < b.ordinal) {
                return Err(format!("the variants of {} are not in order of their ordinals", task.id));
            }
        }
        if let Some(stream) = self.streams.iter().find(|s| !self.tasks.iter().any(|t| t.id == s.task)) {
            return Err(format!("stream {} asks for {}, which is not there", stream.name, stream.task));
        }
        let missing = |fault: &&Fault| match **fault {
            Fault::NodeDown { node, .. }
            | Fault::RunnerCrash { node, .. }
            | Fault::Slow { node, .. }
            | Fault::Pause { node, .. }
            | Fault::Drain { node, .. }
            | Fault::Recut { node, .. }
            | Fault::Pin { node, .. } => node >= self.nodes.len(),
            Fault::GatewayDown { gateway, .. } => gateway >= self.gateways as usize,
        };
        if let Some(fault) = self.faults.iter().find(missing) {
            return Err(format!("{fault:?} is about something that is not there"));
        }
        let of_rented = |fault: &&Fault| match **fault {
            Fault::NodeDown { node, .. } | Fault::Drain { node, .. } => self.nodes[node].rented.is_some(),
            Fault::GatewayDown { .. }
            | Fault::RunnerCrash { .. }
            | Fault::Slow { .. }
            | Fault::Pause { .. }
            | Fault::Recut { .. }
            | Fault::Pin { .. } => false,
        };
        if let Some(fault) = self.faults.iter().find(of_rented) {
            return Err(format!(
                "{fault:?} is about a machine of a pool with `least`, which comes and goes; name one that stays"
            ));
        }
        if !self.nodes.iter().any(NodeSpec::there_at_start) {
            return Err("no machine is there at the start: give a pool `at_start = 1`".into());
        }
        for stream in &self.streams {
            let endless = |rate: f64| !rate.is_finite() || !(0.0..=1e6).contains(&rate);
            let bad = match &stream.arrivals {
                Arrivals::Poisson { rate } => endless(*rate),
                Arrivals::Steps(steps) => steps.iter().any(|s| endless(s.rate)),
                Arrivals::Bursty { calm, burst, calm_for, burst_for } => {
                    endless(*calm)
                        || endless(*burst)
                        || *calm_for == Micros::ZERO
                        || *burst_for == Micros::ZERO
                }
                Arrivals::Renewal { rate, cv } => endless(*rate) || !cv.is_finite() || *cv < 0.0,
                Arrivals::Modulated(spans) => spans.iter().any(|s| endless(s.rate) || !s.gap.is_sound()),
                Arrivals::At(_) => false,
            };
            if bad {
                return Err(format!("stream {} needs rates from 0 to a million a second", stream.name));
            }
        }
        Ok(())
    }
}
