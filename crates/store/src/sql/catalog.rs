//! What is registered. Every change takes the next number of the `catalog` counter first: that is the version
//! readers poll, and the lock that lets one registration happen at a time.

use super::conn::{Columns, Db, Tx, args, corrupt};
use super::versions::{self, Change};
use super::{flags, fleet, learnt, measuring, trials};
use crate::check;
use crate::error::{Error, Result};
use crate::learnt::{Note, measured_otherwise};
use crate::records::{
    App, Catalog, Evidence, NewModel, NewSpace, NewTask, NewVariant, Registered, Space, SpaceKind,
    TaskChange, Tenant,
};
use crate::trials::{Trial, ended};
use crate::versions::{Signed, VersionAction};
use modelless_types::{
    AccuracyRule, Ahead, AppId, Bytes, DeclaredRule, LiveRule, Model, ModelId, Profile, SpaceId, Task,
    TaskId, TaskKind, TenantId, Variant, VariantId,
};
use serde::Serialize;
use std::collections::BTreeMap;

pub(crate) async fn version(db: &Db) -> Result<u64> {
    let rows = db.fetch("SELECT value FROM counters WHERE name = 'catalog'", Vec::new()).await?;
    match rows.first() {
        Some(row) => row.read(&db.name).num(),
        None => Err(corrupt(&db.name, "the version of the catalog is missing")),
    }
}

pub(crate) async fn read(db: &Db) -> Result<Catalog> {
    let mut tx = db.snapshot().await?;
    let name = &db.name;
    let version = tx.fetch("SELECT value FROM counters WHERE name = 'catalog'", Vec::new()).await?;
    let version = version.first().map_or(Ok(0), |row| row.read(name).num())?;

    let mut catalog = Catalog { version, ..Catalog::default() };
    for row in tx.fetch("SELECT id, name FROM tenants ORDER BY id", Vec::new()).await? {
        let mut row = row.read(name);
        catalog.tenants.push(Tenant { id: TenantId(row.num()?), name: row.text()? });
    }
    for row in tx.fetch("SELECT id, tenant, name FROM apps ORDER BY id", Vec::new()).await? {
        let mut row = row.read(name);
        catalog.apps.push(App { id: AppId(row.num()?), tenant: TenantId(row.num()?), name: row.text()? });
    }
    for row in
        tx.fetch("SELECT id, tenant, name, kind, dimension, hash FROM spaces ORDER BY id", Vec::new()).await?
    {
        catalog.spaces.push(space(row.read(name))?);
    }
    let sql = "SELECT id, tenant, name, kind, metric, accuracy_rule, labels, inputs, outputs, default_space, defaults, description, \
               batching, live_accuracy, declared_accuracy, cache, keep, ahead \
               FROM tasks ORDER BY id";
    for row in tx.fetch(sql, Vec::new()).await? {
        catalog.tasks.push(task(row.read(name))?);
    }
    let sql = "SELECT id, task, tenant, name, version, architecture, licence, owner, promoted, space, adapter FROM models \
               ORDER BY id";
    for row in tx.fetch(sql, Vec::new()).await? {
        let mut row = row.read(name);
        catalog.models.push(Model {
            id: ModelId(row.num()?),
            task: TaskId(row.num()?),
            tenant: TenantId(row.num()?),
            name: row.text()?,
            version: row.num()?,
            architecture: row.text()?,
            licence: row.text()?,
            owner: row.text()?,
            promoted: row.num()?,
            space: SpaceId(row.num()?),
            adapter: row.text()?,
        });
    }
    let mut profiles: BTreeMap<u32, Vec<Profile>> = BTreeMap::new();
    // Sorted here and not there: databases differ in how they order texts.
    for row in tx.fetch("SELECT variant, body FROM profiles", Vec::new()).await? {
        let mut row = row.read(name);
        profiles.entry(row.num()?).or_default().push(row.json()?);
    }
    let sql = "SELECT id, model, ordinal, name, settings, artefact, artefact_bytes FROM variants ORDER BY id";
    for row in tx.fetch(sql, Vec::new()).await? {
        let mut row = row.read(name);
        let id: u32 = row.num()?;
        let mut profiles = profiles.remove(&id).unwrap_or_default();
        profiles.sort_by(|a, b| a.device_class.cmp(&b.device_class));
        catalog.variants.push(Variant {
            id: VariantId(id),
            model: ModelId(row.num()?),
            ordinal: row.num()?,
            name: row.text()?,
            settings: row.json()?,
            artefact: row.text()?,
            artefact_bytes: Bytes(row.num()?),
            profiles,
        });
    }
    catalog.stale = learnt::marks(&mut tx, name).await?;
    catalog.live = learnt::within(&mut tx, name).await?;
    catalog.trials = trials::running(&mut tx, name).await?;
    Ok(catalog)
}

