//! Nodes, replicas and their history.

use super::conn::{Columns, Db, Tx, args};
use super::events;
use crate::check;
use crate::error::{Error, Result};
use crate::events::NewEvent;
use crate::machines::MachineStep;
use crate::records::{Holder, NewNode, NewTransition, Node, NodeState, Replica, Transition, UnixMicros};
use modelless_types::{Bytes, DeviceIx, NodeId, PricePerHour, ReplicaId, ReplicaState, VariantId};

pub(crate) async fn register_node(db: &Db, new: NewNode, at: UnixMicros) -> Result<Node> {
    check::node(&new, at)?;
    let mut tx = db.begin().await?;
    let fresh = tx.next_id("nodes").await?;
    let event = tx.next("events").await?;
    let known = tx.first("SELECT id, last_seen FROM nodes WHERE name = $1", args![new.name.as_str()]).await?;
    let (id, last_seen) = match &known {
        Some(row) => {
            let mut row = row.read(&db.name);
            (row.num()?, UnixMicros(row.num()?).max(at))
        }
        None => (fresh, at),
    };
    let sql = if known.is_some() {
        "UPDATE nodes SET name = $2, pool = $3, zone = $4, device_class = $5, lanes = $6, memory = $7, price = $8, \
         state = $9, last_seen = $10 WHERE id = $1"
    } else {
        "INSERT INTO nodes (id, name, pool, zone, device_class, lanes, memory, price, state, last_seen) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"
    };
    let values = args![
        id,
        new.name.as_str(),
        new.pool.as_str(),
        new.zone.as_str(),
        new.device_class.as_str(),
        u32::from(new.lanes),
        new.memory.0.cast_signed(),
        new.price.0.cast_signed(),
        NodeState::Up.name(),
        last_seen.0.cast_signed(),
    ];
    tx.exec(sql, values).await?;
    let came = NewEvent::of_node(NodeId(id), &new.name, NodeState::Up, at);
    events::write(&mut tx, event, &came).await?;
    tx.commit().await?;
    Ok(Node { id: NodeId(id), about: new, state: NodeState::Up, last_seen })
}

pub(crate) async fn node_seen(db: &Db, node: NodeId, state: NodeState, at: UnixMicros) -> Result<()> {
    check::number("time", at.0)?;
    let mut tx = db.begin().await?;
    let known = tx.first("SELECT name, state FROM nodes WHERE id = $1", args![node.0]).await?;
    let known = known.ok_or_else(|| Error::not_found("node", node))?;
    let mut known = known.read(&db.name);
    let (name, before) = (known.text()?, known.word(NodeState::parse)?);
    if before != state {
        let event = tx.next("events").await?;
        events::write(&mut tx, event, &NewEvent::of_node(node, &name, state, at)).await?;
    }
    let changed = tx
        .exec(
            "UPDATE nodes SET state = $2, last_seen = CASE WHEN last_seen < $3 THEN $3 ELSE last_seen END \
             WHERE id = $1",
            args![node.0, state.name(), at.0.cast_signed()],
        )
        .await?;
    if changed == 0 {
        return Err(Error::not_found("node", node));
    }
    tx.commit().await
}

pub(crate) async fn hold_node(
    db: &Db,
    name: &str,
    instance: u64,
    place: &str,
    gone: Option<&Holder>,
) -> Result<Holder> {
    check::holder(name, instance, place)?;
    let mut tx = db.begin().await?;
    let ours = instance.cast_signed();
    // Of two at once one finds the other's row.
    let insert = "INSERT INTO node_holders (name, instance, beat, place) VALUES ($1, $2, 0, $3) \
                  ON CONFLICT (name) DO NOTHING";
    tx.exec(insert, args![name, ours, place]).await?;
    let beats = "UPDATE node_holders SET beat = beat + 1 WHERE name = $1 AND instance = $2";
    let held = tx.exec(beats, args![name, ours]).await?;
    if held == 0
        && let Some(gone) = gone
    {
        let replace = "UPDATE node_holders SET instance = $2, beat = beat + 1, place = $3 \
                       WHERE name = $1 AND instance = $4 AND beat = $5";
        let (instance, beat) = (gone.instance.cast_signed(), gone.beat.cast_signed());
        tx.exec(replace, args![name, ours, place, instance, beat]).await?;
    }
    let row = tx.first("SELECT instance, beat, place FROM node_holders WHERE name = $1", args![name]).await?;
    let row = row.ok_or_else(|| Error::not_found("node", name))?;
    let mut row = row.read(&db.name);
    let holder = Holder { instance: row.num()?, beat: row.num()?, place: row.text()? };
    tx.commit().await?;
    Ok(holder)
}

