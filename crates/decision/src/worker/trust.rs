//! What a variant's last runs say of it: whether a death is an input's doing or its own.
//!
//! Who crashes a runner alone as well is to blame, but only if the variant can run anything at all: one that takes its
//! process down whatever it is asked is broken, and each of its deaths counts. So a death is pardoned on the word of a run
//! that ended well, and each such word is good for one death to come.

use alloc::collections::BTreeMap;
use modelless_types::VariantId;

#[derive(Clone, Copy, Debug, Default)]
struct Standing {
    /// Something ran well since a death was last pardoned.
    well: bool,
    /// Deaths pinned on an input since anything ran well.
    owed: u32,
    /// Members that crashed alone since anything ran well.
    row: u32,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Trust(BTreeMap<VariantId, Standing>);

impl Trust {
    /// Something of it ran to its end: gives how many deaths are pardoned now.
    pub(super) fn ran_well(&mut self, variant: VariantId) -> u32 {
        let before = self.0.insert(variant, Standing { well: true, ..Standing::default() });
        before.map_or(0, |standing| standing.owed)
    }

    /// A member crashed alone.
    pub(super) fn crashed_alone(&mut self, variant: VariantId) {
        let standing = self.0.entry(variant).or_default();
        standing.row = standing.row.saturating_add(1);
    }

    /// A death is pinned on an input: gives whether it is pardoned at once.
    pub(super) fn pinned(&mut self, variant: VariantId) -> bool {
        let standing = self.0.entry(variant).or_default();
        let pardoned = core::mem::take(&mut standing.well);
        standing.owed = standing.owed.saturating_add(u32::from(!pardoned));
        pardoned
    }

    /// So many crashed alone in a row that to run more of them alone would teach nothing.
    pub(super) fn hopeless(&self, variant: VariantId, after: u32) -> bool {
        self.0.get(&variant).is_some_and(|standing| standing.row >= after.max(1))
    }

    pub(super) fn keep(&mut self, known: impl Fn(VariantId) -> bool) {
        self.0.retain(|variant, _| known(*variant));
    }
}
