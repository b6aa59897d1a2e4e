//! Who may ask: tenants, their applications and the keys of those. The part of a store that keeps them, and the words for it.

use crate::check;
use crate::error::{Error, Result};
use crate::policies::{Policy, PolicyOf};
use crate::records::{App, Tenant, UnixMicros, hex};
use async_trait::async_trait;
use modelless_types::{AppId, KeyId, Priority, Scopes, TaskId, TenantId};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// Keys that have not ended, of all applications together; there is room for no more. Where there are several tenants none has more than half of
/// that.
pub const KEYS_MAX: usize = 10_000;
/// Keys that have ended are forgotten, the oldest first, once there are more than this.
pub const ENDED_KEYS_KEPT: usize = 1_000;
/// What a tenant uploaded is its own for so long, unless a model is made of it: as long as it stays on the disk.
pub const UPLOAD_KEPT: Duration = Duration::from_hours(24);
/// So many of these a tenant may have.
pub const UPLOADS_MAX: usize = 1_000;
/// Tenants, and applications of all of them together. Where there are several tenants none has more than half of the applications.
pub const TENANTS_MAX: usize = 10_000;

/// What every key begins with, so that people and scanners know one when they see it.
const MARK: &str = "mlk_";
/// Digits of a key that are shown. The other 224 bits are nobody's but its holder's.
const SHOWN: usize = 8;

/// A text of somebody's without what may be keys in it: of each what is shown of a key stays.
pub fn without_keys(text: &str) -> Cow<'_, str> {
    if !text.contains(MARK) {
        return Cow::Borrowed(text);
    }
    let mut pieces = text.split(MARK);
    let mut told = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let digits = piece.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(piece.len());
        told.push_str(MARK);
        told.push_str(&piece[..digits.min(SHOWN)]);
        if digits > SHOWN {
            told.push_str("...");
        }
        told.push_str(&piece[digits..]);
    }
    Cow::Owned(told)
}

/// A key as its holder has it. It shows itself only where it is asked to by name.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretKey(String);

impl SecretKey {
    /// From 256 random bits of the caller's.
    pub fn new(random: [u8; 32]) -> Self {
        Self(format!("{MARK}{}", hex(&random)))
    }

    /// The key itself, to be told once to whoever asked for it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// What is kept of it.
    pub fn kept(&self) -> KeptSecret {
        KeptSecret { hash: digest(self.0.as_bytes()), prefix: self.0[..MARK.len() + SHOWN].to_owned() }
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretKey(..)")
    }
}

/// The SHA-256 of a key as it was presented. Keys are 256 random bits, so nothing slower is needed, and to look for this instead of
/// the key tells nobody who measures times anything about a key.
pub fn digest(presented: &[u8]) -> [u8; 32] {
    Sha256::digest(presented).into()
}

/// What is kept of a secret.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeptSecret {
    /// Of the whole key.
    pub hash: [u8; 32],
    /// How it begins.
    pub prefix: String,
}

/// A key, without its secret.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Key {
    /// Number in the store.
    pub id: KeyId,
    /// Whose it is.
    pub app: AppId,
    /// What it is for, in its maker's words.
    pub name: String,
    /// Its secret, as far as that is kept.
    pub secret: KeptSecret,
    /// What it allows.
    pub scopes: Scopes,
    /// When it was made.
    pub created: UnixMicros,
    /// When it ends by itself.
    pub expires: Option<UnixMicros>,
    /// When it was ended.
    pub revoked: Option<UnixMicros>,
    /// The one that takes its place.
    pub successor: Option<KeyId>,
}

impl Key {
    /// Whether it opens anything at this moment.
    pub fn valid(&self, now: UnixMicros) -> bool {
        self.revoked.is_none() && self.expires.is_none_or(|end| now < end)
    }
}

