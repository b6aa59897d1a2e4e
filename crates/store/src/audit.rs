//! What was asked for that changes something, by whom, and what came of it.

use crate::error::Result;
use crate::records::UnixMicros;
use async_trait::async_trait;
use modelless_types::{KeyId, TenantId};

/// So many entries of each tenant are kept; its oldest are forgotten. Nobody pushes out what another did.
pub const AUDIT_KEPT: u64 = 10_000;
/// And of what was refused for want of a right so many besides: a flood of that pushes out nothing that was done.
pub const REFUSED_KEPT: u64 = 1_000;
/// In place of a tenant where nobody knows who came. No tenant has this number.
pub const STRANGERS: TenantId = TenantId(0);
/// Longest text of an entry, and of what was done; what is longer is cut.
const TEXT_MAX: usize = 300;
const TARGET_MAX: usize = 1_000;

/// Something that was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Deed {
    /// When it was done.
    pub at: UnixMicros,
    /// For which tenant; [`STRANGERS`] where nobody knows.
    pub tenant: TenantId,
    /// With which key; `None` where none was needed.
    pub key: Option<KeyId>,
    /// Who, for people.
    pub who: String,
    /// What: a method and a route, or a call.
    pub action: String,
    /// With what: the path as it came, and after `: ` what was asked of it.
    pub target: String,
    /// What came of it, as HTTP says it.
    pub status: u16,
}

impl Deed {
    /// Whether it was refused for want of a right. The store's query names the same.
    pub(crate) fn refused(&self) -> bool {
        matches!(self.status, 401 | 403)
    }

    /// The same with texts that can be stored.
    pub(crate) fn cut(mut self) -> Self {
        let texts = [(&mut self.who, TEXT_MAX), (&mut self.action, TEXT_MAX), (&mut self.target, TARGET_MAX)];
        for (text, most) in texts {
            if text.contains(char::is_control) {
                *text = text.replace(char::is_control, "\u{fffd}");
            }
            text.truncate(text.floor_char_boundary(most));
        }
        self
    }
}

/// One that is kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its place; a later one has a higher number.
    pub seq: u64,
    /// What was done.
    pub deed: Deed,
}

/// The part of a store that keeps what was done.
#[async_trait]
pub trait Audit: Send + Sync {
    /// Keeps these, in this order, and forgets each tenant's oldest beyond [`AUDIT_KEPT`], and
    /// of what was refused beyond [`REFUSED_KEPT`].
    async fn note(&self, deeds: Vec<Deed>) -> Result<()>;

    /// The latest of a tenant, or of all, newest first; only those before `before`, where that is given.
    async fn noted(&self, tenant: Option<TenantId>, before: Option<u64>, limit: u32) -> Result<Vec<Entry>>;
}
