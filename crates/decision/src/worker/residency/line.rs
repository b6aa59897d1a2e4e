//! The line of loads of a device: what loads, and when the next may begin.
//!
//! One load at a time holds the *slot*, so that what is served is disturbed by one at most. A load that takes far longer
//! than it was measured to is *overdue* and gives the slot up: it may hang, and whoever stands behind it would wait
//! until the engine ends it. A few may be overdue at once and no more, since each of them may still be at work. While a
//! load's file is brought to this machine it does nothing here, and holds no slot either.

use crate::worker::api::Runner;
use alloc::vec::Vec;
use modelless_types::{Micros, Time, VariantId};

/// A load is overdue after so many times what was measured of it.
const TIMES: u64 = 4;
/// And not before this: a load gives way to what is served, and a short one may have to wait much longer than it takes.
const SOONEST: Micros = Micros::from_secs(1);
/// And after this in any case, a quarter of what an engine allows.
const LATEST: Micros = Micros::from_secs(30);
/// The least that a load which is not done has before it.
const NOT_YET: Micros = Micros(1);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Its file is not here yet.
    Fetching,
    /// Its file came, and the slot is not free.
    Fetched,
    Running {
        since: Time,
    },
}

/// A load that was asked for and has not ended.
#[derive(Clone, Copy, Debug)]
struct Load {
    variant: VariantId,
    runner: Option<Runner>,
    /// As measured.
    takes: Micros,
    stage: Stage,
}

impl Load {
    fn overdue_at(&self) -> Option<Time> {
        let after = Micros(self.takes.0.saturating_mul(TIMES)).clamp(SOONEST, LATEST);
        match self.stage {
            Stage::Running { since } => Some(since + after),
            Stage::Fetching | Stage::Fetched => None,
        }
    }

    fn is_overdue(&self, now: Time) -> bool {
        self.overdue_at().is_some_and(|at| at <= now)
    }

    /// What it has probably before it. What is late already is expected to be late by as much again, as long as it holds the slot.
    fn left(&self, now: Time) -> Micros {
        let (Stage::Running { since }, Some(overdue)) = (self.stage, self.overdue_at()) else {
            return self.takes.max(NOT_YET);
        };
        let run = now - since;
        let again = Micros(run.0.saturating_sub(self.takes.0));
        let late = if overdue > now { again.min(overdue - now) } else { again };
        Micros(self.takes.0.saturating_sub(run.0)).max(late).max(NOT_YET)
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Line {
    /// In order of asking; bounded by the number of variants.
    loads: Vec<Load>,
    /// How many may be overdue while another is begun.
    overdue_most: u16,
}

impl Line {
    pub(super) const fn new(overdue_most: u16) -> Self {
        Self { loads: Vec::new(), overdue_most }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.loads.is_empty()
    }

    pub(super) fn begins(&mut self, now: Time, variant: VariantId, runner: Option<Runner>, takes: Micros) {
        self.ended(variant);
        self.loads.push(Load { variant, runner, takes, stage: Stage::Running { since: now } });
    }

    pub(super) fn ended(&mut self, variant: VariantId) {
        self.loads.retain(|load| load.variant != variant);
    }

    fn moves(&mut self, variant: VariantId, to: Stage) {
        if let Some(load) = self.loads.iter_mut().find(|load| load.variant == variant) {
            load.stage = to;
        }
    }

    pub(super) fn fetches(&mut self, variant: VariantId) {
        self.moves(variant, Stage::Fetching);
    }

    pub(super) fn fetched(&mut self, variant: VariantId) {
        self.moves(variant, Stage::Fetched);
    }

    pub(super) fn goes_on(&mut self, now: Time, variant: VariantId) {
        self.moves(variant, Stage::Running { since: now });
    }

    fn running(&self) -> impl Iterator<Item = &Load> {
        self.loads.iter().filter(|load| matches!(load.stage, Stage::Running { .. }))
    }

    /// Those whose file came and that have not gone on, in the order in which they will.
    pub(super) fn waiting(&self) -> impl Iterator<Item = VariantId> {
        self.loads.iter().filter(|load| load.stage == Stage::Fetched).map(|load| load.variant)
    }

    /// Whether another load may begin.
    pub(super) fn is_free(&self, now: Time) -> bool {
        let holds = self.running().any(|load| !load.is_overdue(now));
        !holds && self.running().count() <= usize::from(self.overdue_most)
    }

    /// A load is at work in this runner, behind which another one would only wait.
    pub(super) fn keeps(&self, runner: Option<Runner>) -> bool {
        runner.is_some() && self.running().any(|load| load.runner == runner)
    }

    /// The first of those that wait that may go on.
    pub(super) fn next(&self, now: Time) -> Option<VariantId> {
        let fetched = self.loads.iter().filter(|load| load.stage == Stage::Fetched);
        let mut able = fetched.filter(|load| !self.keeps(load.runner));
        able.next().filter(|_| self.is_free(now)).map(|load| load.variant)
    }

    /// When the slot will be given up, if it is not free by then.
    pub(super) fn next_overdue(&self, now: Time) -> Option<Time> {
        self.running().filter_map(Load::overdue_at).filter(|at| *at > now).min()
    }

    /// Until something that comes now could begin; for one that is in the line, until it could go on.
    pub(super) fn before(&self, now: Time, variant: VariantId) -> Micros {
        let holder = self.running().filter(|load| !load.is_overdue(now)).map(|load| load.left(now)).max();
        // All are overdue, and too many to begin another: one of them has to end.
        let one_ends = || self.running().map(|load| load.left(now)).min();
        let slot = if self.is_free(now) { None } else { holder.or_else(one_ends) };
        let fetched = self.loads.iter().filter(|load| load.stage == Stage::Fetched);
        let first = fetched.take_while(|load| load.variant != variant).map(|load| load.takes);
        let sum = first.fold(slot.unwrap_or_default(), |sum, takes| Micros(sum.0.saturating_add(takes.0)));
        if self.running().any(|load| load.variant == variant) { Micros::ZERO } else { sum }
    }

    /// What a load that was asked for has before it once it may go on.
    pub(super) fn left(&self, now: Time, variant: VariantId) -> Option<Micros> {
        self.loads.iter().find(|load| load.variant == variant).map(|load| load.left(now))
    }
}
