//! Machines that are rented.

use super::conn::{Columns, Tx, args};
use super::{SqlStore, events, fleet};
use crate::check;
use crate::error::{Error, Result};
use crate::events::NewEvent;
use crate::machines::{
    MACHINE_CHANGES_KEPT, MACHINES_KEPT, Machine, MachineChange, MachineStep, Machines, NewMachine, Number,
    PoolStands,
};
use crate::records::UnixMicros;
use async_trait::async_trait;
use modelless_types::{MachineId, MachineState, PricePerHour};

const ENDED: [MachineState; 2] = [MachineState::Gone, MachineState::Failed];

fn machine(mut row: Columns<'_>) -> Result<Machine> {
    Ok(Machine {
        id: MachineId(row.num()?),
        pool: row.text()?,
        name: row.text()?,
        instance: row.opt_text()?,
        state: row.word(MachineState::parse)?,
        price: PricePerHour(row.num()?),
        asked: UnixMicros(row.num()?),
        since: UnixMicros(row.num()?),
        joined: row.opt_int()?.map(|at| UnixMicros(at.unsigned_abs())),
    })
}

fn change(mut row: Columns<'_>) -> Result<MachineChange> {
    Ok(MachineChange {
        seq: row.num()?,
        machine: MachineId(row.num()?),
        pool: row.text()?,
        name: row.text()?,
        from: row.opt_word(MachineState::parse)?,
        to: row.word(MachineState::parse)?,
        why: row.text()?,
        who: row.text()?,
        at: UnixMicros(row.num()?),
    })
}

/// As what became of it, and as an event.
async fn note(tx: &mut Tx, change: MachineChange) -> Result<()> {
    let event = tx.next("events").await?;
    events::write(tx, event, &NewEvent::of_machine(&change)).await?;
    let sql = "INSERT INTO machine_changes (seq, machine, pool, name, from_state, to_state, why, who, at_us) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)";
    let seq = change.seq.cast_signed();
    tx.exec(
        sql,
        args![
            seq,
            change.machine.0.cast_signed(),
            change.pool,
            change.name,
            change.from.map(|from| from.name().to_owned()),
            change.to.name(),
            change.why,
            change.who,
            change.at.0.cast_signed(),
        ],
    )
    .await?;
    let oldest = seq - MACHINE_CHANGES_KEPT.cast_signed();
    tx.exec("DELETE FROM machine_changes WHERE seq <= $1", args![oldest]).await?;
    Ok(())
}

#[async_trait]
impl Machines for SqlStore {
    async fn add_machine(&self, new: NewMachine) -> Result<Option<Machine>> {
        let new = new.checked()?;
        let db = &self.db;
        let mut tx = db.begin().await?;
        let count = async |tx: &mut Tx, sql, args| -> Result<u64> {
            match tx.first(sql, args).await? {
                Some(row) => row.read(&db.name).num(),
                None => Ok(0),
            }
        };
        // Everybody else who wants one waits at the number, and then sees this one.
        let (id, machine) = loop {
            let id = tx.next("machines").await?;
            let machine = new.numbered(MachineId(id.unsigned_abs()));
            let same = "SELECT count(*) FROM machines WHERE name = $1";
            let taken = count(&mut tx, same, args![machine.name.as_str()]).await? > 0;
            match new.after(&machine, taken) {
                Number::Fits => break (id, machine),
                Number::Next => {}
                Number::None => return Ok(None),
            }
        };
        let (gone, failed) = (ENDED[0].name(), ENDED[1].name());
        let in_pool = "SELECT count(*) FROM machines WHERE pool = $1 AND state NOT IN ($2, $3)";
        let in_pool = count(&mut tx, in_pool, args![new.pool.as_str(), gone, failed]).await?;
        // Postgres makes a decimal number of a sum.
        let spent =
            "SELECT CAST(coalesce(sum(price), 0) AS BIGINT) FROM machines WHERE state NOT IN ($1, $2)";
        let spent = count(&mut tx, spent, args![gone, failed]).await?;
        if !new.fits(in_pool, spent) {
            return Ok(None);
        }
        tx.exec(
            "INSERT INTO machines (id, pool, name, instance, state, price, asked_us, since_us, joined_us) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, NULL)",
            args![
                id,
                machine.pool.as_str(),
                machine.name.as_str(),
                machine.instance.clone(),
                machine.state.name(),
                machine.price.0.cast_signed(),
                machine.asked.0.cast_signed(),
                machine.since.0.cast_signed(),
            ],
        )
        .await?;
        let seq = tx.next("machine_changes").await?.unsigned_abs();
        let forgotten = || args![id - MACHINES_KEPT.cast_signed(), gone, failed];
        let old = "SELECT name FROM machines WHERE id <= $1 AND state IN ($2, $3)";
        for row in tx.fetch(old, forgotten()).await? {
            fleet::forget_machine(db, &mut tx, &row.read(&db.name).text()?).await?;
        }
        tx.exec("DELETE FROM machines WHERE id <= $1 AND state IN ($2, $3)", forgotten()).await?;
        note(&mut tx, machine.noted(seq, None, &new.why, &new.by)).await?;
        tx.commit().await?;
        Ok(Some(machine))
    }

