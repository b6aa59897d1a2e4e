//! Answers that are given again to who asks the very same, where a task allows it.
//!
//! An entry is found by a digest of who asks, what task, and the input as it was sent; it says which variant answered. It is given only
//! where that variant is among those that may answer the query at hand, so a floor, a pin, a removed or a flagged variant hold as they
//! always do. What is found costs no device and is counted as a hit. Another tenant's digest is another one.

mod local;
mod shared;

pub(crate) use local::Local;
pub(crate) use shared::Shared;

use crate::ids::SECRET_CACHE;
use crate::view::TaskView;
use bytes::Bytes as Buffer;
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::HeaderMap;
use http::header::CACHE_CONTROL;
use modelless_live::Live;
use modelless_store::Store;
use modelless_telemetry::CacheMetrics;
use modelless_types::{Bytes, Micros, ModelId, SpaceId, TaskId, TenantId, Time, VariantId};
use modelless_wire::{Answer, Input};
use sha2::Sha256;
use std::sync::Arc;

/// What an entry is found by.
pub(crate) type Key = [u8; 32];

/// What a request says of answers that were given before, as HTTP has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Wish {
    #[default]
    Any,
    /// `no-cache`: a new one, which others may have again.
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
                // `max-age=0` is what browsers send when somebody reloads.
                if word.eq_ignore_ascii_case("no-cache") || word.eq_ignore_ascii_case("max-age=0") {
                    wish = Self::New;
                }
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
        /// Keys, the table's and the line's parts.
        const BESIDES: usize = 256;
        (self.body.len() + BESIDES) as u64
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
    pub(crate) metrics: CacheMetrics,
}

/// A query that may be answered so.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lookup {
    pub(crate) key: Key,
    /// How old an answer may be.
    pub(crate) within: Micros,
    pub(crate) wish: Wish,
}

impl Cache {
    pub(crate) async fn new(
        store: &dyn Store,
        live: Option<Arc<dyn Live>>,
        most: Bytes,
        metrics: CacheMetrics,
    ) -> Result<Self, crate::Error> {
        let mut candidate = [0; 32];
        getrandom::fill(&mut candidate).map_err(crate::Error::Random)?;
        // The same for all gateways of a store, so that they find what others keep.
        let secret = store.secret(SECRET_CACHE, candidate).await?;
        let shared = live.map(|live| Shared::new(live, secret));
        Ok(Self { secret, local: Local::new(most.0), shared, metrics })
    }

    /// How a query would be found, where its task allows it and the request wants it.
    pub(crate) fn lookup(
        &self,
        task: &TaskView,
        tenant: TenantId,
        input: &Input,
        wish: Wish,
    ) -> Option<Lookup> {
        let within = task.task.cache.time()?;
        if wish == Wish::Private {
            return None;
        }
        Some(Lookup { key: self.key(tenant, task.task.id, input), within, wish })
    }

