//! Who may ask, in the fake.

use super::{MemStore, State};
use crate::access::{
    Access, Doors, ENDED_KEYS_KEPT, KEYS_MAX, Key, NewKey, Owner, Quota, Rotation, Shared, TENANTS_MAX,
    UPLOADS_MAX, Upload, Visibility, full, full_of_one,
};
use crate::check;
use crate::error::{Error, Result};
use crate::policies::{POLICIES_MAX, Policy, PolicyOf, check_reserved};
use crate::records::{App, Tenant, UnixMicros};
use async_trait::async_trait;
use modelless_types::{AppId, KeyId, TaskId, TenantId};
use std::collections::BTreeMap;

impl State {
    fn app(&mut self, tenant: TenantId, name: &str) -> Result<App> {
        if !self.catalog.tenants.iter().any(|known| known.id == tenant) {
            return Err(Error::not_found("tenant", tenant));
        }
        let known = self.catalog.apps.iter().find(|app| app.tenant == tenant && app.name == name);
        if let Some(known) = known {
            return Ok(known.clone());
        }
        check::plain_name("application", name)?;
        let own = self.catalog.apps.iter().filter(|app| app.tenant == tenant).count();
        let (all, tenants) = (self.catalog.apps.len(), self.catalog.tenants.len());
        Shared { all, own, tenants }.room("application", TENANTS_MAX)?;
        // The first was there from the start.
        let id = AppId(self.next_id("app")? + 1);
        let app = App { id, tenant, name: name.to_owned() };
        self.catalog.apps.push(app.clone());
        Ok(app)
    }

    fn add_key(&mut self, key: Key) {
        let now = key.created;
        self.access.push(key);
        let ended = self.access.iter().filter(|key| !key.valid(now)).count();
        for _ in ENDED_KEYS_KEPT..ended {
            let oldest = self.access.iter().position(|key| !key.valid(now));
            oldest.map(|at| self.access.remove(at));
        }
    }

    fn room_for_a_key(&self, app: AppId, now: UnixMicros) -> Result<()> {
        let tenant = |id: AppId| self.catalog.apps.iter().find(|app| app.id == id).map(|app| app.tenant);
        let valid = || self.access.iter().filter(|key| key.valid(now));
        let own = valid().filter(|key| tenant(key.app) == tenant(app)).count();
        Shared { all: valid().count(), own, tenants: self.catalog.tenants.len() }.room("key", KEYS_MAX)
    }
}

#[async_trait]
impl Access for MemStore {
    async fn doors(&self) -> Result<Doors> {
        self.read(|state| Doors {
            locked: state.last.contains_key("key"),
            tenants: state.catalog.tenants.clone(),
            apps: state.catalog.apps.clone(),
            keys: state.access.clone(),
            quotas: state.quotas.clone(),
            policies: state.policies.clone(),
            grants: state.grants.clone(),
        })
    }

    async fn create_tenant(&self, name: &str) -> Result<Tenant> {
        check::plain_name("tenant", name)?;
        self.register(|state| {
            if state.catalog.tenants.iter().any(|tenant| tenant.name == name) {
                return Err(Error::exists("tenant", name));
            }
            if state.catalog.tenants.len() >= TENANTS_MAX {
                return Err(full("tenant", TENANTS_MAX));
            }
            let id = TenantId(state.next_id("tenant")? + 1);
            let tenant = Tenant { id, name: name.to_owned() };
            state.catalog.tenants.push(tenant.clone());
            state.app(id, "default")?;
            Ok(tenant)
        })
    }

    async fn app(&self, tenant: TenantId, name: &str) -> Result<App> {
        check::name("application", name)?;
        self.register(|state| state.app(tenant, name))
    }

    async fn create_key(&self, new: NewKey) -> Result<Key> {
        self.register(|state| {
            new.check(!state.last.contains_key("key"))?;
            if !state.catalog.apps.iter().any(|app| app.id == new.app) {
                return Err(Error::not_found("application", new.app));
            }
            state.room_for_a_key(new.app, new.at)?;
            let NewKey { app, name, secret, scopes, at, expires } = new;
            let id = KeyId(state.next_id("key")?);
            let (revoked, successor) = (None, None);
            let key = Key { id, app, name, secret, scopes, created: at, expires, revoked, successor };
            state.add_key(key.clone());
            Ok(key)
        })
    }

