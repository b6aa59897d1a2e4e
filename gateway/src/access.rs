//! Who asks, and whether they may: the one check that every route of HTTP and every call of gRPC goes through.
//!
//! Keys are read beforehand with the catalogue; a request only hashes what it presents and looks for that, without a lock. The
//! store is not asked, so a change counts once the catalogue was read again: at once where it was made, within about a second
//! elsewhere.

mod bucket;
mod deeds;
mod guard;
mod meter;
mod policy;
mod room;

pub(crate) use bucket::Bucket;
pub(crate) use deeds::{Deeds, Denied, Detail, keep};
pub(crate) use guard::Guarded;
pub(crate) use meter::{Open, Place, Queries, SlowBody};
pub(crate) use policy::{Origins, Policies, shares};
pub(crate) use room::Reserved;

use crate::errors::ApiError;
use arc_swap::ArcSwap;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, StatusCode};
use meter::{Meter, Sharing};
use modelless_store::{Doors, Owner, Quota, STRANGERS, UnixMicros, digest};
use modelless_telemetry::{AppMetrics, Metrics};
use modelless_types::{AppId, KeyId, Micros, Priority, Scope, Scopes, TenantId, Time};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;
use tokio::sync::OwnedSemaphorePermit;

/// What no key is longer than; what is longer is not looked at.
const KEY_MAX: usize = 256;
/// Where clients put keys besides `authorization`.
const KEY_HEADERS: [HeaderName; 2] =
    [HeaderName::from_static("api-key"), HeaderName::from_static("x-api-key")];

/// What a route asks of whoever comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Needs {
    /// Nothing: it tells nothing of anybody.
    Nothing,
    /// A key with this scope.
    Scope(Scope),
    /// A key of the first tenant with the scope `admin`: it is about machines, or about other tenants.
    Operator,
}

impl Needs {
    pub(crate) const QUERY: Self = Self::Scope(Scope::Query);
    pub(crate) const REGISTER: Self = Self::Scope(Scope::Register);
    pub(crate) const ADMIN: Self = Self::Scope(Scope::Admin);

    /// The scope of the key.
    pub(crate) const fn scope(self) -> Option<Scope> {
        match self {
            Self::Nothing => None,
            Self::Scope(scope) => Some(scope),
            Self::Operator => Some(Scope::Admin),
        }
    }
}

/// Who asks. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Caller(Arc<Who>);

/// For whoever reads of it.
#[derive(Debug)]
pub(crate) struct Names {
    pub(crate) tenant: String,
    pub(crate) app: String,
}

#[derive(Debug)]
pub(crate) struct Who {
    pub(crate) tenant: TenantId,
    pub(crate) app: AppId,
    /// What tenant and application are called.
    pub(crate) names: Names,
    /// `None` where no key is needed.
    pub(crate) key: Option<KeyId>,
    pub(crate) scopes: Scopes,
    /// For people: how the key begins, and its name.
    pub(crate) shown: String,
    /// Whether there is no other tenant.
    pub(crate) alone: bool,
    /// What is counted of its application.
    pub(crate) metrics: AppMetrics,
    /// What holds for its queries beside what they say.
    pub(crate) policies: Policies,
    /// Of the application, and of its tenant.
    meters: [Arc<Meter>; 2],
}

impl std::ops::Deref for Caller {
    type Target = Who;

    fn deref(&self) -> &Who {
        &self.0
    }
}