/// A key to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewKey {
    /// Whose it is to be.
    pub app: AppId,
    /// What it is for.
    pub name: String,
    /// What is to be kept of its secret.
    pub secret: KeptSecret,
    /// What it allows.
    pub scopes: Scopes,
    /// When it is made.
    pub at: UnixMicros,
    /// When it ends by itself.
    pub expires: Option<UnixMicros>,
}

/// A key to be put in another one's place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rotation {
    /// Which one goes.
    pub key: KeyId,
    /// What is to be kept of the new one's secret. Everything else is as it was.
    pub secret: KeptSecret,
    /// Now.
    pub at: UnixMicros,
    /// Until then both are valid; never longer than the old one would have been.
    pub both_until: UnixMicros,
    /// When the new one ends by itself.
    pub expires: Option<UnixMicros>,
}

/// What may be used; what is not said is not bounded. One for all gateways together.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Quota {
    /// Queries a second; each row of a request is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_s: Option<u32>,
    /// And so many at once; without it as many as in a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
    /// Seconds of devices' time in an hour: the time of each batch, shared by its queries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_s_per_h: Option<u32>,
    /// Queries that are open at one time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// Bytes of one body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_bytes: Option<u64>,
    /// Bytes of all artefacts of registered models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub artefact_bytes: Option<u64>,
    /// The highest level of priority that queries may ask for: 1 is the highest there is, 9 the lowest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub highest_priority: Option<u8>,
}

impl Quota {
    pub(crate) fn check(&self) -> Result<()> {
        let Self {
            requests_per_s,
            burst,
            device_s_per_h,
            concurrency,
            body_bytes,
            artefact_bytes,
            highest_priority,
        } = self;
        for (name, value) in [
            ("requests_per_s", requests_per_s.map(u64::from)),
            ("burst", burst.map(u64::from)),
            ("device_s_per_h", device_s_per_h.map(u64::from)),
            ("concurrency", concurrency.map(u64::from)),
            ("body_bytes", *body_bytes),
            ("artefact_bytes", *artefact_bytes),
        ] {
            if value == Some(0) {
                return Err(Error::invalid(
                    "quota",
                    format!("{name} is 0; revoke the keys to keep somebody out"),
                ));
            }
            check::number("quota", value.unwrap_or(0))?;
        }
        if burst.is_some() && requests_per_s.is_none() {
            return Err(Error::invalid("quota", "burst says nothing without requests_per_s"));
        }
        if let Some(level) = highest_priority
            && !(1..=Priority::LOWEST).contains(level)
        {
            let why = format!("highest_priority is {level}; levels are 1 (highest) to {}", Priority::LOWEST);
            return Err(Error::invalid("quota", why));
        }
        Ok(())
    }
}

/// Whose quota. That of an application counts beside its tenant's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Owner {
    /// A tenant with all its applications.
    Tenant(TenantId),
    /// One application.
    App(AppId),
}

/// The models of a name, later versions included, may be used by another tenant than their owner.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Grant {
    /// Their task.
    pub task: TaskId,
    /// Their name.
    pub name: String,
    /// By whom; `None` is everybody.
    pub to: Option<TenantId>,
}

/// Who besides their owner may use the models of a name.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Visibility {
    /// Nobody.
    #[default]
    Private,
    /// These tenants.
    Shared(Vec<TenantId>),
    /// Everybody.
    Public,
}

impl Visibility {
    /// What is kept of it.
    pub(crate) fn grants(&self, task: TaskId, name: &str) -> Vec<Grant> {
        let grant = |to: Option<TenantId>| Grant { task, name: name.to_owned(), to };
        let mut grants: Vec<Grant> = match self {
            Self::Private => Vec::new(),
            Self::Shared(tenants) => tenants.iter().map(|tenant| grant(Some(*tenant))).collect(),
            Self::Public => vec![grant(None)],
        };
        grants.sort();
        grants.dedup();
        grants
    }
}