fn space(mut row: Columns<'_>) -> Result<Space> {
    let (id, tenant, name) = (SpaceId(row.num()?), TenantId(row.num()?), row.text()?);
    let kind = row.text()?;
    let (dimension, hash) = (row.opt_int()?, row.opt_text()?);
    let dimension = dimension.and_then(|dimension| u32::try_from(dimension).ok());
    let kind = match (kind.as_str(), dimension, hash) {
        ("labels", None, Some(hash)) => SpaceKind::Labels { hash },
        ("tensor", None, Some(hash)) => SpaceKind::Tensor { hash },
        ("embedding", Some(dimension), None) => SpaceKind::Embedding { dimension },
        _ => return Err(row.senseless(format!("the output space {name:?} is of no known kind"))),
    };
    Ok(Space { id, tenant, name, kind })
}

fn task(mut row: Columns<'_>) -> Result<Task> {
    Ok(Task {
        id: TaskId(row.num()?),
        tenant: TenantId(row.num()?),
        name: row.text()?,
        kind: row.word(TaskKind::parse)?,
        metric: row.text()?,
        accuracy_rule: row.word(AccuracyRule::parse)?,
        labels: row.json()?,
        inputs: row.json()?,
        outputs: row.json()?,
        default_space: SpaceId(row.num()?),
        defaults: row.json()?,
        description: row.text()?,
        batching: row.opt_word(|text| text.parse().ok())?,
        live_accuracy: row.word(LiveRule::parse)?,
        declared_accuracy: row.word(DeclaredRule::parse)?,
        cache: row.word(|text| text.parse().ok())?,
        keep: row.word(|text| text.parse().ok())?,
        ahead: row.word(Ahead::parse)?,
    })
}

pub(crate) async fn create_task(db: &Db, new: NewTask) -> Result<Task> {
    let wanted = check::task(&new)?;
    let mut tx = db.begin().await?;
    tx.next("catalog").await?;
    if tx.first("SELECT id FROM tenants WHERE id = $1", args![new.tenant.0]).await?.is_none() {
        return Err(Error::not_found("tenant", new.tenant));
    }
    let sql = "SELECT id FROM tasks WHERE tenant = $1 AND name = $2";
    if tx.first(sql, args![new.tenant.0, new.name.as_str()]).await?.is_some() {
        return Err(Error::exists("task", new.name));
    }
    let space = find_or_make_space(db, &mut tx, new.tenant, &wanted).await?;
    let id = tx.next_id("tasks").await?;
    tx.exec(
        "INSERT INTO tasks (id, tenant, name, kind, metric, accuracy_rule, labels, inputs, outputs, default_space, \
         defaults, description, batching, live_accuracy, declared_accuracy, cache, keep, ahead, next_ordinal) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, 0)",
        args![
            id,
            new.tenant.0,
            new.name.as_str(),
            new.kind.name(),
            new.metric.as_str(),
            new.accuracy_rule.name(),
            json("labels", &new.labels)?,
            json("inputs", &new.inputs)?,
            json("outputs", &new.outputs)?,
            space.0,
            json("defaults", &new.defaults)?,
            new.description.as_str(),
            new.batching.map(|batching| batching.to_string()),
            new.live_accuracy.name(),
            new.declared_accuracy.name(),
            new.cache.to_string(),
            new.keep.to_string(),
            new.ahead.name(),
        ],
    )
    .await?;
    tx.commit().await?;
    Ok(new.numbered(TaskId(id), space))
}

