//! Who may ask. Every change takes the next number of the `catalog` counter first, which readers poll.

use super::SqlStore;
use super::conn::{Columns, Db, Row, Tx, args};
use super::plans::unhex;
use crate::access::{
    Access, Doors, ENDED_KEYS_KEPT, Grant, KEYS_MAX, KeptSecret, Key, NewKey, Owner, Quota, Rotation, Shared,
    TENANTS_MAX, UPLOADS_MAX, Upload, Visibility, full, full_of_one,
};
use crate::check;
use crate::error::{Error, Result};
use crate::policies::{POLICIES_MAX, Policy, PolicyOf, check_reserved};
use crate::records::{App, Tenant, UnixMicros, hex};
use async_trait::async_trait;
use modelless_types::{AppId, KeyId, Scopes, TaskId, TenantId};
use std::collections::BTreeMap;

#[async_trait]
impl Access for SqlStore {
    async fn doors(&self) -> Result<Doors> {
        doors(&self.db).await
    }

    async fn create_tenant(&self, name: &str) -> Result<Tenant> {
        create_tenant(&self.db, name).await
    }

    async fn app(&self, tenant: TenantId, name: &str) -> Result<App> {
        check::name("application", name)?;
        let mut tx = self.db.begin().await?;
        tx.next("catalog").await?;
        let app = app(&self.db.name, &mut tx, tenant, name).await?;
        tx.commit().await?;
        Ok(app)
    }

    async fn create_key(&self, key: NewKey) -> Result<Key> {
        create_key(&self.db, key).await
    }

    async fn rotate_key(&self, rotation: Rotation) -> Result<(Key, Key)> {
        let mut tx = self.db.begin().await?;
        tx.next("catalog").await?;
        let old = one(&self.db.name, &mut tx, rotation.key).await?;
        room(&self.db.name, &mut tx, old.app, rotation.at).await?;
        let id = KeyId(tx.next_id("api_keys").await?);
        let after = match old.successor {
            Some(after) => tx.first(ONE, args![after.0]).await?,
            None => None,
        };
        let after = after.map(|row| read(row.read(&self.db.name))).transpose()?;
        let (old, new) = rotation.of(&old, after.as_ref(), id)?;
        tx.exec(
            "UPDATE api_keys SET expires_us = $2, successor = $3 WHERE id = $1",
            args![old.id.0, time(old.expires), id.0],
        )
        .await?;
        insert(&mut tx, &new).await?;
        tx.commit().await?;
        Ok((old, new))
    }

    async fn share_model(&self, task: TaskId, name: &str, with: Visibility) -> Result<()> {
        share_model(&self.db, task, name, &with).await
    }

    async fn set_quota(&self, of: Owner, quota: Quota) -> Result<()> {
        set_quota(&self.db, of, &quota).await
    }

    async fn set_policy(&self, of: PolicyOf, policy: Policy) -> Result<()> {
        set_policy(&self.db, of, &policy).await
    }

    async fn note_upload(&self, upload: Upload) -> Result<()> {
        note_upload(&self.db, &upload).await
    }

    async fn uploads(&self, tenant: TenantId, since: UnixMicros) -> Result<BTreeMap<String, u64>> {
        let sql = "SELECT sha256, bytes FROM uploads WHERE tenant = $1 AND at_us >= $2";
        let rows = self.db.fetch(sql, args![tenant.0, since.0.cast_signed()]).await?;
        let read = |mut row: Columns<'_>| Ok((row.text()?, row.num()?));
        rows.iter().map(|row| read(row.read(&self.db.name))).collect()
    }

    async fn revoke_key(&self, key: KeyId, at: UnixMicros) -> Result<Key> {
        check::number("time", at.0)?;
        let mut tx = self.db.begin().await?;
        tx.next("catalog").await?;
        tx.exec(
            "UPDATE api_keys SET revoked_us = $2 WHERE id = $1 AND revoked_us IS NULL",
            args![key.0, at.0.cast_signed()],
        )
        .await?;
        let key = one(&self.db.name, &mut tx, key).await?;
        tx.commit().await?;
        Ok(key)
    }
}

/// In the place of a tenant's number.
const EVERYBODY: u32 = 0;

fn time(at: Option<UnixMicros>) -> Option<i64> {
    at.map(|at| at.0.cast_signed())
}

const KEYS: &str = "SELECT id, app, name, prefix, hash, scopes, created_us, expires_us, revoked_us, successor FROM api_keys \
                    ORDER BY id";