/// An artefact that a tenant has brought.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Upload {
    /// By whom.
    pub tenant: TenantId,
    /// Which one, in lower-case hexadecimal.
    pub sha256: String,
    /// Its size.
    pub bytes: u64,
    /// Now.
    pub at: UnixMicros,
}

impl Upload {
    /// What was brought before this is nobody's any more.
    pub(crate) fn forgets(&self) -> UnixMicros {
        UnixMicros(self.at.0.saturating_sub(u64::try_from(UPLOAD_KEPT.as_micros()).unwrap_or(u64::MAX)))
    }
}

/// Everybody who may ask, as of one moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Doors {
    /// Whether a key is needed: from the first one on that was ever made.
    pub locked: bool,
    /// Owners.
    pub tenants: Vec<Tenant>,
    /// Those who ask.
    pub apps: Vec<App>,
    /// In the order in which they were made. Ended ones are there for a while.
    pub keys: Vec<Key>,
    /// Of those who have one.
    pub quotas: BTreeMap<Owner, Quota>,
    /// What holds for their queries beside what these say.
    pub policies: BTreeMap<PolicyOf, Policy>,
    /// What may be used by others than its owner; by task, name and tenant.
    pub grants: Vec<Grant>,
}

/// What a store keeps of who may ask. Each change is also one of the catalogue, whose version tells readers to look again.
#[async_trait]
pub trait Access: Send + Sync {
    /// Everybody who may ask.
    async fn doors(&self) -> Result<Doors>;

    /// Makes a tenant, with an application named `default`.
    async fn create_tenant(&self, name: &str) -> Result<Tenant>;

    /// An application of a tenant: the one of that name, made if there is none.
    async fn app(&self, tenant: TenantId, name: &str) -> Result<App>;

    /// Makes a key. From the first on all who ask need one, so that one must allow to make more.
    async fn create_key(&self, key: NewKey) -> Result<Key>;

    /// Puts a new key in the place of one that is valid and was not rotated before: the old one, and the new.
    async fn rotate_key(&self, rotation: Rotation) -> Result<(Key, Key)>;

    /// Says who besides its owner may use the models of a name, in place of what was said before.
    async fn share_model(&self, task: TaskId, name: &str, with: Visibility) -> Result<()>;

    /// Says what may be used from now on, in place of what was said before.
    async fn set_quota(&self, of: Owner, quota: Quota) -> Result<()>;

    /// Says what holds for queries from now on beside what they say, in place of what was said before. An empty policy says nothing.
    async fn set_policy(&self, of: PolicyOf, policy: Policy) -> Result<()>;

    /// Keeps for a while that a tenant has this artefact. No change of the catalogue.
    async fn note_upload(&self, upload: Upload) -> Result<()>;

    /// What a tenant uploaded since then, with the sizes.
    async fn uploads(&self, tenant: TenantId, since: UnixMicros) -> Result<BTreeMap<String, u64>>;

    /// Ends a key at once. One that was ended before stays as it is.
    async fn revoke_key(&self, key: KeyId, at: UnixMicros) -> Result<Key>;
}

/// What holds for keys in every store.
impl NewKey {
    pub(crate) fn check(&self, first: bool) -> Result<()> {
        use modelless_types::Scope;
        let refuse = |why: &str| Err(Error::invalid("key", why));
        crate::check::name("key", &self.name)?;
        crate::check::number("time", self.at.0)?;
        if self.scopes.is_empty() {
            return refuse("it would allow nothing; give it at least one of query, register and admin");
        }
        if first && !self.scopes.has(Scope::Admin) {
            return refuse(
                "from the first key on everybody needs one, and only `admin` allows to make more; give the first one that scope",
            );
        }
        if first && self.expires.is_some() {
            return refuse("the first key must not expire, or there may be none that can make another");
        }
        ends_later(self.at, self.expires)
    }
}

