//! Answers that are given again to who asks the very same, where a task allows it.
//!
//! An entry is found by a digest of who asks, what task, what is pinned, and the input as it was sent; it says which variant answered.
//! It is given only where that variant is among those that may answer the query at hand, so a floor, a pin, a removed or a flagged
//! variant hold as they always do. What is found costs no device and is counted as a hit. Another tenant's digest is another one.

mod local;
mod shared;

pub(crate) use local::Local;
pub(crate) use shared::Shared;

use crate::ids::SECRET_CACHE;
use crate::view::{TaskView, VariantView};
use bytes::Bytes as Buffer;
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::HeaderMap;
use http::header::CACHE_CONTROL;
use modelless_decision::admission::DEFAULT_LATENCY;
use modelless_live::Live;
use modelless_store::Store;
use modelless_telemetry::Metrics;
use modelless_types::{Accuracy, Bytes, Goals, Micros, ModelId, SpaceId, TaskId, TenantId, Time, VariantId};
use modelless_wire::{Answer, Input};
use sha2::Sha256;
use std::sync::Arc;

/// What an entry is found by.
pub(crate) type Key = [u8; 32];

/// Inputs beyond that are digested beside the threads that serve queries, which it would hold up.
pub(crate) const LARGE: usize = 256 << 10;
/// So far may clocks of gateways be apart. What is from a later time is not given: nobody knows how old it is.
pub(crate) const AHEAD: u64 = 1_000_000;

/// What a request says of answers that were given before, as HTTP has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Wish {
    #[default]
    Any,
    /// `max-age`: one that is no older, in seconds.
    Young(u32),
    /// `no-cache`: a new one, which others may have again unless there is a better one.
    New,
    /// `no-store`: a new one, which is not kept either.
    Private,
}

impl Wish {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let mut wish = Self::Any;
        for value in headers.get_all(CACHE_CONTROL) {
            for word in value.to_str().unwrap_or_default().split(',').map(str::trim) {
                if word.eq_ignore_ascii_case("no-store") {
                    return Self::Private;
                }
                let (name, value) = word.split_once('=').unwrap_or((word, ""));
                let age = if name.eq_ignore_ascii_case("max-age") { value.parse().ok() } else { None };
                wish = match (wish, age) {
                    // What browsers send when somebody reloads.
                    (_, Some(0)) => Self::New,
                    (Self::Any, Some(age)) => Self::Young(age),
                    (Self::Young(before), Some(age)) => Self::Young(age.min(before)),
                    (_, None) if word.eq_ignore_ascii_case("no-cache") => Self::New,
                    (wish, _) => wish,
                };
            }
        }
        wish
    }
}

/// An answer that was given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) body: Buffer,
    pub(crate) model: ModelId,
    pub(crate) variant: VariantId,
    pub(crate) space: SpaceId,
    /// When it was given, in microseconds since 1970: it may come from another gateway.
    pub(crate) given_unix: u64,
}

impl Entry {
    pub(crate) fn of(answer: &Answer, now_unix: u64) -> Self {
        let Answer { body, model, variant, space, .. } = answer;
        // A copy: an answer may be a part of something larger that came over a wire.
        Self {
            body: Buffer::copy_from_slice(body),
            model: *model,
            variant: *variant,
            space: *space,
            given_unix: now_unix,
        }
    }

    /// What it takes in memory, about.
    pub(crate) fn bytes(&self) -> u64 {
        Self::bytes_of(self.body.len())
    }

    fn bytes_of(body: usize) -> u64 {
        /// Keys, the table's and the line's parts.
        const BESIDES: usize = 256;
        (body + BESIDES) as u64
    }

    pub(crate) fn age(&self, now_unix: u64) -> Micros {
        Micros(now_unix.saturating_sub(self.given_unix))
    }
}

/// What a gateway keeps, and what it shares with others.
pub(crate) struct Cache {
    secret: [u8; 32],
    pub(crate) local: Local,
    pub(crate) shared: Option<Shared>,
}

/// A query that may be answered so.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lookup {
    pub(crate) key: Key,
    /// How old an answer may be.
    pub(crate) within: Micros,
    pub(crate) wish: Wish,
    /// Who asks.
    tenant: TenantId,
    /// It has the time to look where gateways share.
    pub(crate) far: bool,
}