const ONE: &str = "SELECT id, app, name, prefix, hash, scopes, created_us, expires_us, revoked_us, successor FROM api_keys \
                   WHERE id = $1";

fn read(mut row: Columns<'_>) -> Result<Key> {
    let moment = |at: Option<i64>| at.map(|at| UnixMicros(at.unsigned_abs()));
    let (id, app, name) = (KeyId(row.num()?), AppId(row.num()?), row.text()?);
    let prefix = row.text()?;
    let hash = row.word(unhex)?;
    let scopes = row.word(Scopes::parse)?;
    let created = UnixMicros(row.num()?);
    let (expires, revoked) = (moment(row.opt_int()?), moment(row.opt_int()?));
    let successor = row.opt_int()?.and_then(|id| u32::try_from(id).ok()).map(KeyId);
    Ok(Key {
        id,
        app,
        name,
        secret: KeptSecret { hash, prefix },
        scopes,
        created,
        expires,
        revoked,
        successor,
    })
}

async fn one(database: &str, tx: &mut Tx, key: KeyId) -> Result<Key> {
    let row = tx.first(ONE, args![key.0]).await?.ok_or_else(|| Error::not_found("key", key))?;
    read(row.read(database))
}

async fn count(database: &str, tx: &mut Tx, sql: &'static str) -> Result<usize> {
    let row = tx.first(sql, Vec::new()).await?;
    row.map_or(Ok(0), |row| row.read(database).num())
}

async fn doors(db: &Db) -> Result<Doors> {
    let mut tx = db.snapshot().await?;
    let name = &db.name;
    let made = count(name, &mut tx, "SELECT value FROM counters WHERE name = 'api_keys'").await?;
    let mut doors = Doors { locked: made > 0, ..Doors::default() };
    for row in tx.fetch("SELECT id, name, quota FROM tenants ORDER BY id", Vec::new()).await? {
        let mut row = row.read(name);
        let tenant = Tenant { id: TenantId(row.num()?), name: row.text()? };
        bounded(&mut doors, Owner::Tenant(tenant.id), row.json()?);
        doors.tenants.push(tenant);
    }
    for row in tx.fetch("SELECT id, tenant, name, quota FROM apps ORDER BY id", Vec::new()).await? {
        let mut row = row.read(name);
        let app = App { id: AppId(row.num()?), tenant: TenantId(row.num()?), name: row.text()? };
        bounded(&mut doors, Owner::App(app.id), row.json()?);
        doors.apps.push(app);
    }
    for row in tx.fetch("SELECT tenant, app, task, policy FROM policies", Vec::new()).await? {
        let mut row = row.read(name);
        let of = PolicyOf::read(TenantId(row.num()?), row.num()?, row.num()?);
        doors.policies.insert(of, row.json()?);
    }
    for row in tx.fetch("SELECT task, name, tenant FROM model_grants", Vec::new()).await? {
        let mut row = row.read(name);
        let (task, name) = (TaskId(row.num()?), row.text()?);
        let to: u32 = row.num()?;
        doors.grants.push(Grant { task, name, to: (to != EVERYBODY).then_some(TenantId(to)) });
    }
    doors.grants.sort(); // here and not there: databases differ in how they order texts
    for row in tx.fetch(KEYS, Vec::new()).await? {
        doors.keys.push(read(row.read(name))?);
    }
    Ok(doors)
}

fn bounded(doors: &mut Doors, of: Owner, quota: Quota) {
    if quota != Quota::default() {
        doors.quotas.insert(of, quota);
    }
}

async fn share_model(db: &Db, task: TaskId, name: &str, with: &Visibility) -> Result<()> {
    let mut tx = db.begin().await?;
    tx.next("catalog").await?;
    let known = tx.first("SELECT id FROM models WHERE task = $1 AND name = $2", args![task.0, name]).await?;
    known.ok_or_else(|| Error::not_found("model", name))?;
    tx.exec("DELETE FROM model_grants WHERE task = $1 AND name = $2", args![task.0, name]).await?;
    for grant in with.grants(task, name) {
        if let Some(to) = grant.to {
            let known = tx.first("SELECT id FROM tenants WHERE id = $1", args![to.0]).await?;
            known.ok_or_else(|| Error::not_found("tenant", to))?;
        }
        let to = grant.to.map_or(EVERYBODY, |to| to.0);
        tx.exec("INSERT INTO model_grants (task, name, tenant) VALUES ($1, $2, $3)", args![task.0, name, to])
            .await?;
    }
    tx.commit().await
}