impl Rotation {
    /// What becomes of the old one, and the new one. `after` is what has taken the old one's place before, where that is still known.
    pub(crate) fn of(self, old: &Key, after: Option<&Key>, id: KeyId) -> Result<(Key, Key)> {
        crate::check::number("time", self.at.0)?;
        crate::check::number("time", self.both_until.0)?;
        ends_later(self.at, self.expires)?;
        if !old.valid(self.at) {
            return Err(Error::KeyEnded { key: old.secret.prefix.clone() });
        }
        if let Some(successor) = old.successor {
            let by = after.map_or_else(|| successor.to_string(), |after| after.secret.prefix.clone());
            return Err(Error::RotatedBefore { key: old.secret.prefix.clone(), by });
        }
        let end = old.expires.map_or(self.both_until, |end| end.min(self.both_until)).max(self.at);
        let new = Key {
            id,
            secret: self.secret,
            created: self.at,
            expires: self.expires,
            revoked: None,
            successor: None,
            ..old.clone()
        };
        Ok((Key { expires: Some(end), successor: Some(id), ..old.clone() }, new))
    }
}

fn ends_later(now: UnixMicros, expires: Option<UnixMicros>) -> Result<()> {
    let Some(end) = expires else { return Ok(()) };
    crate::check::number("time", end.0)?;
    if end <= now {
        return Err(Error::invalid("key", "it would have ended before it was made"));
    }
    Ok(())
}

/// How many there are of what all tenants share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shared {
    pub(crate) all: usize,
    /// Of the tenant that is to have one more.
    pub(crate) own: usize,
    pub(crate) tenants: usize,
}

impl Shared {
    /// Whether there is room for one more of at most so many, of which a tenant that is not alone gets half.
    pub(crate) fn room(self, what: &'static str, most: usize) -> Result<()> {
        let share = if self.tenants > 1 { most / 2 } else { most };
        if self.all >= most {
            return Err(full(what, most));
        }
        if self.own >= share {
            return Err(full_of_one(what, share));
        }
        Ok(())
    }
}

/// A tenant has as many as it may have.
pub(crate) fn full_of_one(what: &'static str, limit: usize) -> Error {
    Error::Full { what, limit, whose: "of this tenant" }
}

pub(crate) fn full(what: &'static str, limit: usize) -> Error {
    Error::Full { what, limit, whose: "of all tenants together" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_several_tenants_gets_no_more_than_half_of_what_all_share() {
        let room = |all, own, tenants| match (Shared { all, own, tenants }).room("key", 10) {
            Err(Error::Full { limit, whose, .. }) => Some((limit, whose)),
            Ok(()) => None,
            Err(error) => panic!("{error}"),
        };
        assert_eq!(room(9, 9, 1), None);
        assert_eq!(room(10, 10, 1), Some((10, "of all tenants together")));
        assert_eq!(room(9, 4, 2), None);
        assert_eq!(room(5, 5, 2), Some((5, "of this tenant")));
        assert_eq!(room(10, 0, 2), Some((10, "of all tenants together")));
    }

    #[test]
    fn no_text_keeps_a_key_that_somebody_put_in_it() {
        let key = SecretKey::new([0xab; 32]);
        let path = format!("/v1/keys/{}/rotate?and={}", key.0, key.0);
        assert_eq!(without_keys(&path), "/v1/keys/mlk_abababab.../rotate?and=mlk_abababab...");
        for plain in ["/v1/keys/mlk_abababab", "mlk_", "/v1/tasks/é", ""] {
            assert_eq!(without_keys(plain), plain);
        }
    }

    #[test]
    fn a_key_shows_its_first_digits_and_never_more() {
        let key = SecretKey::new([0xab; 32]);
        assert_eq!(key.expose().len(), 68);
        assert_eq!(key.kept().prefix, "mlk_abababab");
        assert_eq!(key.kept().hash, digest(key.expose().as_bytes()));
        let shown = format!("{key:?} {:?}", key.kept());
        assert!(!shown.contains(key.expose()), "{shown}");
    }
}