    /// Keyed, so that who reads a Redis cannot find out by trying what was asked.
    fn key(&self, tenant: TenantId, task: TaskId, input: &Input) -> Key {
        let mut mac: Hmac<Sha256> =
            Hmac::new_from_slice(&self.secret).expect("HMAC takes keys of any length; this is a bug");
        mac.update(b"query");
        mac.update(&tenant.0.to_le_bytes());
        mac.update(&task.0.to_le_bytes());
        // Each part with its length, so that no two inputs are the same bytes.
        let mut part = |bytes: &[u8]| {
            mac.update(&(bytes.len() as u64).to_le_bytes());
            mac.update(bytes);
        };
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

    /// What is known, here or where all gateways share it.
    pub(crate) async fn find(&self, lookup: &Lookup, now: Time, now_unix: u64) -> Option<Arc<Entry>> {
        if lookup.wish != Wish::Any {
            return None;
        }
        let fresh = |entry: &Arc<Entry>| entry.age(now_unix) <= lookup.within;
        if let Some(entry) = self.local.get(&lookup.key).filter(fresh) {
            return Some(entry);
        }
        let entry = self.shared.as_ref()?.get(&lookup.key, now).await.map(Arc::new).filter(fresh)?;
        self.local.put(lookup.key, Arc::clone(&entry), |_| true);
        Some(entry)
    }

    /// Keeps an answer, unless a better one is there that is not much older: what is more accurate satisfies more queries.
    pub(crate) fn keep(&self, lookup: &Lookup, task: &TaskView, answer: &Answer, now: Time, now_unix: u64) {
        let entry = Arc::new(Entry::of(answer, now_unix));
        let accuracy = |of: VariantId| task.variant(of).and_then(|variant| variant.accuracy);
        let better = |known: &Entry| {
            let half_over = known.age(now_unix).0 > lookup.within.0 / 2;
            half_over || accuracy(entry.variant) >= accuracy(known.variant)
        };
        if self.local.put(lookup.key, Arc::clone(&entry), better)
            && let Some(shared) = &self.shared
        {
            shared.put(lookup.key, entry, lookup.within, now);
        }
    }
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
        assert_eq!(wish(&["max-age=60"]), Wish::Any);
        assert_eq!(wish(&["No-Cache"]), Wish::New);
        assert_eq!(wish(&["max-age=0"]), Wish::New);
        assert_eq!(wish(&["no-cache", "private, no-store"]), Wish::Private);
    }

    #[test]
    fn whatever_is_otherwise_has_another_key() {
        let secret = [7; 32];
        let cache = Cache {
            secret,
            local: Local::new(1 << 20),
            shared: None,
            metrics: modelless_telemetry::Metrics::new().cache(),
        };
        let text = |text: &'static str| Buffer::from_static(text.as_bytes());
        let json = |inputs, parameters: Option<&'static str>| Input::Json {
            inputs: text(inputs),
            parameters: parameters.map(text),
        };
        let asked = [
            (1, 1, Input::Raw(text("ab"))),
            (2, 1, Input::Raw(text("ab"))),
            (1, 2, Input::Raw(text("ab"))),
            (1, 1, Input::Raw(text("abc"))),
            (1, 1, json("ab", None)),
            (1, 1, json("ab", Some(""))),
            (1, 1, json("ab", Some("{}"))),
            (1, 1, json("ab{}", Some(""))),
            (1, 1, json("a", Some("b{}"))),
        ];
        let key = |of: &Cache, (tenant, task, input): &(u32, u32, Input)| {
            of.key(TenantId(*tenant), TaskId(*task), input)
        };
        let keys: std::collections::BTreeSet<Key> = asked.iter().map(|asked| key(&cache, asked)).collect();
        assert_eq!(keys.len(), asked.len());
        assert!(keys.contains(&key(&cache, &(1, 1, Input::Raw(text("ab"))))), "and the same has the same");
        let other = Cache { secret: [8; 32], ..cache };
        assert!(!keys.contains(&key(&other, &asked[0])));
    }

    #[tokio::test]
    async fn an_answer_that_is_too_old_is_not_found() {
        let store = modelless_store::MemStore::new();
        let metrics = modelless_telemetry::Metrics::new().cache();
        let cache = Cache::new(&store, None, Bytes(1 << 20), metrics).await.unwrap();
        let (key, within) = ([1; 32], Micros::from_secs(60));
        let lookup = |wish| Lookup { key, within, wish };
        let entry = Entry {
            body: Buffer::from_static(b"[]"),
            model: ModelId(1),
            variant: VariantId(1),
            space: SpaceId(1),
            given_unix: 1_000_000,
        };
        assert!(cache.local.put(key, Arc::new(entry), |_| true));
        let minute_later = 1_000_000 + within.0;
        assert!(cache.find(&lookup(Wish::Any), Time(0), minute_later).await.is_some());
        assert!(cache.find(&lookup(Wish::Any), Time(0), minute_later + 1).await.is_none());
        assert!(cache.find(&lookup(Wish::New), Time(0), 1_000_000).await.is_none(), "a new one is wanted");
    }
}