async fn set_quota(db: &Db, of: Owner, quota: &Quota) -> Result<()> {
    quota.check()?;
    let text = serde_json::to_string(quota).map_err(|error| Error::invalid("quota", error.to_string()))?;
    let mut tx = db.begin().await?;
    tx.next("catalog").await?;
    let changed = match of {
        Owner::Tenant(id) => {
            tx.exec("UPDATE tenants SET quota = $2 WHERE id = $1", args![id.0, text]).await?
        }
        Owner::App(id) => tx.exec("UPDATE apps SET quota = $2 WHERE id = $1", args![id.0, text]).await?,
    };
    if changed == 0 {
        return Err(match of {
            Owner::Tenant(id) => Error::not_found("tenant", id),
            Owner::App(id) => Error::not_found("application", id),
        });
    }
    tx.commit().await
}

async fn set_policy(db: &Db, of: PolicyOf, policy: &Policy) -> Result<()> {
    policy.check(of)?;
    let text = serde_json::to_string(policy).map_err(|error| Error::invalid("policy", error.to_string()))?;
    let mut tx = db.begin().await?;
    tx.next("catalog").await?;
    let (tenant, app, known) = match of.owner {
        Owner::Tenant(id) => {
            (id, 0, tx.first("SELECT id FROM tenants WHERE id = $1", args![id.0]).await?.is_some())
        }
        Owner::App(id) => match tx.first("SELECT tenant FROM apps WHERE id = $1", args![id.0]).await? {
            Some(row) => (TenantId(row.read(&db.name).num()?), id.0, true),
            None => (TenantId(0), id.0, false),
        },
    };
    if !known {
        return Err(of.no_owner());
    }
    let task = of.task.map_or(0, |task| task.0);
    if let Some(task) = of.task {
        let known = tx.first("SELECT id FROM tasks WHERE id = $1", args![task.0]).await?;
        known.ok_or_else(|| Error::not_found("task", task))?;
    }
    tx.exec("DELETE FROM policies WHERE tenant = $1 AND app = $2 AND task = $3", args![tenant.0, app, task])
        .await?;
    if !policy.is_empty() {
        let sql = "SELECT count(*), CAST(coalesce(sum(CASE WHEN tenant = $1 THEN 1 ELSE 0 END), 0) AS BIGINT), \
                   (SELECT count(*) FROM tenants) FROM policies";
        shared(&db.name, tx.first(sql, args![tenant.0]).await?)?.room("policy", POLICIES_MAX)?;
        let sql = "INSERT INTO policies (tenant, app, task, policy) VALUES ($1, $2, $3, $4)";
        tx.exec(sql, args![tenant.0, app, task, text]).await?;
    }
    let mut reserved = BTreeMap::new();
    // A name may have that in it as well.
    let sql = "SELECT tenant, app, task, policy FROM policies WHERE policy LIKE '%\"reserve\"%'";
    for row in tx.fetch(sql, Vec::new()).await? {
        let mut row = row.read(&db.name);
        let of = PolicyOf::read(TenantId(row.num()?), row.num()?, row.num()?);
        let policy: Policy = row.json()?;
        reserved.extend(policy.share.reserve.map(|share| (of, share)));
    }
    check_reserved(&reserved)?;
    tx.commit().await
}

async fn note_upload(db: &Db, upload: &Upload) -> Result<()> {
    check::sha256("artefact", &upload.sha256)?;
    check::number("time", upload.at.0)?;
    check::number("size", upload.bytes)?;
    let tenant = upload.tenant.0;
    let mut tx = db.begin().await?;
    tx.exec("DELETE FROM uploads WHERE at_us < $1", args![upload.forgets().0.cast_signed()]).await?;
    tx.exec(
        "INSERT INTO uploads (tenant, sha256, bytes, at_us) VALUES ($1, $2, $3, $4) \
         ON CONFLICT (tenant, sha256) DO UPDATE SET at_us = excluded.at_us",
        args![tenant, upload.sha256.as_str(), upload.bytes.cast_signed(), upload.at.0.cast_signed()],
    )
    .await?;
    let row = tx.first("SELECT count(*) FROM uploads WHERE tenant = $1", args![tenant]).await?;
    let known: usize = row.map_or(Ok(0), |row| row.read(&db.name).num())?;
    if known > UPLOADS_MAX {
        return Err(full_of_one("upload", UPLOADS_MAX));
    }
    tx.commit().await
}