impl Cache {
    pub(crate) async fn new(
        store: &dyn Store,
        live: Option<Arc<dyn Live>>,
        most: Bytes,
        metrics: &Metrics,
    ) -> Result<Self, crate::Error> {
        let mut candidate = [0; 32];
        getrandom::fill(&mut candidate).map_err(crate::Error::Random)?;
        // The same for all gateways of a store, so that they find what others keep.
        let secret = store.secret(SECRET_CACHE, candidate).await?;
        let shared = live.map(|live| Shared::new(live, secret, metrics.shared_cache()));
        Ok(Self { secret, local: Local::new(most.0), shared })
    }

    /// Whether answers of this task are given again.
    pub(crate) fn serves(&self, task: &TaskView) -> bool {
        task.task.cache.time().is_some() && self.local.has_room(1)
    }

    /// How a query would be found, where its task allows it and the request wants it.
    pub(crate) async fn lookup(
        &self,
        task: &TaskView,
        tenant: TenantId,
        goals: &Goals,
        input: &Input,
        wish: Wish,
    ) -> Option<Lookup> {
        let within = task.task.cache.time().filter(|_| self.serves(task))?;
        if wish == Wish::Private {
            return None;
        }
        let asked = Asked { tenant, task: task.task.id, model: goals.model, variant: goals.variant };
        let key = if size(input) > LARGE {
            let (secret, input) = (self.secret, input.clone());
            // An input that cannot be digested is asked anew.
            tokio::task::spawn_blocking(move || key(&secret, asked, &input)).await.ok()?
        } else {
            key(&self.secret, asked, input)
        };
        let bound = goals.latency.or(task.task.defaults.latency).unwrap_or(DEFAULT_LATENCY);
        Some(Lookup { key, within, wish, tenant, far: bound >= shared::LEAST_BOUND })
    }

    /// What is known, here or where all gateways share it.
    pub(crate) async fn find(
        &self,
        lookup: &Lookup,
        task: &TaskView,
        now: Time,
        now_unix: u64,
    ) -> Option<Arc<Entry>> {
        let within = match lookup.wish {
            Wish::Any => lookup.within,
            Wish::Young(age) => lookup.within.min(Micros::from_secs(age.into())),
            Wish::New | Wish::Private => return None,
        };
        let fresh = |entry: &Arc<Entry>| {
            entry.given_unix <= now_unix.saturating_add(AHEAD) && entry.age(now_unix) <= within
        };
        if let Some(entry) = self.local.get(&lookup.key).filter(fresh) {
            return Some(entry);
        }
        let shared = self.shared.as_ref().filter(|_| lookup.far)?;
        let entry = shared.get(&lookup.key, now).await.map(Arc::new).filter(fresh)?;
        // Meanwhile somebody else may have been answered.
        let older = |known: &Entry| known.given_unix <= entry.given_unix;
        self.local.put(lookup.key, Arc::clone(&entry), task.metrics.cache(), older);
        Some(entry)
    }

    /// Keeps an answer, unless one is there that satisfies more queries and is not much older.
    pub(crate) fn keep(&self, lookup: &Lookup, task: &TaskView, answer: &Answer, now: Time, now_unix: u64) {
        let Lookup { key, within, tenant, .. } = *lookup;
        if !self.local.has_room(Entry::bytes_of(answer.body.len())) {
            return; // before it is copied
        }
        let entry = Arc::new(Entry::of(answer, now_unix));
        let rank = |of: VariantId| task.variant(of).map(|variant| rank(task, variant));
        let better = |known: &Entry| {
            known.age(now_unix).0 > within.0 / 2 || rank(entry.variant) >= rank(known.variant)
        };
        if self.local.put(key, Arc::clone(&entry), task.metrics.cache(), better)
            && let Some(shared) = &self.shared
        {
            shared.put(shared::Write { key, entry, within, at: now, tenant });
        }
    }
}

/// How many queries a variant's answer satisfies: those of a version that answers by default more than others', then the more
/// accurate ones. So what an earlier version answered is not in the way of the one that took its place.
fn rank(task: &TaskView, variant: &VariantView) -> (bool, Option<Accuracy>) {
    (task.is_default(variant.variant.model), variant.accuracy)
}

