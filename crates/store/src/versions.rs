//! Who changed which version of a model answers: the words for it.

use crate::check;
use crate::error::Result;
use crate::records::{Evidence, UnixMicros};
use modelless_types::TaskId;
use serde::{Deserialize, Serialize};

/// Who changed something, in their own words, and when. Nothing proves it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Signed {
    /// Who, for people. May be empty.
    pub who: String,
    /// When.
    pub at: UnixMicros,
}

/// What becomes of the wish that a version be the default once it is measured. Who promotes it otherwise has fulfilled it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Wish {
    /// Somebody has it, in their own words; again, or for a version that was registered without.
    Made(String),
    /// It is measured: it is the default from then on, as whoever wished it.
    Granted(UnixMicros),
    /// A later version is the default, which is what was said last.
    Overtaken,
}

/// What there is to do about a wish.
pub(crate) enum WishKept {
    /// Nothing: nobody has it.
    Nobody,
    /// What is measured with is to be written again.
    Changed,
    /// And the version is the default from now on, as this one wants.
    Granted(Signed),
}

impl Wish {
    /// What follows from it for what a version is measured with: the same in every store.
    pub(crate) fn upon(self, evidence: &mut Evidence) -> Result<WishKept> {
        match self {
            Self::Made(who) => {
                evidence.promote = Some(who);
                check::evidence(evidence)?;
                Ok(WishKept::Changed)
            }
            Self::Granted(at) => {
                let granted = evidence.promote.take().map(|who| WishKept::Granted(Signed { who, at }));
                Ok(granted.unwrap_or(WishKept::Nobody))
            }
            Self::Overtaken => {
                let had = evidence.promote.take().is_some();
                Ok(if had { WishKept::Changed } else { WishKept::Nobody })
            }
        }
    }
}

/// What was done to a version of a model.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VersionAction {
    /// It was registered.
    Registered,
    /// It was made the default.
    Promoted,
    /// It was the default, and the one before it is again.
    RolledBack,
    /// It was removed.
    Removed,
}

impl VersionAction {
    /// As shown and stored.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Registered => "registered",
            Self::Promoted => "promoted",
            Self::RolledBack => "rolled_back",
            Self::Removed => "removed",
        }
    }

    /// From that name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Registered, Self::Promoted, Self::RolledBack, Self::Removed]
            .into_iter()
            .find(|action| action.name() == name)
    }
}

/// An entry in the history of a name's versions.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VersionChange {
    /// Place in the history of all models.
    pub seq: u64,
    /// Of which task.
    pub task: TaskId,
    /// The models' name.
    pub name: String,
    /// To which of its versions something was done.
    pub version: u32,
    /// What.
    pub action: VersionAction,
    /// The default version before.
    pub before: Option<u32>,
    /// The default version from then on.
    pub after: Option<u32>,
    /// Who did it.
    #[serde(flatten)]
    pub by: Signed,
}

/// Whether a version was the default since it was registered last, by what was done to it, newest first.
pub(crate) fn was_default(
    version: u32,
    done: impl IntoIterator<Item = (VersionAction, Option<u32>)>,
) -> bool {
    for (action, after) in done {
        if after == Some(version) || action == VersionAction::Registered {
            return after == Some(version);
        }
    }
    false
}