pub(crate) async fn change_task(db: &Db, id: TaskId, change: TaskChange) -> Result<Task> {
    let mut tx = db.begin().await?;
    tx.next("catalog").await?;
    let known = find_task(db, &mut tx, id).await?;
    let Some(changed) = change.of(&known) else { return Ok(known) };
    let sql = "UPDATE tasks SET live_accuracy = $2, declared_accuracy = $3, cache = $4, keep = $5, ahead = $6, batching = $7 \
               WHERE id = $1";
    let (live, declared) = (changed.live_accuracy.name(), changed.declared_accuracy.name());
    let (cache, keep) = (changed.cache.to_string(), changed.keep.to_string());
    let batching = changed.batching.map(|batching| batching.to_string());
    tx.exec(sql, args![id.0, live, declared, cache, keep, changed.ahead.name(), batching]).await?;
    tx.commit().await?;
    Ok(changed)
}

pub(crate) async fn remove_task(db: &Db, id: TaskId) -> Result<()> {
    let mut tx = db.begin().await?;
    tx.next("catalog").await?;
    if tx.first("SELECT id FROM models WHERE task = $1", args![id.0]).await?.is_some() {
        return Err(Error::task_in_use(id));
    }
    tx.exec("DELETE FROM policies WHERE task = $1", args![id.0]).await?;
    if tx.exec("DELETE FROM tasks WHERE id = $1", args![id.0]).await? == 0 {
        return Err(Error::not_found("task", id));
    }
    tx.commit().await
}

async fn find_or_make_space(db: &Db, tx: &mut Tx, tenant: TenantId, new: &NewSpace) -> Result<SpaceId> {
    let sql = "SELECT id, tenant, name, kind, dimension, hash FROM spaces WHERE tenant = $1 AND name = $2";
    if let Some(row) = tx.first(sql, args![tenant.0, new.name.as_str()]).await? {
        let known = space(row.read(&db.name))?;
        check::same_space(&known, new)?;
        return Ok(known.id);
    }
    let (dimension, hash) = match &new.kind {
        SpaceKind::Labels { hash } | SpaceKind::Tensor { hash } => (None, Some(hash.clone())),
        SpaceKind::Embedding { dimension } => (Some(i64::from(*dimension)), None),
    };
    let id = tx.next_id("spaces").await?;
    tx.exec(
        "INSERT INTO spaces (id, tenant, name, kind, dimension, hash) VALUES ($1, $2, $3, $4, $5, $6)",
        args![id, tenant.0, new.name.as_str(), new.kind.name(), dimension, hash],
    )
    .await?;
    Ok(SpaceId(id))
}

pub(crate) async fn register_model(db: &Db, new: NewModel, evidence: &Evidence) -> Result<Registered> {
    check::model(&new)?;
    check::evidence(evidence)?;
    let mut tx = db.begin().await?;
    let now = tx.next("catalog").await?;
    let task = find_task(db, &mut tx, new.task).await?;
    check::owner(&task, new.tenant)?;
    let sql = "SELECT id FROM models WHERE task = $1 AND tenant = $2 AND name = $3 AND version = $4";
    let taken = args![new.task.0, new.tenant.0, new.name.as_str(), new.version];
    if tx.first(sql, taken).await?.is_some() {
        return Err(Error::exists("model", format!("{} version {}", new.name, new.version)));
    }
    let space = match &new.space {
        Some(space) => find_or_make_space(db, &mut tx, new.tenant, space).await?,
        None => task.default_space,
    };
    let of_name = (new.task.0, new.tenant.0, new.name.as_str());
    let before = versions::promoted(db, &mut tx, of_name).await?.first().map(|first| first.version);
    let promoted = if new.promote || before.is_none() { now } else { 0 };
    let id = tx.next_id("models").await?;
    tx.exec(
        "INSERT INTO models (id, task, tenant, name, version, architecture, licence, owner, promoted, space, adapter) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
        args![
            id,
            new.task.0,
            new.tenant.0,
            new.name.as_str(),
            new.version,
            new.architecture.as_str(),
            new.licence.as_str(),
            new.owner.as_str(),
            promoted,
            space.0,
            new.adapter.as_str(),
        ],
    )
    .await?;
    let after = if promoted > 0 { Some(new.version) } else { before };
    let change = Change { of: (new.task, &new.name, new.version), before, after };
    versions::note(&mut tx, change, VersionAction::Registered, new.by.clone()).await?;
    if promoted > 0 {
        let end = ended(format!("version {} is the default now", new.version), &new.by);
        trials::overtaken(db, &mut tx, (new.task, &new.name), |_| true, end).await?;
    }
    let (model, variants) = new.numbered(ModelId(id), space, promoted.unsigned_abs());
    let variants = insert_variants(db, &mut tx, &task, model.id, variants).await?;
    let wish = evidence.promote.clone().filter(|_| promoted == 0);
    let evidence = Evidence { promote: wish, ..evidence.clone() };
    measuring::keep_evidence(&mut tx, model.id, &evidence).await?;
    tx.commit().await?;
    Ok(Registered { model, variants })
}

