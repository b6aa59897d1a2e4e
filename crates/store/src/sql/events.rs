//! What happened, in one order.

use super::conn::{Columns, Db, Tx, args};
use crate::error::Result;
use crate::events::{Event, EventKind, NewEvent};
use crate::records::UnixMicros;
use crate::{EVENTS_KEPT, check};
use modelless_types::{NodeId, TaskId, VariantId};

pub(crate) async fn note(db: &Db, event: NewEvent) -> Result<Event> {
    let event = check::event(event)?;
    let mut tx = db.begin().await?;
    let seq = tx.next("events").await?;
    write(&mut tx, seq, &event).await?;
    tx.commit().await?;
    Ok(Event { seq: seq.unsigned_abs(), about: event })
}

/// Within a transaction that has taken the number.
pub(super) async fn write(tx: &mut Tx, seq: i64, event: &NewEvent) -> Result<()> {
    tx.exec(
        "INSERT INTO events (seq, kind, node, variant, what, cause, who, at_us, task) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        args![
            seq,
            event.kind.name(),
            event.node.map(|node| i64::from(node.0)),
            event.variant.map(|variant| i64::from(variant.0)),
            event.what.as_str(),
            event.cause.as_str(),
            event.who.as_str(),
            event.at.0.cast_signed(),
            event.task.map(|task| i64::from(task.0)),
        ],
    )
    .await?;
    tx.exec("DELETE FROM events WHERE seq <= $1", args![seq - EVENTS_KEPT.cast_signed()]).await?;
    Ok(())
}

pub(crate) async fn after(db: &Db, after: Option<u64>, limit: u32) -> Result<Vec<Event>> {
    let rows = if let Some(after) = after {
        let after = i64::try_from(after).unwrap_or(i64::MAX);
        let sql = "SELECT seq, kind, node, variant, what, cause, who, at_us, task FROM events \
                   WHERE seq > $1 ORDER BY seq LIMIT $2";
        db.fetch(sql, args![after, limit]).await?
    } else {
        let sql = "SELECT seq, kind, node, variant, what, cause, who, at_us, task FROM events ORDER BY seq DESC LIMIT $1";
        let mut rows = db.fetch(sql, args![limit]).await?;
        rows.reverse();
        rows
    };
    let read = |mut row: Columns<'_>| {
        Ok(Event {
            seq: row.num()?,
            about: NewEvent {
                kind: row.word(EventKind::parse)?,
                node: number(&mut row)?.map(NodeId),
                variant: number(&mut row)?.map(VariantId),
                what: row.text()?,
                cause: row.text()?,
                who: row.text()?,
                at: UnixMicros(row.num()?),
                task: number(&mut row)?.map(TaskId),
            },
        })
    };
    rows.iter().map(|row| read(row.read(&db.name))).collect()
}

fn number(row: &mut Columns<'_>) -> Result<Option<u32>> {
    Ok(row.opt_int()?.and_then(|id| u32::try_from(id).ok()))
}