async fn create_tenant(db: &Db, name: &str) -> Result<Tenant> {
    check::plain_name("tenant", name)?;
    let mut tx = db.begin().await?;
    tx.next("catalog").await?;
    if tx.first("SELECT id FROM tenants WHERE name = $1", args![name]).await?.is_some() {
        return Err(Error::exists("tenant", name));
    }
    if count(&db.name, &mut tx, "SELECT count(*) FROM tenants").await? >= TENANTS_MAX {
        return Err(full("tenant", TENANTS_MAX));
    }
    let id = TenantId(tx.next_id("tenants").await?);
    tx.exec("INSERT INTO tenants (id, name) VALUES ($1, $2)", args![id.0, name]).await?;
    app(&db.name, &mut tx, id, "default").await?;
    tx.commit().await?;
    Ok(Tenant { id, name: name.to_owned() })
}

async fn app(database: &str, tx: &mut Tx, tenant: TenantId, name: &str) -> Result<App> {
    let there = tx.first("SELECT id FROM tenants WHERE id = $1", args![tenant.0]).await?;
    there.ok_or_else(|| Error::not_found("tenant", tenant))?;
    let known =
        tx.first("SELECT id FROM apps WHERE tenant = $1 AND name = $2", args![tenant.0, name]).await?;
    if let Some(row) = known {
        return Ok(App { id: AppId(row.read(database).num()?), tenant, name: name.to_owned() });
    }
    // What was made before there was this rule goes on as it is called.
    check::plain_name("application", name)?;
    let sql = "SELECT count(*), CAST(coalesce(sum(CASE WHEN tenant = $1 THEN 1 ELSE 0 END), 0) AS BIGINT), \
               (SELECT count(*) FROM tenants) FROM apps";
    shared(database, tx.first(sql, args![tenant.0]).await?)?.room("application", TENANTS_MAX)?;
    let id = AppId(tx.next_id("apps").await?);
    tx.exec("INSERT INTO apps (id, tenant, name) VALUES ($1, $2, $3)", args![id.0, tenant.0, name]).await?;
    Ok(App { id, tenant, name: name.to_owned() })
}

async fn create_key(db: &Db, new: NewKey) -> Result<Key> {
    let mut tx = db.begin().await?;
    tx.next("catalog").await?;
    let made = count(&db.name, &mut tx, "SELECT value FROM counters WHERE name = 'api_keys'").await?;
    new.check(made == 0)?;
    if tx.first("SELECT id FROM apps WHERE id = $1", args![new.app.0]).await?.is_none() {
        return Err(Error::not_found("application", new.app));
    }
    room(&db.name, &mut tx, new.app, new.at).await?;
    let NewKey { app, name, secret, scopes, at, expires } = new;
    let id = KeyId(tx.next_id("api_keys").await?);
    let (revoked, successor) = (None, None);
    let key = Key { id, app, name, secret, scopes, created: at, expires, revoked, successor };
    insert(&mut tx, &key).await?;
    tx.commit().await?;
    Ok(key)
}

/// Whether there is room for another key of an application.
async fn room(database: &str, tx: &mut Tx, app: AppId, now: UnixMicros) -> Result<()> {
    let sql = "SELECT count(*), \
               CAST(coalesce(sum(CASE WHEN tenant = (SELECT tenant FROM apps WHERE id = $2) THEN 1 ELSE 0 END), 0) AS BIGINT), \
               (SELECT count(*) FROM tenants) FROM api_keys JOIN apps ON apps.id = api_keys.app \
               WHERE revoked_us IS NULL AND (expires_us IS NULL OR expires_us > $1)";
    shared(database, tx.first(sql, args![now.0.cast_signed(), app.0]).await?)?.room("key", KEYS_MAX)
}

/// All, those of the tenant in question, and how many tenants there are.
pub(super) fn shared(database: &str, row: Option<Row>) -> Result<Shared> {
    let nobody = Shared { all: 0, own: 0, tenants: 0 };
    row.map_or(Ok(nobody), |row| {
        let mut row = row.read(database);
        Ok(Shared { all: row.num()?, own: row.num()?, tenants: row.num()? })
    })
}