impl Caller {
    /// A way in on which nobody looked: it leads nowhere.
    pub(crate) fn unchecked() -> ApiError {
        tracing::error!("a request was let in without a check of its key; this is a bug");
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "nobody checked who asks")
    }

    /// Lets in all queries of a request, or says which quota they would break: then none is run.
    pub(crate) fn begin(&self, now: Time, queries: Queries) -> Result<[Open; 2], ApiError> {
        let [app, tenant] = &self.meters;
        let of_app = app.begin(now, queries)?;
        let of_tenant = tenant.begin(now, queries).inspect_err(|_| app.take_back(queries.all))?;
        Ok([of_app, of_tenant])
    }

    /// Counts what is as much work for the gateway as a query and is none.
    pub(crate) fn asks(&self, now: Time) -> Result<(), ApiError> {
        let [app, tenant] = &self.meters;
        app.ask(now, 1)?;
        tenant.ask(now, 1).inspect_err(|_| app.take_back(1))
    }

    /// What to say of a request that could not be read. It was work all the same, so it counts; who has no more of that left hears of that.
    pub(crate) fn unread(&self, now: Time, error: ApiError) -> ApiError {
        // That it was too large is said whatever else it is: it is held longer for that, and is too large the next time, too.
        let large = error.status == StatusCode::PAYLOAD_TOO_LARGE;
        let own = error.status.is_client_error() && error.reason != "over_quota" && !large;
        if large {
            let _counted = self.asks(now);
        }
        if own { self.asks(now).err().unwrap_or(error) } else { error }
    }

    /// How many of its queries may be open at a time at this gateway, where that is bounded.
    pub(crate) fn places(&self) -> Option<usize> {
        self.meters.iter().filter_map(|meter| meter.places()).min().map(|places| places as usize)
    }

    /// The places of a query that goes on at a node though nobody waits for it; `None` where open ones are not bounded.
    pub(crate) fn goes_on(&self) -> Option<[Option<Open>; 2]> {
        let places = [0, 1].map(|at| self.meters[at].goes_on());
        places.iter().any(Option::is_some).then_some(places)
    }

    /// Whether quotas leave it time of devices: all that is asked of what only spare time is spent on.
    pub(crate) fn has_device_time(&self, now: Time) -> Result<(), ApiError> {
        self.meters.iter().try_for_each(|meter| meter.has_device_time(now))
    }

    /// Whether it may change something now: so that nobody has all gateways read the catalogue all the time, or fills the audit log
    /// quicker than it is written. Where nobody needs a key nobody is bounded.
    pub(crate) fn change(&self, now: Time) -> Result<(), ApiError> {
        if self.key.is_none() { Ok(()) } else { self.tenant().change(now) }
    }

    /// Whether its application may have something looked up in the store now. Where nobody needs a key nobody is bounded.
    pub(crate) fn read(&self, now: Time) -> Result<(), ApiError> {
        let [app, _] = &self.meters;
        if self.key.is_none() { Ok(()) } else { app.read(now) }
    }

    /// Whether its application may register shared memory now, whether it needed a key or not.
    pub(crate) fn register_region(&self, now: Time) -> Result<(), ApiError> {
        let [app, _] = &self.meters;
        app.region(now)
    }

    /// The level at which a query goes, if it may. The default level is for everybody: who may ask for lower ones only gets the highest of
    /// those.
    pub(crate) fn priority(&self, wanted: Priority) -> Result<Priority, ApiError> {
        let bound = |meter: &Arc<Meter>| meter.quota.highest_priority.and_then(Priority::new);
        let Some(highest) = self.meters.iter().filter_map(bound).max_by_key(|level| level.level()) else {
            return Ok(wanted);
        };
        if wanted.level() >= highest.level() {
            return Ok(wanted);
        }
        if wanted == Priority::default() {
            return Ok(highest);
        }
        let (wanted, highest) = (wanted.level(), highest.level());
        let message = format!(
            "priority is {wanted}; your application may ask for {highest} to {}, of which {highest} is the highest, or for none",
            Priority::LOWEST
        );
        Err(ApiError::new(StatusCode::FORBIDDEN, "priority_too_high", message))
    }

    /// A refusal for want of a right: whether it is to be noted, and how many were not since the last one that was.
    fn refused(&self, now: Time) -> Option<u64> {
        self.tenant().refused(now)
    }

    /// A body of its was too large. Where nobody needs a key nobody is told from others.
    pub(crate) fn oversized(&self, now: Time) {
        if self.key.is_some() {
            self.tenant().oversized(now);
        }
    }

    /// How long to wait before so many bytes more of a large body are read.
    pub(crate) fn pace(&self, now: Time, bytes: u64) -> Micros {
        self.tenant().pace(now, bytes)
    }

    /// A place for a body that takes long to come, as far as its tenant has one: `Err` if it has not.
    pub(crate) fn slow_body(&self) -> Result<Option<SlowBody<'_>>, ()> {
        if self.key.is_none() { Ok(None) } else { self.tenant().slow_body().map(Some).ok_or(()) }
    }

    /// A turn at unpacking a body, when its tenant has one. Where nobody needs a key nobody is told from others, and nobody waits.
    pub(crate) async fn turn_to_unpack(&self) -> Option<OwnedSemaphorePermit> {
        if self.key.is_none() { None } else { self.tenant().turn_to_unpack().await }
    }

    /// Bytes of bodies that its tenant has here.
    pub(crate) fn held(&self) -> &AtomicU64 {
        &self.tenant().held
    }

    /// A place for an upload, as far as its tenant has one.
    pub(crate) fn upload(&self, places: usize) -> Option<Place> {
        let most = if self.alone { places } else { places.div_ceil(2) };
        Place::upload(self.tenant(), u32::try_from(most).unwrap_or(u32::MAX))
    }

    /// A place to follow what happens to its tenant's queries, as far as the tenant has one.
    pub(crate) fn follow(&self, most: u32) -> Option<Place> {
        Place::follow(self.tenant(), most)
    }

    /// Room of its tenant's quota of artefacts, of which nothing is taken yet.
    pub(crate) fn reserved(&self) -> Reserved {
        Reserved::nothing(Arc::clone(self.tenant()))
    }

    fn tenant(&self) -> &Arc<Meter> {
        let [_, tenant] = &self.meters;
        tenant
    }

    /// Charges what an answer took of a device.
    pub(crate) fn used(&self, now: Time, device: Micros) {
        for meter in &self.meters {
            meter.used(now, device);
        }
    }

    fn least(&self, of: fn(&Quota) -> Option<u64>) -> Option<u64> {
        self.meters.iter().filter_map(|meter| of(&meter.quota)).min()
    }

    /// The largest body it may send, where anybody may send `usual`.
    pub(crate) fn max_body(&self, usual: u64) -> u64 {
        self.least(|quota| quota.body_bytes).map_or(usual, |most| most.min(usual))
    }

    /// Bytes of artefacts that its tenant may have.
    pub(crate) fn max_artefacts(&self) -> Option<u64> {
        self.least(|quota| quota.artefact_bytes)
    }

    /// Whether other tenants and machines are its business.
    pub(crate) fn is_operator(&self) -> bool {
        self.tenant == TenantId::DEFAULT && self.scopes.has(Scope::Admin)
    }
}