/// What is asked, but for the input and for goals that any variant may keep.
#[derive(Clone, Copy)]
struct Asked {
    tenant: TenantId,
    task: TaskId,
    /// Pins: whoever has one is not in the way of those who have none.
    model: Option<ModelId>,
    variant: Option<VariantId>,
}

fn size(input: &Input) -> usize {
    match input {
        Input::Raw(bytes) => bytes.len(),
        Input::Json { inputs, parameters } => inputs.len() + parameters.as_ref().map_or(0, Buffer::len),
    }
}

/// Keyed, so that who reads a Redis cannot find out by trying what was asked.
fn key(secret: &[u8; 32], asked: Asked, input: &Input) -> Key {
    let mut mac: Hmac<Sha256> =
        Hmac::new_from_slice(secret).expect("HMAC takes keys of any length; this is a bug");
    // Each part with its length, so that no two queries are the same bytes.
    let mut part = |bytes: &[u8]| {
        mac.update(&(bytes.len() as u64).to_le_bytes());
        mac.update(bytes);
    };
    let Asked { tenant, task, model, variant } = asked;
    part(b"query");
    for id in [Some(tenant.0), Some(task.0), model.map(|model| model.0), variant.map(|variant| variant.0)] {
        part(id.map(u32::to_le_bytes).as_ref().map_or(&[], |bytes| &bytes[..]));
    }
    match input {
        Input::Raw(bytes) => {
            part(b"raw");
            part(bytes);
        }
        Input::Json { inputs, parameters } => {
            part(if parameters.is_some() { b"with" } else { b"json" });
            part(inputs);
            part(parameters.as_deref().unwrap_or_default());
        }
    }
    mac.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn wish(values: &[&str]) -> Wish {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(CACHE_CONTROL, HeaderValue::from_str(value).unwrap());
        }
        Wish::of(&headers)
    }

    #[test]
    fn a_request_may_want_a_new_answer() {
        assert_eq!(wish(&[]), Wish::Any);
        assert_eq!(wish(&["max-age=60", "Max-Age=20, max-age=40"]), Wish::Young(20));
        assert_eq!(wish(&["max-age=x, s-maxage=5, max-age"]), Wish::Any);
        assert_eq!(wish(&["max-age=60, no-cache", "max-age=5"]), Wish::New);
        assert_eq!(wish(&["No-Cache"]), Wish::New);
        assert_eq!(wish(&["max-age=0"]), Wish::New);
        assert_eq!(wish(&["no-cache", "private, no-store"]), Wish::Private);
    }

    #[test]
    fn whatever_is_otherwise_has_another_key() {
        let text = |text: &'static str| Buffer::from_static(text.as_bytes());
        let json = |inputs, parameters: Option<&'static str>| Input::Json {
            inputs: text(inputs),
            parameters: parameters.map(text),
        };
        let who = |tenant, task, model: Option<u32>, variant: Option<u32>| Asked {
            tenant: TenantId(tenant),
            task: TaskId(task),
            model: model.map(ModelId),
            variant: variant.map(VariantId),
        };
        let any = who(1, 1, None, None);
        let asked = [
            (any, Input::Raw(text("ab"))),
            (who(2, 1, None, None), Input::Raw(text("ab"))),
            (who(1, 2, None, None), Input::Raw(text("ab"))),
            (who(1, 1, Some(1), None), Input::Raw(text("ab"))),
            (who(1, 1, None, Some(1)), Input::Raw(text("ab"))),
            (who(1, 1, Some(1), Some(1)), Input::Raw(text("ab"))),
            (any, Input::Raw(text("abc"))),
            (any, json("ab", None)),
            (any, json("ab", Some(""))),
            (any, json("ab", Some("{}"))),
            (any, json("ab{}", Some(""))),
            (any, json("a", Some("b{}"))),
        ];
        let keys: std::collections::BTreeSet<Key> =
            asked.iter().map(|(who, input)| key(&[7; 32], *who, input)).collect();
        assert_eq!(keys.len(), asked.len());
        let same = Input::Raw(text("ab"));
        assert!(keys.contains(&key(&[7; 32], any, &same)), "and the same has the same");
        assert!(!keys.contains(&key(&[8; 32], any, &same)), "another store's secret");
    }
}