async fn insert(tx: &mut Tx, key: &Key) -> Result<()> {
    tx.exec(
        "INSERT INTO api_keys (id, app, name, prefix, hash, scopes, created_us, expires_us) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
        args![
            key.id.0,
            key.app.0,
            key.name.as_str(),
            key.secret.prefix.as_str(),
            hex(&key.secret.hash),
            key.scopes.to_string(),
            key.created.0.cast_signed(),
            time(key.expires),
        ],
    )
    .await?;
    let kept = i64::try_from(ENDED_KEYS_KEPT).unwrap_or(i64::MAX);
    tx.exec(
        "DELETE FROM api_keys WHERE id IN (SELECT id FROM api_keys \
         WHERE revoked_us IS NOT NULL OR expires_us <= $1 ORDER BY id DESC LIMIT 1000000 OFFSET $2)",
        args![key.created.0.cast_signed(), kept],
    )
    .await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::SecretKey;
    use crate::policies::PolicyBounds;
    use crate::sql::open_sqlite;
    use modelless_types::Accuracy;

    async fn filled(store: &SqlStore, sql: &'static str) {
        let mut tx = store.db.begin().await.unwrap();
        tx.exec(sql, Vec::new()).await.unwrap();
        tx.commit().await.unwrap();
    }

    fn assert_full_of_one<T: std::fmt::Debug>(result: Result<T>, most: usize) {
        let error = result.unwrap_err();
        assert!(
            matches!(error, Error::Full { limit, whose: "of this tenant", .. } if limit == most),
            "{error}"
        );
    }

    #[tokio::test]
    async fn what_was_named_before_there_was_a_rule_is_used_as_it_is_called() {
        let folder = tempfile::tempdir().unwrap();
        let store = open_sqlite(folder.path().join("db")).await.unwrap();
        filled(&store, "INSERT INTO tenants (id, name) VALUES (7, 'Team A/b')").await;
        filled(&store, "INSERT INTO apps (id, tenant, name) VALUES (7, 7, 'My Shop')").await;
        let app = store.app(TenantId(7), "My Shop").await.unwrap();
        assert_eq!((app.id, store.app(TenantId(7), "My shop").await.is_err()), (AppId(7), true));
        store.set_quota(Owner::Tenant(TenantId(7)), Quota::default()).await.unwrap();
    }

    #[tokio::test]
    async fn a_tenant_that_has_half_of_all_keys_and_applications_leaves_the_rest_to_others() {
        let folder = tempfile::tempdir().unwrap();
        let store = open_sqlite(folder.path().join("db")).await.unwrap();
        filled(
            &store,
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 4999) \
             INSERT INTO apps (id, tenant, name) SELECT 100000 + i, 1, 'a' || i FROM n",
        )
        .await;
        store.app(TenantId::DEFAULT, "alone").await.expect("there is nobody to leave room for");
        let other = store.create_tenant("other").await.unwrap().id;
        assert_full_of_one(store.app(TenantId::DEFAULT, "one-more").await, TENANTS_MAX / 2);
        let app = store.app(other, "theirs").await.unwrap().id;
        filled(
            &store,
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000) \
             INSERT INTO api_keys (id, app, name, prefix, hash, scopes, created_us) \
             SELECT 100000 + i, 1, 'k', 'p', 'h' || i, 'query', 1 FROM n",
        )
        .await;
        let make = |app, digit| {
            let (name, secret) = ("k".to_owned(), SecretKey::new([digit; 32]).kept());
            store.create_key(NewKey {
                app,
                name,
                secret,
                scopes: Scopes::ALL,
                at: UnixMicros(2),
                expires: None,
            })
        };
        assert_full_of_one(make(AppId::DEFAULT, 1).await, KEYS_MAX / 2);
        make(app, 2).await.unwrap();
    }

    #[tokio::test]
    async fn a_tenant_that_has_half_of_all_policies_leaves_the_rest_to_others_and_may_change_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let store = open_sqlite(folder.path().join("db")).await.unwrap();
        let other = store.create_tenant("other").await.unwrap().id;
        filled(
            &store,
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 4999) \
             INSERT INTO policies (tenant, app, task, policy) SELECT 1, i, 100000 + i, '{}' FROM n",
        )
        .await;
        let set = |owner| {
            let bounds = PolicyBounds { accuracy: Some(Accuracy::ONE), ..PolicyBounds::default() };
            store.set_policy(PolicyOf { owner, task: None }, Policy { bounds, ..Policy::default() })
        };
        let own = Owner::Tenant(TenantId::DEFAULT);
        set(own).await.unwrap();
        assert_full_of_one(set(Owner::App(AppId::DEFAULT)).await, POLICIES_MAX / 2);
        set(own).await.expect("in the place of what it was");
        set(Owner::Tenant(other)).await.expect("the rest is theirs");
    }
}
