//! What was asked earlier. Whoever writes takes the next number of `asked` first, so that two who write the same slot wait for each other.

use super::SqlStore;
use super::conn::{args, listed};
use crate::bins::{self, BINS_A_SLOT, Bins, SLOTS_KEPT, SlotSeen};
use crate::error::Result;
use async_trait::async_trait;
use modelless_types::{Bin, Slot, TaskId};
use std::collections::BTreeMap;
use std::ops::Range;

#[async_trait]
impl Bins for SqlStore {
    async fn put_slot(&self, seen: SlotSeen) -> Result<()> {
        let SlotSeen { slot, seen_s, bins } = seen.checked()?;
        let mut tx = self.db.begin().await?;
        tx.next("asked").await?;
        let sql = "INSERT INTO asked_slots (slot, seen_s) VALUES ($1, $2) ON CONFLICT (slot) DO UPDATE SET \
                   seen_s = CASE WHEN excluded.seen_s > asked_slots.seen_s THEN excluded.seen_s ELSE asked_slots.seen_s END";
        tx.exec(sql, args![slot.0, u32::from(seen_s)]).await?;
        if !bins.is_empty() {
            let row = |(task, bin): (&TaskId, &Bin)| (task.0, bin.peak_per_1000_s, bin.queries);
            let rows: Vec<(u32, u64, u64)> = bins.iter().map(row).collect();
            let rows = serde_json::to_string(&rows).expect("numbers can be written; this is a bug");
            let sql = listed!(
                tx,
                "INSERT INTO asked_bins (slot, task, peak_per_1000_s, queries) SELECT CAST($1 AS BIGINT), \
                 CAST(item.value ->> 0 AS BIGINT), CAST(item.value ->> 1 AS BIGINT), CAST(item.value ->> 2 AS BIGINT) FROM ",
                "$2",
                " WHERE true ON CONFLICT (slot, task) DO UPDATE SET peak_per_1000_s = CASE WHEN excluded.peak_per_1000_s > \
                 asked_bins.peak_per_1000_s THEN excluded.peak_per_1000_s ELSE asked_bins.peak_per_1000_s END, queries = CASE WHEN \
                 excluded.queries > asked_bins.queries THEN excluded.queries ELSE asked_bins.queries END"
            );
            tx.exec(sql, args![slot.0, rows]).await?;
            let sql = "DELETE FROM asked_bins WHERE slot = $1 AND task NOT IN \
                       (SELECT task FROM asked_bins WHERE slot = $1 ORDER BY queries DESC, task LIMIT $2)";
            tx.exec(sql, args![slot.0, i64::try_from(BINS_A_SLOT).unwrap_or(i64::MAX)]).await?;
        }
        let sql = "SELECT slot FROM asked_slots ORDER BY slot DESC LIMIT 1 OFFSET $1";
        if let Some(row) = tx.first(sql, args![SLOTS_KEPT]).await? {
            let last: i64 = row.read(&self.db.name).int()?;
            tx.exec("DELETE FROM asked_bins WHERE slot <= $1", args![last]).await?;
            tx.exec("DELETE FROM asked_slots WHERE slot <= $1", args![last]).await?;
        }
        tx.commit().await
    }

    async fn slots(&self, ranges: &[Range<Slot>], task: Option<TaskId>) -> Result<Vec<SlotSeen>> {
        bins::ranges(ranges)?;
        let mut tx = self.db.snapshot().await?;
        let mut all: BTreeMap<Slot, SlotSeen> = BTreeMap::new();
        for range in ranges {
            let sql = "SELECT slot, seen_s FROM asked_slots WHERE slot >= $1 AND slot < $2";
            for row in tx.fetch(sql, args![range.start.0, range.end.0]).await? {
                let mut row = row.read(&self.db.name);
                let (slot, seen_s) = (Slot(row.num()?), row.num()?);
                all.insert(slot, SlotSeen { slot, seen_s, bins: BTreeMap::new() });
            }
            let rows = if let Some(task) = task {
                let sql = "SELECT slot, task, peak_per_1000_s, queries FROM asked_bins \
                           WHERE slot >= $1 AND slot < $2 AND task = $3";
                tx.fetch(sql, args![range.start.0, range.end.0, task.0]).await?
            } else {
                let sql = "SELECT slot, task, peak_per_1000_s, queries FROM asked_bins WHERE slot >= $1 AND slot < $2";
                tx.fetch(sql, args![range.start.0, range.end.0]).await?
            };
            for row in rows {
                let mut row = row.read(&self.db.name);
                let (slot, task) = (Slot(row.num()?), TaskId(row.num()?));
                let bin = Bin { peak_per_1000_s: row.num()?, queries: row.num()? };
                if let Some(seen) = all.get_mut(&slot) {
                    seen.bins.insert(task, bin);
                }
            }
        }
        Ok(all.into_values().collect())
    }
}
