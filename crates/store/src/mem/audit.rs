//! What was done, in the fake.

use super::MemStore;
use crate::audit::{AUDIT_KEPT, Audit, Deed, Entry, REFUSED_KEPT};
use crate::error::Result;
use async_trait::async_trait;
use modelless_types::TenantId;
use std::collections::BTreeMap;

#[async_trait]
impl Audit for MemStore {
    async fn note(&self, deeds: Vec<Deed>) -> Result<()> {
        self.write(|state| {
            for deed in deeds {
                let seq = state.next("audit");
                state.audit.push(Entry { seq, deed: deed.cut() });
            }
            let mut rest: BTreeMap<(TenantId, bool), u64> = BTreeMap::new();
            for Entry { deed, .. } in &state.audit {
                *rest.entry((deed.tenant, deed.refused())).or_default() += 1;
            }
            // The oldest come first.
            state.audit.retain(|Entry { deed, .. }| {
                let rest = rest.entry((deed.tenant, deed.refused())).or_default();
                *rest -= 1;
                *rest < if deed.refused() { REFUSED_KEPT } else { AUDIT_KEPT }
            });
            Ok(())
        })
    }

    async fn noted(&self, tenant: Option<TenantId>, before: Option<u64>, limit: u32) -> Result<Vec<Entry>> {
        let wanted = |known: &&Entry| {
            tenant.is_none_or(|tenant| known.deed.tenant == tenant)
                && before.is_none_or(|end| known.seq < end)
        };
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        self.read(|state| state.audit.iter().rev().filter(wanted).take(limit).cloned().collect())
    }
}
