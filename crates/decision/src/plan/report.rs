//! Why each variant is or is not pinned on each device: kept as figures while plans are tried, and put into words once one stands.

use super::{Foreseen, Plan, PlanVariant, Rank, Step};
use crate::words::{asked, time};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use modelless_types::{Bytes, Micros, NodeId, VariantId};

/// A plan whose report is not put into words yet.
pub(super) struct Draft<'a> {
    pub(super) plan: Plan,
    pub(super) why: Vec<Said<'a>>,
}

/// Of a variant on a device.
pub(super) struct Said<'a> {
    pub(super) node: NodeId,
    pub(super) variant: &'a PlanVariant,
    pub(super) why: Why,
    /// More is expected of its task than is asked of it.
    pub(super) foretold: bool,
}

/// What decided.
pub(super) enum Why {
    Asleep,
    Beaten(Option<VariantId>),
    NoRoom { left: Bytes, others: u32 },
    Pinned(Rank),
}

impl Draft<'_> {
    /// With its report.
    pub(super) fn told(self, expected: &Foreseen) -> Plan {
        let Self { mut plan, why } = self;
        plan.report = why.iter().map(|said| said.step(expected, &plan)).collect();
        plan
    }
}

impl Said<'_> {
    fn step(&self, expected: &Foreseen, plan: &Plan) -> Step {
        let (why, beaten_by) = match &self.why {
            Why::Asleep => {
                let step = plan.tasks.iter().find(|step| step.task == self.variant.task);
                let why = step.map_or("its task sleeps", |step| step.why.as_str());
                (format!("not pinned, as {why}"), None)
            }
            Why::Beaten(by) => ("not pinned, as another variant is as good on every axis".into(), *by),
            Why::NoRoom { left, others } => {
                let others = match others {
                    0 => String::new(),
                    1 => ", and 1 other device has it".into(),
                    many => format!(", and {many} other devices have it"),
                };
                (format!("not pinned, as {left} is left beside the discretionary share{others}"), None)
            }
            Why::Pinned(rank) => (rank.why().into(), None),
        };
        let foretold = expected.get(&self.variant.task).filter(|_| self.foretold);
        let foretold = foretold.map(|expected| format!(", and its task was {}", expected.peak.words()));
        let why = format!("{why}: {}{}", figures(self.variant), foretold.unwrap_or_default());
        Step { node: self.node, variant: self.variant.id, why, beaten_by }
    }
}

/// What a variant is judged by.
fn figures(variant: &PlanVariant) -> String {
    let PlanVariant { latency, accuracy, memory, demand, work, .. } = variant;
    let (alone, each) = (time(*latency), time(Micros(work / 1_000)));
    format!("{alone} alone and {each} each in batches, accuracy {accuracy}, {memory}, {}", asked(*demand))
}

impl Rank {
    fn why(self) -> &'static str {
        match self {
            Self::Serves => "pinned as with it most is served of what is asked",
            Self::Carries => "pinned as what carries most of what is asked of its task",
            Self::Parachute => "pinned as the fastest of its task",
            Self::Best => "pinned as the most accurate of its task",
            Self::Widest => "pinned as that of its task which can do most",
            Self::Between | Self::Beaten => "pinned as it is on the frontier of its task",
            Self::Candidate => "pinned as a candidate, so that it is there when it is tried or promoted",
        }
    }
}
