//! What was done, by whom.

use super::SqlStore;
use super::conn::{Columns, args};
use crate::audit::{AUDIT_KEPT, Audit, Deed, Entry, REFUSED_KEPT};
use crate::check;
use crate::error::Result;
use crate::records::UnixMicros;
use async_trait::async_trait;
use modelless_types::{KeyId, TenantId};
use std::collections::BTreeSet;

const OF_ALL: &str = "SELECT seq, at_us, tenant, key_id, who, action, target, status FROM audit \
                      WHERE seq < $1 ORDER BY seq DESC LIMIT $2";
const OF_ONE: &str = "SELECT seq, at_us, tenant, key_id, who, action, target, status FROM audit \
                      WHERE seq < $1 AND tenant = $3 ORDER BY seq DESC LIMIT $2";
/// Its newest so many stay, of what was done and of what was refused.
const FORGET: [(&str, u64); 2] = [
    (
        "DELETE FROM audit WHERE tenant = $1 AND status NOT IN (401, 403) AND seq <= \
         (SELECT seq FROM audit WHERE tenant = $1 AND status NOT IN (401, 403) \
          ORDER BY seq DESC LIMIT 1 OFFSET $2)",
        AUDIT_KEPT,
    ),
    (
        "DELETE FROM audit WHERE tenant = $1 AND status IN (401, 403) AND seq <= \
         (SELECT seq FROM audit WHERE tenant = $1 AND status IN (401, 403) \
          ORDER BY seq DESC LIMIT 1 OFFSET $2)",
        REFUSED_KEPT,
    ),
];

#[async_trait]
impl Audit for SqlStore {
    async fn note(&self, deeds: Vec<Deed>) -> Result<()> {
        let mut tx = self.db.begin().await?;
        let tenants: BTreeSet<TenantId> = deeds.iter().map(|deed| deed.tenant).collect();
        for deed in deeds.into_iter().map(Deed::cut) {
            check::number("time", deed.at.0)?;
            let seq = tx.next("audit").await?;
            tx.exec(
                "INSERT INTO audit (seq, at_us, tenant, key_id, who, action, target, status) \
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
                args![
                    seq,
                    deed.at.0.cast_signed(),
                    deed.tenant.0,
                    deed.key.map(|key| i64::from(key.0)),
                    deed.who,
                    deed.action,
                    deed.target,
                    i64::from(deed.status),
                ],
            )
            .await?;
        }
        for tenant in tenants {
            for (forget, kept) in FORGET {
                tx.exec(forget, args![tenant.0, kept.cast_signed()]).await?;
            }
        }
        tx.commit().await
    }

    async fn noted(&self, tenant: Option<TenantId>, before: Option<u64>, limit: u32) -> Result<Vec<Entry>> {
        let before = before.and_then(|seq| i64::try_from(seq).ok()).unwrap_or(i64::MAX);
        let rows = match tenant {
            None => self.db.fetch(OF_ALL, args![before, limit]).await?,
            Some(tenant) => self.db.fetch(OF_ONE, args![before, limit, tenant.0]).await?,
        };
        rows.iter().map(|row| read(row.read(&self.db.name))).collect()
    }
}

fn read(mut row: Columns<'_>) -> Result<Entry> {
    let (seq, at, tenant) = (row.num()?, UnixMicros(row.num()?), TenantId(row.num()?));
    let key = row.opt_int()?.and_then(|id| u32::try_from(id).ok()).map(KeyId);
    let (who, action, target) = (row.text()?, row.text()?, row.text()?);
    Ok(Entry { seq, deed: Deed { at, tenant, key, who, action, target, status: row.num()? } })
}