    async fn rotate_key(&self, rotation: Rotation) -> Result<(Key, Key)> {
        self.register(|state| {
            let at = state.access.iter().position(|key| key.id == rotation.key);
            let at = at.ok_or_else(|| Error::not_found("key", rotation.key))?;
            state.room_for_a_key(state.access[at].app, rotation.at)?;
            let id = KeyId(state.next_id("key")?);
            let old = &state.access[at];
            let after = state.access.iter().find(|key| old.successor == Some(key.id));
            let (old, new) = rotation.of(old, after, id)?;
            state.access[at] = old.clone();
            state.add_key(new.clone());
            Ok((old, new))
        })
    }

    async fn share_model(&self, task: TaskId, name: &str, with: Visibility) -> Result<()> {
        let grants = with.grants(task, name);
        self.register(|state| {
            if !state.catalog.models_of(task).any(|model| model.name == name) {
                return Err(Error::not_found("model", name));
            }
            for to in grants.iter().filter_map(|grant| grant.to) {
                if !state.catalog.tenants.iter().any(|tenant| tenant.id == to) {
                    return Err(Error::not_found("tenant", to));
                }
            }
            state.grants.retain(|known| known.task != task || known.name != name);
            state.grants.extend(grants);
            state.grants.sort();
            Ok(())
        })
    }

    async fn set_quota(&self, of: Owner, quota: Quota) -> Result<()> {
        quota.check()?;
        self.register(|state| {
            match of {
                Owner::Tenant(id) if !state.catalog.tenants.iter().any(|tenant| tenant.id == id) => {
                    return Err(Error::not_found("tenant", id));
                }
                Owner::App(id) if !state.catalog.apps.iter().any(|app| app.id == id) => {
                    return Err(Error::not_found("application", id));
                }
                Owner::Tenant(_) | Owner::App(_) => {}
            }
            state.quotas.remove(&of);
            if quota != Quota::default() {
                state.quotas.insert(of, quota);
            }
            Ok(())
        })
    }

    async fn set_policy(&self, of: PolicyOf, policy: Policy) -> Result<()> {
        policy.check(of)?;
        self.register(|state| {
            let known = match of.owner {
                Owner::Tenant(id) => state.catalog.tenants.iter().any(|tenant| tenant.id == id),
                Owner::App(id) => state.catalog.apps.iter().any(|app| app.id == id),
            };
            if !known {
                return Err(of.no_owner());
            }
            of.task.map_or(Ok(()), |task| state.task(task).map(|_| ()))?;
            state.policies.remove(&of);
            if !policy.is_empty() {
                let tenant = |owner: Owner| match owner {
                    Owner::Tenant(id) => Some(id),
                    Owner::App(id) => {
                        state.catalog.apps.iter().find(|app| app.id == id).map(|app| app.tenant)
                    }
                };
                let own = state.policies.keys().filter(|known| tenant(known.owner) == tenant(of.owner));
                let (own, all, tenants) = (own.count(), state.policies.len(), state.catalog.tenants.len());
                Shared { all, own, tenants }.room("policy", POLICIES_MAX)?;
                state.policies.insert(of, policy);
            }
            let reserved = state.policies.iter();
            let reserved = reserved.filter_map(|(of, policy)| Some((*of, policy.share.reserve?)));
            check_reserved(&reserved.collect())
        })
    }

    async fn note_upload(&self, upload: Upload) -> Result<()> {
        check::sha256("artefact", &upload.sha256)?;
        self.write(|state| {
            let old = upload.forgets();
            state.uploads.retain(|_, (_, at)| *at >= old);
            let known = (upload.tenant, upload.sha256);
            state.uploads.insert(known, (upload.bytes, upload.at));
            let own = state.uploads.keys().filter(|(tenant, _)| *tenant == upload.tenant);
            if own.count() > UPLOADS_MAX { Err(full_of_one("upload", UPLOADS_MAX)) } else { Ok(()) }
        })
    }

    async fn uploads(&self, tenant: TenantId, since: UnixMicros) -> Result<BTreeMap<String, u64>> {
        self.read(|state| {
            let own = state.uploads.iter().filter(|((of, _), (_, at))| *of == tenant && *at >= since);
            own.map(|((_, sha256), (bytes, _))| (sha256.clone(), *bytes)).collect()
        })
    }

    async fn revoke_key(&self, key: KeyId, at: UnixMicros) -> Result<Key> {
        check::number("time", at.0)?;
        self.register(|state| {
            let known = state.access.iter_mut().find(|known| known.id == key);
            let known = known.ok_or_else(|| Error::not_found("key", key))?;
            known.revoked = known.revoked.or(Some(at));
            Ok(known.clone())
        })
    }
}