pub(crate) async fn add_variant(db: &Db, model: ModelId, new: NewVariant) -> Result<Variant> {
    check::variant(&new)?;
    let mut tx = db.begin().await?;
    tx.next("catalog").await?;
    let row = tx.first("SELECT task FROM models WHERE id = $1", args![model.0]).await?;
    let row = row.ok_or_else(|| Error::not_found("model", model))?;
    let task = find_task(db, &mut tx, TaskId(row.read(&db.name).num()?)).await?;
    let mut added = insert_variants(db, &mut tx, &task, model, vec![new]).await?;
    tx.commit().await?;
    Ok(added.remove(0))
}

async fn find_task(db: &Db, tx: &mut Tx, id: TaskId) -> Result<Task> {
    let sql = "SELECT id, tenant, name, kind, metric, accuracy_rule, labels, inputs, outputs, default_space, defaults, description, \
               batching, live_accuracy, declared_accuracy, cache, keep, ahead \
               FROM tasks WHERE id = $1";
    let row = tx.first(sql, args![id.0]).await?.ok_or_else(|| Error::not_found("task", id))?;
    self::task(row.read(&db.name))
}

async fn insert_variants(
    db: &Db,
    tx: &mut Tx,
    task: &Task,
    model: ModelId,
    new: Vec<NewVariant>,
) -> Result<Vec<Variant>> {
    let row = tx.first("SELECT next_ordinal FROM tasks WHERE id = $1", args![task.id.0]).await?;
    let row = row.ok_or_else(|| Error::not_found("task", task.id))?;
    let used: usize = row.read(&db.name).num()?;
    check::room(&task.name, used, new.len())?;
    let mut added = Vec::with_capacity(new.len());
    for (new, ordinal) in new.into_iter().zip(used..) {
        let sql = "SELECT id FROM variants WHERE task = $1 AND name = $2";
        if tx.first(sql, args![task.id.0, new.name.as_str()]).await?.is_some() {
            return Err(Error::exists("variant", new.name));
        }
        let id = tx.next_id("variants").await?;
        let ordinal = u8::try_from(ordinal).map_err(|_| corrupt(&db.name, "an ordinal is out of range"))?;
        tx.exec(
            "INSERT INTO variants (id, model, task, ordinal, name, settings, artefact, artefact_bytes) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
            args![
                id,
                model.0,
                task.id.0,
                u32::from(ordinal),
                new.name.as_str(),
                json("settings", &new.settings)?,
                new.artefact.as_str(),
                new.artefact_bytes.0.cast_signed(),
            ],
        )
        .await?;
        for profile in &new.profiles {
            upsert_profile(tx, VariantId(id), profile).await?;
        }
        added.push(new.numbered(VariantId(id), model, ordinal));
    }
    let next = i64::try_from(used + added.len()).unwrap_or(i64::MAX);
    tx.exec("UPDATE tasks SET next_ordinal = $2 WHERE id = $1", args![task.id.0, next]).await?;
    Ok(added)
}

