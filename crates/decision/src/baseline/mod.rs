//! Rules of others for machines, in the same binary as ours: to compare with, not for use.
//!
//! They are as their authors told them, with what that leaves open said where it is decided. What they decide goes the same way as
//! what [`crate::hire`] does: [`crate::fleet`] asks for machines, drains them and takes them away, whoever says how many
//! there should be. So a comparison shows the rules, and not what is around them.

mod vms;

pub use vms::{Act, Autoscaler, Pool, Seen, Targets, Worker};

use serde::{Deserialize, Serialize};

/// Whose rules say how many machines there should be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rules {
    /// Ours.
    #[default]
    Modelless,
    /// Those of the paper on INFaaS.
    Infaas,
}

impl Rules {
    /// As it is set and shown.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Modelless => "modelless",
            Self::Infaas => "infaas",
        }
    }
}
