//! What happened, told in one order: for people who follow it, and for whoever asks later why.

use crate::machines::MachineChange;
use crate::records::{NodeState, Transition, UnixMicros};
use modelless_types::{NodeId, TaskId, VariantId};
use serde::{Deserialize, Serialize};

/// What something happened to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EventKind {
    /// A replica is in another state.
    Replica,
    /// There is a new plan.
    Plan,
    /// A node came, drains, or is gone, or runs fewer batches side by side.
    Node,
    /// A machine was asked for, came, or was given back.
    Machine,
    /// A task fell asleep, or woke.
    Task,
    /// A new version is tried, or was.
    Trial,
}

impl EventKind {
    /// Every kind.
    pub const ALL: [Self; 6] =
        [Self::Replica, Self::Plan, Self::Node, Self::Machine, Self::Task, Self::Trial];

    /// As shown and stored.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Replica => "replica",
            Self::Plan => "plan",
            Self::Node => "node",
            Self::Machine => "machine",
            Self::Task => "task",
            Self::Trial => "trial",
        }
    }

    /// From that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// Something that happened, to be told.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NewEvent {
    /// To what.
    pub kind: EventKind,
    /// On which node, if on one.
    pub node: Option<NodeId>,
    /// With which variant, if with one; it may be gone when this is read.
    pub variant: Option<VariantId>,
    /// Of which task, where it is about a task; it may be gone, too.
    #[serde(default)]
    pub task: Option<TaskId>,
    /// What, in a word or two.
    pub what: String,
    /// Why, for people. Long texts are cut.
    pub cause: String,
    /// Who says so, for people.
    pub who: String,
    /// When.
    pub at: UnixMicros,
}

/// Something that happened.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Event {
    /// Its place among all; later ones have higher numbers.
    pub seq: u64,
    /// What happened.
    #[serde(flatten)]
    pub about: NewEvent,
}

impl NewEvent {
    pub(crate) fn of_transition(of: &Transition) -> Self {
        let change = &of.change;
        Self {
            kind: EventKind::Replica,
            node: Some(of.node),
            variant: Some(of.variant),
            task: None,
            what: change.to.name().into(),
            cause: format!("{} (was {})", change.cause, change.from),
            who: change.who.clone(),
            at: change.at,
        }
    }

    /// Its name stands in the cause: it may never have been a node.
    pub(crate) fn of_machine(of: &MachineChange) -> Self {
        let was = of.from.map(|from| format!(" (was {})", from.name())).unwrap_or_default();
        Self {
            kind: EventKind::Machine,
            node: None,
            variant: None,
            task: None,
            what: of.to.name().into(),
            cause: format!("{}: {}{was}", of.name, of.why),
            who: format!("scheduler {}", of.who),
            at: of.at,
        }
    }

    pub(crate) fn of_node(node: NodeId, name: &str, state: NodeState, at: UnixMicros) -> Self {
        let cause = match state {
            NodeState::Up => "it reported for work",
            NodeState::Draining => "it finishes what it has and takes nothing new",
            NodeState::Gone => "it said good-bye",
        };
        Self {
            kind: EventKind::Node,
            node: Some(node),
            variant: None,
            task: None,
            what: state.name().into(),
            cause: cause.into(),
            who: format!("executor {name}"),
            at,
        }
    }
}