    async fn move_machine(&self, step: MachineStep) -> Result<Machine> {
        let step = step.checked()?;
        let db = &self.db;
        let mut tx = db.begin().await?;
        // Whoever moves one waits here, so what is read next is what it is.
        let seq = tx.next("machine_changes").await?.unsigned_abs();
        let sql = "SELECT id, pool, name, instance, state, price, asked_us, since_us, joined_us FROM machines \
                   WHERE id = $1";
        let row = tx.first(sql, args![step.machine.0.cast_signed()]).await?;
        let row = row.ok_or_else(|| Error::not_found("machine", step.machine))?;
        let moved = step.taken(machine(row.read(&db.name))?)?;
        tx.exec(
            "UPDATE machines SET instance = $2, state = $3, since_us = $4, joined_us = $5 WHERE id = $1",
            args![
                moved.id.0.cast_signed(),
                moved.instance.clone(),
                moved.state.name(),
                moved.since.0.cast_signed(),
                moved.joined.map(|at| at.0.cast_signed()),
            ],
        )
        .await?;
        if moved.state.ended() {
            fleet::settle_machine(db, &mut tx, &moved.name, &step).await?;
        }
        note(&mut tx, step.noted(seq, &moved)).await?;
        if moved.state.ended() {
            fleet::leave_machine(&mut tx, &moved.name).await?;
        }
        tx.commit().await?;
        Ok(moved)
    }

    async fn price_machines(&self, pool: &str, price: PricePerHour) -> Result<()> {
        check::number("price", price.0)?;
        let mut tx = self.db.begin().await?;
        // Whoever adds one counts what all cost, before this or after it.
        tx.next("machines").await?;
        let sql = "UPDATE machines SET price = $2 WHERE pool = $1 AND state NOT IN ($3, $4)";
        tx.exec(sql, args![pool, price.0.cast_signed(), ENDED[0].name(), ENDED[1].name()]).await?;
        tx.commit().await
    }

    async fn machines(&self) -> Result<Vec<Machine>> {
        let sql = "SELECT id, pool, name, instance, state, price, asked_us, since_us, joined_us FROM machines \
                   WHERE state NOT IN ($1, $2) ORDER BY id";
        let rows = self.db.fetch(sql, args![ENDED[0].name(), ENDED[1].name()]).await?;
        rows.iter().map(|row| machine(row.read(&self.db.name))).collect()
    }

    async fn ended_machines(&self, limit: u32) -> Result<Vec<Machine>> {
        let sql = "SELECT id, pool, name, instance, state, price, asked_us, since_us, joined_us FROM machines \
                   WHERE state IN ($1, $2) ORDER BY id DESC LIMIT $3";
        let rows = self.db.fetch(sql, args![ENDED[0].name(), ENDED[1].name(), limit]).await?;
        rows.iter().map(|row| machine(row.read(&self.db.name))).collect()
    }

    async fn machine_named(&self, name: &str) -> Result<Option<Machine>> {
        let sql = "SELECT id, pool, name, instance, state, price, asked_us, since_us, joined_us FROM machines \
                   WHERE name = $1";
        let rows = self.db.fetch(sql, args![name]).await?;
        rows.first().map(|row| machine(row.read(&self.db.name))).transpose()
    }

    async fn machine_changes(&self, machine: Option<MachineId>, limit: u32) -> Result<Vec<MachineChange>> {
        let rows = if let Some(machine) = machine {
            let Ok(machine) = i64::try_from(machine.0) else { return Ok(Vec::new()) };
            let sql = "SELECT seq, machine, pool, name, from_state, to_state, why, who, at_us FROM machine_changes \
                       WHERE machine = $1 ORDER BY seq DESC LIMIT $2";
            self.db.fetch(sql, args![machine, limit]).await?
        } else {
            let sql = "SELECT seq, machine, pool, name, from_state, to_state, why, who, at_us FROM machine_changes \
                       ORDER BY seq DESC LIMIT $1";
            self.db.fetch(sql, args![limit]).await?
        };
        rows.iter().map(|row| change(row.read(&self.db.name))).collect()
    }

    async fn put_pools(&self, pools: Vec<PoolStands>) -> Result<()> {
        pools.iter().try_for_each(|pool| check::name("pool", &pool.name))?;
        pools.iter().try_for_each(|pool| check::json("pool", &pool.json))?;
        let mut tx = self.db.begin().await?;
        // Of two who do this at once one waits.
        tx.next("machine_changes").await?;
        tx.exec("DELETE FROM pools", Vec::new()).await?;
        for pool in pools {
            let sql = "INSERT INTO pools (name, body, at_us) VALUES ($1, $2, $3)";
            tx.exec(sql, args![pool.name, pool.json, pool.at.0.cast_signed()]).await?;
        }
        tx.commit().await
    }

    async fn pools(&self) -> Result<Vec<PoolStands>> {
        let rows = self.db.fetch("SELECT name, body, at_us FROM pools ORDER BY name", Vec::new()).await?;
        let read = |mut row: Columns<'_>| {
            Ok(PoolStands { name: row.text()?, json: row.text()?, at: UnixMicros(row.num()?) })
        };
        rows.iter().map(|row| read(row.read(&self.db.name))).collect()
    }
}