/// A key that is known.
#[derive(Debug)]
struct Known {
    caller: Caller,
    key: modelless_store::Key,
}

/// Everybody who may ask.
#[derive(Debug)]
struct Book {
    locked: bool,
    keys: HashMap<[u8; 32], Known>,
    /// On whose behalf jobs are worked on.
    apps: HashMap<(TenantId, AppId), Caller>,
    anybody: Caller,
    meters: HashMap<Owner, Arc<Meter>>,
    doors: Doors,
}

/// Who may ask, replaced whole when that changes.
#[derive(Debug)]
pub(crate) struct Gate {
    book: ArcSwap<Book>,
    sharing: Sharing,
    metrics: Arc<Metrics>,
    /// Whoever has no key that is known.
    strangers: Caller,
}

impl Gate {
    pub(crate) fn new(doors: Doors, metrics: Arc<Metrics>) -> Self {
        let sharing = Sharing::default();
        let meter = || Arc::new(Meter::new("nobody".to_owned(), Quota::default(), Arc::clone(&sharing)));
        let strangers = Caller(Arc::new(Who {
            tenant: STRANGERS,
            app: AppId::DEFAULT,
            names: Names { tenant: String::new(), app: String::new() },
            key: None,
            scopes: Scopes::default(),
            shown: String::new(),
            alone: false,
            metrics: AppMetrics::default(),
            policies: Policies::default(),
            meters: [meter(), meter()],
        }));
        let book = ArcSwap::from_pointee(Book::new(doors, &HashMap::new(), &sharing, &metrics));
        Self { book, sharing, metrics, strangers }
    }

