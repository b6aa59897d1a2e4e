//! What one plan changes in another, and why.

use super::{Pin, Plan, Step};
use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// A pin that comes or goes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Change {
    /// What, and where.
    #[serde(flatten)]
    pub pin: Pin,
    /// It comes; otherwise it goes.
    pub comes: bool,
    /// Why, as the later plan says.
    pub why: String,
}

/// What `after` changes in `before`.
pub fn changes(before: &Plan, after: &Plan) -> Vec<Change> {
    let pins = |plan: &Plan| plan.pins.iter().copied().collect::<BTreeSet<Pin>>();
    let (old, new) = (pins(before), pins(after));
    let why = |pin: &Pin| {
        let of = |step: &&Step| step.node == pin.node && step.variant == pin.variant;
        after.report.iter().find(of).map(|step| step.why.clone())
    };
    let gone = || "its node is gone, or cannot run it any longer".into();
    let comes =
        new.difference(&old).map(|pin| Change { pin: *pin, comes: true, why: why(pin).unwrap_or_default() });
    let goes = old.difference(&new).map(|pin| Change {
        pin: *pin,
        comes: false,
        why: why(pin).unwrap_or_else(gone),
    });
    comes.chain(goes).collect()
}