pub(crate) async fn release_node(db: &Db, name: &str, instance: u64) -> Result<()> {
    let mut tx = db.begin().await?;
    let release = "DELETE FROM node_holders WHERE name = $1 AND instance = $2";
    tx.exec(release, args![name, instance.cast_signed()]).await?;
    tx.commit().await
}

pub(crate) async fn nodes(db: &Db) -> Result<Vec<Node>> {
    let sql = "SELECT id, name, pool, zone, device_class, lanes, memory, price, state, last_seen FROM nodes ORDER BY id";
    db.fetch(sql, Vec::new())
        .await?
        .iter()
        .map(|row| {
            let mut row = row.read(&db.name);
            Ok(Node {
                id: NodeId(row.num()?),
                about: NewNode {
                    name: row.text()?,
                    pool: row.text()?,
                    zone: row.text()?,
                    device_class: row.text()?,
                    lanes: row.num()?,
                    memory: Bytes(row.num()?),
                    price: PricePerHour(row.num()?),
                },
                state: row.word(NodeState::parse)?,
                last_seen: UnixMicros(row.num()?),
            })
        })
        .collect()
}

pub(crate) async fn add_replica(
    db: &Db,
    variant: VariantId,
    node: NodeId,
    device: DeviceIx,
) -> Result<Replica> {
    let mut tx = db.begin().await?;
    // Also keeps a model from being removed between the look and the insert: that takes this counter too.
    let id = tx.next("replicas").await?;
    if tx.first("SELECT id FROM variants WHERE id = $1", args![variant.0]).await?.is_none() {
        return Err(Error::not_found("variant", variant));
    }
    if tx.first("SELECT id FROM nodes WHERE id = $1", args![node.0]).await?.is_none() {
        return Err(Error::not_found("node", node));
    }
    let state = ReplicaState::Inactive;
    tx.exec(
        "INSERT INTO replicas (id, variant, node, device, state) VALUES ($1, $2, $3, $4, $5)",
        args![id, variant.0, node.0, u32::from(device.0), state.name()],
    )
    .await?;
    tx.commit().await?;
    Ok(Replica { id: ReplicaId(id.unsigned_abs()), variant, node, device, state })
}

pub(crate) async fn remove_replica(db: &Db, replica: ReplicaId) -> Result<()> {
    let mut tx = db.begin().await?;
    tx.next("replicas").await?;
    find(db, &mut tx, replica).await?.must_be_at_rest()?;
    tx.exec("DELETE FROM replicas WHERE id = $1", args![replica.0.cast_signed()]).await?;
    tx.commit().await
}

pub(crate) async fn replicas(db: &Db, node: Option<NodeId>) -> Result<Vec<Replica>> {
    let rows = match node {
        Some(node) => {
            let sql = "SELECT id, variant, node, device, state FROM replicas WHERE node = $1 ORDER BY id";
            db.fetch(sql, args![node.0]).await?
        }
        None => {
            db.fetch("SELECT id, variant, node, device, state FROM replicas ORDER BY id", Vec::new()).await?
        }
    };
    rows.iter().map(|row| replica(&mut row.read(&db.name))).collect()
}

async fn find(db: &Db, tx: &mut Tx, id: ReplicaId) -> Result<Replica> {
    let missing = || Error::not_found("replica", id);
    let number = i64::try_from(id.0).map_err(|_| missing())?;
    let sql = "SELECT id, variant, node, device, state FROM replicas WHERE id = $1";
    let row = tx.first(sql, args![number]).await?.ok_or_else(missing)?;
    replica(&mut row.read(&db.name))
}

pub(super) fn replica(row: &mut Columns<'_>) -> Result<Replica> {
    Ok(Replica {
        id: ReplicaId(row.num()?),
        variant: VariantId(row.num()?),
        node: NodeId(row.num()?),
        device: DeviceIx(row.num()?),
        state: row.word(ReplicaState::parse)?,
    })
}

pub(crate) async fn record_transition(db: &Db, change: NewTransition) -> Result<Transition> {
    let change = check::transition(change)?;
    let mut tx = db.begin().await?;
    tx.next("replicas").await?;
    let known = find(db, &mut tx, change.replica).await?;
    known.must_be(change.from)?;
    let transition = move_on(&mut tx, &known, change).await?;
    tx.commit().await?;
    Ok(transition)
}