    /// So many gateways share the quotas, this one included.
    pub(crate) fn share(&self, gateways: usize) {
        self.sharing.store(u32::try_from(gateways.max(1)).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// From now on. A door that was locked once is never open again, whatever a store says.
    pub(crate) fn set(&self, mut doors: Doors) {
        let before = self.book.load();
        doors.locked |= before.locked;
        if before.doors != doors {
            let book = Book::new(doors, &before.meters, &self.sharing, &self.metrics);
            self.book.store(Arc::new(book));
        }
    }

    /// Whether these headers bring a key that is known, whatever it is for.
    pub(crate) fn knows(&self, headers: &HeaderMap) -> bool {
        let now = UnixMicros::of(SystemTime::now());
        self.book.load().known(headers).is_ok_and(|known| known.key.valid(now))
    }

    /// Whether a key is needed.
    pub(crate) fn locked(&self) -> bool {
        self.book.load().locked
    }

    /// An application, for what is done in its name while none of its keys is at hand.
    pub(crate) fn caller(&self, tenant: TenantId, app: AppId) -> Option<Caller> {
        self.book.load().apps.get(&(tenant, app)).cloned()
    }

    /// What the tenant of an application and it are called.
    pub(crate) fn app_names(&self, of: AppId) -> Option<(String, String)> {
        let book = self.book.load();
        let app = book.doors.apps.iter().find(|app| app.id == of)?;
        let tenant = book.doors.tenants.iter().find(|tenant| tenant.id == app.tenant)?;
        Some((tenant.name.clone(), app.name.clone()))
    }

    /// Who asks, if they may.
    pub(crate) fn admit(&self, headers: &HeaderMap, needs: Needs) -> Result<Caller, Denied> {
        let book = self.book.load();
        let Some(scope) = needs.scope() else { return Ok(book.anybody.clone()) };
        if !book.locked {
            return Ok(book.anybody.clone());
        }
        let known =
            book.known(headers).map_err(|error| Denied { error, who: self.strangers.clone(), needs })?;
        let caller = &known.caller;
        let denied = |error: ApiError| Err(Denied { error, who: caller.clone(), needs });
        let now = UnixMicros::of(SystemTime::now());
        if !known.key.valid(now) {
            return denied(ended(known));
        }
        if !caller.scopes.has(scope) {
            return denied(forbidden(format!(
                "this needs a key with the scope `{scope}`; yours ({}) has {}",
                known.key.secret.prefix, caller.scopes
            )));
        }
        if needs == Needs::Operator && !caller.is_operator() {
            return denied(forbidden("this needs a key with the scope `admin` of the tenant `default`"));
        }
        Ok(caller.clone())
    }
}

impl Book {
    /// What was used of a quota stays used, as long as the quota is the same.
    fn new(doors: Doors, before: &HashMap<Owner, Arc<Meter>>, sharing: &Sharing, metrics: &Metrics) -> Self {
        let meter = |owner: Owner, whose: String| {
            let quota = doors.quotas.get(&owner).cloned().unwrap_or_default();
            let known = before.get(&owner).filter(|known| known.quota == quota).cloned();
            (owner, known.unwrap_or_else(|| Arc::new(Meter::new(whose, quota, Arc::clone(sharing)))))
        };
        let tenants = doors.tenants.iter();
        let tenants = tenants.map(|of| meter(Owner::Tenant(of.id), format!("the tenant {}", of.name)));
        let apps = doors.apps.iter();
        let apps = apps.map(|of| meter(Owner::App(of.id), format!("the application {}", of.name)));
        let meters: HashMap<_, _> = tenants.chain(apps).collect();
        let alone = doors.tenants.len() == 1;
        let of = |owner: Owner| {
            let unbounded = || Arc::new(Meter::new(String::new(), Quota::default(), Arc::clone(sharing)));
            meters.get(&owner).cloned().unwrap_or_else(unbounded)
        };
        let caller = |(tenant, app): (TenantId, AppId),
                      key: Option<&modelless_store::Key>,
                      scopes: Scopes| {
            let meters = [of(Owner::App(app)), of(Owner::Tenant(tenant))];
            let shown = key.map_or_else(String::new, |key| format!("{} ({})", key.secret.prefix, key.name));
            let key = key.map(|key| key.id);
            let names = {
                let tenant = doors.tenants.iter().find(|of| of.id == tenant).map(|of| of.name.as_str());
                let app = doors.apps.iter().find(|of| of.id == app).map(|of| of.name.as_str());
                let named = |name: Option<&str>| name.unwrap_or("default").to_owned();
                Names { tenant: named(tenant), app: named(app) }
            };
            let metrics = metrics.application(&names.tenant, &names.app);
            let policies = Policies::of(&doors, (tenant, app));
            Caller(Arc::new(Who { tenant, app, names, key, scopes, shown, alone, metrics, policies, meters }))
        };
        let keys = doors.keys.iter().filter_map(|key| {
            let app = doors.apps.iter().find(|app| app.id == key.app)?;
            let caller = caller((app.tenant, app.id), Some(key), key.scopes);
            Some((key.secret.hash, Known { caller, key: key.clone() }))
        });
        let keys = keys.collect();
        let queries: Scopes = [Scope::Query].into_iter().collect();
        let apps =
            doors.apps.iter().map(|app| ((app.tenant, app.id), caller((app.tenant, app.id), None, queries)));
        let apps = apps.collect();
        let anybody = caller((TenantId::DEFAULT, AppId::DEFAULT), None, Scopes::ALL);
        Self { locked: doors.locked, keys, apps, anybody, meters, doors }
    }

    fn known(&self, headers: &HeaderMap) -> Result<&Known, ApiError> {
        let presented = presented(headers)?;
        self.keys.get(&digest(presented)).ok_or_else(|| {
            // Not a word of what was presented: it may be a secret of somewhere else.
            unauthenticated("unknown_key", "this key is not known here")
        })
    }
}

/// The key that came with a request: as a bearer token, or in a header of its own. Several must be the same.
fn presented(headers: &HeaderMap) -> Result<&[u8], ApiError> {
    let bearer = headers.get_all(AUTHORIZATION).iter().filter_map(|value| bearer(value.as_bytes()));
    let own = KEY_HEADERS
        .into_iter()
        .flat_map(|name| headers.get_all(name))
        .map(|value| value.as_bytes().trim_ascii());
    let mut found = bearer.chain(own);
    let Some(first) = found.next().filter(|key| !key.is_empty()) else {
        return Err(unauthenticated(
            "no_key",
            "this needs a key; send it as `Authorization: Bearer KEY` or `api-key: KEY`",
        ));
    };
    if found.any(|other| other != first) {
        return Err(unauthenticated("two_keys", "there are two different keys on this request; send one"));
    }
    if first.len() > KEY_MAX {
        return Err(unauthenticated("unknown_key", "this key is not known here"));
    }
    Ok(first)
}

/// What comes after `Bearer`. Other ways to authenticate are not ours.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.trim_ascii().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

fn ended(known: &Known) -> ApiError {
    let prefix = &known.key.secret.prefix;
    let (reason, how) = if known.key.revoked.is_some() {
        ("revoked_key", "was revoked")
    } else {
        ("expired_key", "has expired")
    };
    unauthenticated(reason, format!("the key {prefix} {how}"))
}

fn unauthenticated(reason: &'static str, message: impl Into<String>) -> ApiError {
    ApiError::new(StatusCode::UNAUTHORIZED, reason, message)
}

fn forbidden(message: impl Into<String>) -> ApiError {
    ApiError::new(StatusCode::FORBIDDEN, "missing_scope", message)
}

#[cfg(test)]
mod tests;