pub(crate) async fn put_profile(db: &Db, variant: VariantId, profile: Profile) -> Result<()> {
    check::profile(&profile)?;
    let mut tx = db.begin().await?;
    tx.next("catalog").await?;
    if !profile.is_estimated() {
        // Before the variant's row, which verdicts refer to while they hold this.
        tx.next("feedback").await?;
    }
    measuring::lock(&mut tx, variant).await?;
    // An estimate is no reason not to measure, and whoever made one may have been slower than who measured.
    let before = measuring::known(&mut tx, db, variant, &profile.device_class).await?;
    if profile.is_estimated() {
        if before.is_some_and(|before| !before.is_estimated()) {
            return Ok(());
        }
    } else {
        measuring::done(&mut tx, variant, &profile.device_class).await?;
        if measured_otherwise(before.as_ref(), &profile) {
            flags::begin_anew(&db.name, &mut tx, variant, Note::remeasured(&profile)).await?;
        }
    }
    upsert_profile(&mut tx, variant, &profile).await?;
    learnt::measured(&mut tx, variant, &profile.device_class).await?;
    tx.commit().await
}

async fn upsert_profile(tx: &mut Tx, variant: VariantId, profile: &Profile) -> Result<()> {
    tx.exec(
        "INSERT INTO profiles (variant, device_class, body) VALUES ($1, $2, $3) \
         ON CONFLICT (variant, device_class) DO UPDATE SET body = excluded.body",
        args![variant.0, profile.device_class.as_str(), json("profile", profile)?],
    )
    .await
    .map(|_| ())
}

pub(crate) async fn remove_model(db: &Db, id: ModelId, force: bool, by: Signed) -> Result<()> {
    check::signed(&by)?;
    let mut tx = db.begin().await?;
    tx.next("catalog").await?;
    // No replica is added or moved and no verdict counted from here on.
    tx.next("replicas").await?;
    tx.next("feedback").await?;
    let of = versions::named(db, &mut tx, id).await?;
    let sql = "SELECT o.id FROM models o JOIN models m ON o.task = m.task AND o.tenant = m.tenant AND o.name = m.name \
               WHERE m.id = $1 AND o.id <> m.id LIMIT 1";
    let alone = tx.first(sql, args![id.0]).await?.is_none();
    if of.is_default(id) && !alone && !force {
        return Err(Error::default_in_use(of.in_words(), of.next()));
    }
    let sql = "SELECT r.id, r.variant, r.node, r.device, r.state, n.name FROM replicas r \
               JOIN variants v ON v.id = r.variant JOIN nodes n ON n.id = r.node WHERE v.model = $1 ORDER BY r.id";
    for row in tx.fetch(sql, args![id.0]).await? {
        let mut row = row.read(&db.name);
        let replica = fleet::replica(&mut row)?;
        if replica.busy() && !force {
            return Err(Error::model_in_use(of.in_words(), replica.id, replica.state, &row.text()?));
        }
    }
    let sql = "DELETE FROM replicas WHERE state IN ('inactive', 'failed') \
               AND variant IN (SELECT id FROM variants WHERE model = $1)";
    tx.exec(sql, args![id.0]).await?;
    measuring::lock_all(&mut tx, id).await?;
    let sql = "DELETE FROM profiles WHERE variant IN (SELECT id FROM variants WHERE model = $1)";
    tx.exec(sql, args![id.0]).await?;
    measuring::forget(&mut tx, id).await?;
    learnt::forget(&mut tx, id).await?;
    tx.exec("DELETE FROM variants WHERE model = $1", args![id.0]).await?;
    tx.exec("DELETE FROM models WHERE id = $1", args![id.0]).await?;
    let why = format!("version {} was removed", of.version);
    let concerns = |trial: &Trial| trial.candidate == id || trial.against == id;
    trials::overtaken(db, &mut tx, (of.task, &of.name), concerns, ended(why, &by)).await?;
    let after = if of.is_default(id) { of.next() } else { of.default() };
    let change = Change { of: (of.task, &of.name, of.version), before: of.default(), after };
    versions::note(&mut tx, change, VersionAction::Removed, by).await?;
    tx.commit().await
}

fn json(what: &'static str, value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|error| Error::invalid(what, error.to_string()))
}