/// Within a transaction that has taken the number of replicas.
async fn move_on(tx: &mut Tx, known: &Replica, change: NewTransition) -> Result<Transition> {
    let seq = tx.next("transitions").await?;
    let event = tx.next("events").await?;
    tx.exec(
        "UPDATE replicas SET state = $2 WHERE id = $1",
        args![change.replica.0.cast_signed(), change.to.name()],
    )
    .await?;
    tx.exec(
        "INSERT INTO transitions (seq, replica, variant, node, from_state, to_state, cause, who, at_us) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        args![
            seq,
            change.replica.0.cast_signed(),
            known.variant.0,
            known.node.0,
            change.from.name(),
            change.to.name(),
            change.cause.as_str(),
            change.who.as_str(),
            change.at.0.cast_signed(),
        ],
    )
    .await?;
    let (variant, node) = (known.variant, known.node);
    let transition = Transition { seq: seq.unsigned_abs(), variant, node, change };
    events::write(tx, event, &NewEvent::of_transition(&transition)).await?;
    Ok(transition)
}

/// What a machine had in memory when it ended goes with it; whoever was taken away without a word cannot say so himself. A node's row waits for
/// whoever writes an event, so the caller does that before [`leave_machine`].
pub(super) async fn settle_machine(db: &Db, tx: &mut Tx, name: &str, end: &MachineStep) -> Result<()> {
    tx.next("replicas").await?;
    let sql = "SELECT id, variant, node, device, state FROM replicas \
               WHERE node = (SELECT id FROM nodes WHERE name = $1) ORDER BY id";
    for row in tx.fetch(sql, args![name]).await? {
        let known = replica(&mut row.read(&db.name))?;
        if let Some(change) = known.lost_with(end) {
            move_on(tx, &known, check::transition(change)?).await?;
        }
    }
    Ok(())
}

/// Nobody is where a machine has ended.
pub(super) async fn leave_machine(tx: &mut Tx, name: &str) -> Result<()> {
    tx.exec("UPDATE nodes SET state = $2 WHERE name = $1", args![name, NodeState::Gone.name()]).await?;
    tx.exec("DELETE FROM node_holders WHERE name = $1", args![name]).await?;
    Ok(())
}

/// Forgets a machine's node, unless it is the last of its pool: that tells what the pool's hardware is.
pub(super) async fn forget_machine(db: &Db, tx: &mut Tx, name: &str) -> Result<()> {
    tx.next("replicas").await?;
    let older = "SELECT id FROM nodes WHERE name = $1 AND state = $2 AND id NOT IN (SELECT max(id) FROM nodes GROUP BY pool)";
    let Some(row) = tx.first(older, args![name, NodeState::Gone.name()]).await? else { return Ok(()) };
    let node = row.read(&db.name).int()?;
    tx.exec("DELETE FROM replicas WHERE node = $1", args![node]).await?;
    tx.exec("DELETE FROM nodes WHERE id = $1", args![node]).await?;
    Ok(())
}

pub(crate) async fn transitions(db: &Db, replica: Option<ReplicaId>, limit: u32) -> Result<Vec<Transition>> {
    let rows = if let Some(replica) = replica {
        let Ok(replica) = i64::try_from(replica.0) else { return Ok(Vec::new()) };
        let sql = "SELECT seq, variant, node, replica, from_state, to_state, cause, who, at_us FROM transitions \
                   WHERE replica = $1 ORDER BY seq DESC LIMIT $2";
        db.fetch(sql, args![replica, limit]).await?
    } else {
        let sql = "SELECT seq, variant, node, replica, from_state, to_state, cause, who, at_us FROM transitions \
                   ORDER BY seq DESC LIMIT $1";
        db.fetch(sql, args![limit]).await?
    };
    rows.iter()
        .map(|row| {
            let mut row = row.read(&db.name);
            Ok(Transition {
                seq: row.num()?,
                variant: VariantId(row.num()?),
                node: NodeId(row.num()?),
                change: NewTransition {
                    replica: ReplicaId(row.num()?),
                    from: row.word(ReplicaState::parse)?,
                    to: row.word(ReplicaState::parse)?,
                    cause: row.text()?,
                    who: row.text()?,
                    at: UnixMicros(row.num()?),
                },
            })
        })
        .collect()
}

pub(crate) async fn forget_transitions(db: &Db, before: UnixMicros) -> Result<u64> {
    let before = i64::try_from(before.0).unwrap_or(i64::MAX);
    let mut tx = db.begin().await?;
    let gone = tx.exec("DELETE FROM transitions WHERE at_us < $1", args![before]).await?;
    tx.commit().await?;
    Ok(gone)
}
