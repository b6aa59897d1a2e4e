//! Live state in a Redis (or Valkey): two keys that expire for each member, a set that lists them, a channel.
//!
//! One key has what changes with every heartbeat and says which lists hold; these stand under the other, are written when they
//! change, and are read by those who do not have them. So what crosses goes by what changed, not by what is known.
//!
//! The set may name keys that have expired; whoever reads it takes those out. Should that hit one who announces itself
//! at that moment, its next heartbeat puts it back.

use crate::head::Head;
use crate::said::{Lists, Said};
use crate::{Error, Live, MEMBERS, Member, NOTICES, Notice, Role};
use async_trait::async_trait;
use futures_util::StreamExt;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, Pipeline, RedisError, RedisFuture};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex as StdMutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Mutex, broadcast};
use tokio::time::{interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// A Redis that takes longer is away.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between looks whether the channel still lives, and before it is opened again.
const CHANNEL_BEAT: Duration = Duration::from_secs(1);
/// Members that are asked for at once, and lists, which may be large: each answer has to come within [`PATIENCE`].
const HEADS_AT_ONCE: usize = 512;
const LISTS_AT_ONCE: usize = 32;

/// Lists by the key of their member: whose, the how manieth, and what they say. Of those that were announced and may not have
/// come there, the number is not used again, and what they say is not known.
type KnownLists = BTreeMap<String, (u64, u64, Option<Lists>)>;

/// Live state in a Redis.
pub struct RedisLive {
    client: Client,
    /// Where it is, without a password.
    at: String,
    /// In front of every key, so that clusters can share a Redis.
    prefix: String,
    /// Opened on first use and again after every failure.
    connection: Mutex<Option<MultiplexedConnection>>,
    notices: broadcast::Sender<Notice>,
    /// What was announced from here, and what was read here.
    announced: StdMutex<KnownLists>,
    read: StdMutex<KnownLists>,
    /// Not all lists could be read the last time.
    lacking: AtomicBool,
}

impl RedisLive {
    /// Uses a Redis (`redis://[user:password@]host:port[/db]`). Does not connect yet: a Redis that is away is no
    /// reason not to start. Clusters that share one are told apart by `cluster`.
    pub fn new(url: &str, cluster: &str) -> Result<Self, Error> {
        let bad = |why: String| Error::Url { url: without_password(url), why };
        let client = Client::open(url).map_err(|error| bad(error.to_string()))?;
        Ok(Self {
            client,
            at: without_password(url),
            prefix: format!("modelless:{cluster}"),
            connection: Mutex::default(),
            notices: broadcast::Sender::new(NOTICES),
            announced: StdMutex::default(),
            read: StdMutex::default(),
            lacking: AtomicBool::new(false),
        })
    }

    fn lists_key(key: &str) -> String {
        format!("{key}:said")
    }

    fn key(&self, role: Role, name: &str) -> String {
        format!("{}:member:{}:{name}", self.prefix, role.name())
    }

    fn set(&self) -> String {
        format!("{}:members", self.prefix)
    }

    fn kept(&self, name: &str) -> String {
        format!("{}:kept:{name}", self.prefix)
    }

    fn channel(&self) -> String {
        format!("{}:notices", self.prefix)
    }

    async fn ask<T, F>(&self, ask: F) -> Result<T, Error>
    where
        F: for<'c> FnOnce(&'c mut MultiplexedConnection) -> RedisFuture<'c, T> + Send,
    {
        let mut connection = self.connection().await?;
        match timeout(PATIENCE, ask(&mut connection)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) if is_refusal(&error) => Err(Error::Refused { why: error.to_string() }),
            Ok(Err(error)) => Err(self.away(&error).await),
            Err(_) => Err(self.away(&format!("no answer within {PATIENCE:?}")).await),
        }
    }

    async fn connection(&self) -> Result<MultiplexedConnection, Error> {
        let mut connection = self.connection.lock().await;
        if let Some(open) = connection.as_ref() {
            return Ok(open.clone());
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(PATIENCE));
        let opened = self.client.get_multiplexed_async_connection_with_config(&config);
        let error = |why: String| Error::Away { at: self.at.clone(), why };
        let opened = match timeout(PATIENCE, opened).await {
            Ok(opened) => opened.map_err(|why| error(why.to_string()))?,
            Err(_) => return Err(error(format!("no connection within {PATIENCE:?}"))),
        };
        Ok(connection.insert(opened).clone())
    }

    /// The connection is not used again.
    async fn away(&self, why: &impl fmt::Display) -> Error {
        *self.connection.lock().await = None;
        Error::Away { at: self.at.clone(), why: why.to_string() }
    }

    /// Writes a member, with its lists or only keeping those that stand there. Whether they do, and what was there before.
    async fn put(
        &self,
        key: &str,
        member: &Member,
        number: u64,
        ttl: u64,
        lists: bool,
    ) -> Result<(bool, Option<Vec<u8>>), Error> {
        let (head, said) = (Head::of(member, number).json()?, Self::lists_key(key));
        let mut all = Pipeline::new();
        all.atomic().cmd("SADD").arg(self.set()).arg(key).ignore();
        if lists {
            let json = Said::of(member, number).json(&member.name)?;
            all.cmd("SET").arg(&said).arg(json).arg("PX").arg(ttl).ignore();
        }
        all.cmd("PEXPIRE").arg(&said).arg(ttl);
        all.cmd("SET").arg(key).arg(head).arg("PX").arg(ttl).arg("GET");
        self.ask(|redis| Box::pin(async move { all.query_async(redis).await })).await
    }

    /// What stands under many keys, some at a time.
    async fn all_of(&self, keys: &[String], at_once: usize) -> Result<Vec<Option<Vec<u8>>>, Error> {
        let mut all = Vec::with_capacity(keys.len());
        for keys in keys.chunks(at_once) {
            let some = Cmd::mget(keys);
            let values: Vec<Option<Vec<u8>>> =
                self.ask(|redis| Box::pin(async move { some.query_async(redis).await })).await?;
            all.extend(values);
        }
        Ok(all)
    }

    /// Those that are there; the others are forgotten, some at a time, so that what is left over by many keeps nobody out.
    async fn without_expired(&self, keys: Vec<String>) -> Result<Vec<String>, Error> {
        let mut there = Vec::new();
        for keys in keys.chunks(HEADS_AT_ONCE) {
            let mut look = Pipeline::new();
            for key in keys {
                look.exists(key);
            }
            let found: Vec<bool> =
                self.ask(|redis| Box::pin(async move { look.query_async(redis).await })).await?;
            let (stay, gone): (Vec<_>, Vec<_>) = keys.iter().zip(found).partition(|(_, is_there)| *is_there);
            if !gone.is_empty() {
                let gone: Vec<&String> = gone.into_iter().map(|(key, _)| key).collect();
                let forget = Cmd::srem(self.set(), &gone);
                self.ask(|redis| Box::pin(async move { forget.query_async::<()>(redis).await })).await?;
            }
            there.extend(stay.into_iter().map(|(key, _)| key.clone()));
        }
        Ok(there)
    }

    /// Reads the lists that are others than those known here, some at a time, and forgets those of members that are gone. What was
    /// read is kept although the rest does not come. How many are lacking then, and why.
    async fn read_lists(&self, heads: &[(String, Head)]) -> Option<(usize, Error)> {
        let there: BTreeSet<&String> = heads.iter().map(|(key, _)| key).collect();
        let wanted: Vec<&String> = {
            let mut known = locked(&self.read);
            known.retain(|key, _| there.contains(key));
            let other = |(key, head): &&(String, Head)| {
                let known = known.get(key).map(|(instance, number, _)| (*instance, *number));
                known != Some((head.instance, head.said))
            };
            heads.iter().filter(other).map(|(key, _)| key).collect()
        };
        for (at, some) in wanted.chunks(LISTS_AT_ONCE).enumerate() {
            let said: Vec<String> = some.iter().map(|key| Self::lists_key(key)).collect();
            match self.all_of(&said, LISTS_AT_ONCE).await {
                Ok(values) => self.keep_lists(some, values),
                Err(error) => return Some((wanted.len() - at * LISTS_AT_ONCE, error)),
            }
        }
        None
    }

    fn keep_lists(&self, keys: &[&String], values: Vec<Option<Vec<u8>>>) {
        let mut known = locked(&self.read);
        for (key, value) in keys.iter().zip(values) {
            let Some(value) = value else { continue }; // expired this moment
            match serde_json::from_slice::<Said>(&value) {
                Ok(said) => {
                    known.insert((*key).clone(), (said.instance, said.number, Some(said.lists())));
                }
                Err(error) => tracing::warn!(key, %error, "what a member says of itself cannot be read"),
            }
        }
    }

    /// Listens until the connection ends, which nobody but a ping may notice. Once it stands, it was not `told` that notices do
    /// not come.
    async fn listen(&self, told: &mut bool) -> Result<(), RedisError> {
        let opened = async {
            let (mut sink, stream) = self.client.get_async_pubsub().await?.split();
            sink.subscribe(self.channel()).await?;
            Ok::<_, RedisError>((sink, stream))
        };
        let Ok(opened) = timeout(PATIENCE, opened).await else { return Ok(()) };
        let (mut sink, mut stream) = opened?;
        *told = false; // the next absence is another one
        // What was said until now was said to nobody here.
        let _ = self.notices.send(Notice::Missed);
        let mut beat = interval(CHANNEL_BEAT);
        loop {
            tokio::select! {
                message = stream.next() => {
                    let Some(message) = message else { return Ok(()) };
                    match serde_json::from_slice(message.get_payload_bytes()) {
                        Ok(notice) => drop(self.notices.send(notice)),
                        // Of another version, perhaps: something changed, whatever it was.
                        Err(_) => drop(self.notices.send(Notice::Missed)),
                    }
                }
                _ = beat.tick() => match timeout(PATIENCE, sink.ping::<redis::Value>()).await {
                    Ok(alive) => drop(alive?),
                    Err(_) => return Ok(()),
                },
            }
        }
    }
}

#[async_trait]
impl Live for RedisLive {
    async fn announce(&self, member: &Member, ttl: Duration) -> Result<Option<u64>, Error> {
        let key = self.key(member.role, &member.name);
        let ttl = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).max(1);
        let lists = Lists::of(member);
        let known = locked(&self.announced).get(&key).cloned();
        let known = known.filter(|(instance, ..)| *instance == member.instance);
        let mut number = known.as_ref().map_or(0, |(_, number, _)| *number);
        let changed = known.is_none_or(|(_, _, known)| known.as_ref() != Some(&lists));
        if changed {
            number += 1;
            locked(&self.announced).insert(key.clone(), (member.instance, number, None));
        }
        let (there, before) = self.put(&key, member, number, ttl, changed).await?;
        let before = before.and_then(|before| serde_json::from_slice::<Head>(&before).ok());
        let other = before.map(|before| before.instance).filter(|before| *before != member.instance);
        if !there || (other.is_some() && !changed) {
            // It came back and knows nothing, or forgot these alone; or another of this name spoke meanwhile, and its lists
            // stand where this one's should.
            self.put(&key, member, number, ttl, true).await?;
        }
        locked(&self.announced).insert(key, (member.instance, number, Some(lists)));
        Ok(other)
    }

    async fn withdraw(&self, role: Role, name: &str, instance: u64) -> Result<(), Error> {
        let key = self.key(role, name);
        let get = Cmd::get(&key);
        let there: Option<Vec<u8>> =
            self.ask(|redis| Box::pin(async move { get.query_async(redis).await })).await?;
        // Between this look and taking it out another may announce itself; its next heartbeat mends that.
        locked(&self.announced).remove(&key);
        let there = there.and_then(|there| serde_json::from_slice::<Head>(&there).ok());
        if there.is_none_or(|there| there.instance != instance) {
            return Ok(());
        }
        let mut both = Pipeline::new();
        both.atomic().del(&key).ignore().del(Self::lists_key(&key)).ignore().srem(self.set(), &key).ignore();
        self.ask(|redis| Box::pin(async move { both.query_async(redis).await })).await
    }

    async fn members(&self) -> Result<Vec<Member>, Error> {
        let listed = Cmd::smembers(self.set());
        let mut keys: Vec<String> =
            self.ask(|redis| Box::pin(async move { listed.query_async(redis).await })).await?;
        if keys.len() > MEMBERS {
            keys = self.without_expired(keys).await?;
        }
        if keys.len() > MEMBERS {
            return Err(Error::TooMany { count: keys.len() });
        }
        keys.sort();
        let values = self.all_of(&keys, HEADS_AT_ONCE).await?;
        let (mut heads, mut expired) = (Vec::new(), Vec::new());
        for (key, value) in keys.into_iter().zip(values) {
            match value {
                Some(value) => match serde_json::from_slice::<Head>(&value) {
                    Ok(head) => heads.push((key, head)),
                    Err(error) => tracing::warn!(key, %error, "what a member says of itself cannot be read"),
                },
                None => expired.push(key),
            }
        }
        let lacking = self.read_lists(&heads).await;
        match &lacking {
            Some((count, error)) if !self.lacking.swap(true, Ordering::AcqRel) => {
                let of = heads.len();
                tracing::warn!(count, of, %error, "what some members have could not be read; what was known of it stands");
            }
            Some(_) => {}
            None => self.lacking.store(false, Ordering::Release),
        }
        let mut members: Vec<Member> = {
            let known = locked(&self.read);
            // Lists that are older than their head will do until the next look. One without any is about to tell them: it is not
            // there yet, rather than there and without all that it has.
            let whole = |(key, head): (String, Head)| match known.get(&key) {
                Some((instance, number, Some(lists))) if *instance == head.instance => {
                    // Beside lists from before it, how late it is would make what was asked look older than it is.
                    let of_now = *number >= head.said;
                    let member = lists.fill(head.bare());
                    Some(Member { up: member.up.filter(|_| of_now), ..member })
                }
                Some(_) | None => None,
            };
            heads.into_iter().filter_map(whole).collect()
        };
        if !expired.is_empty() && lacking.is_none() {
            let forget = Cmd::srem(self.set(), &expired);
            self.ask(|redis| Box::pin(async move { forget.query_async::<()>(redis).await })).await?;
        }
        members.sort_by(|a: &Member, b| (a.role, &a.name).cmp(&(b.role, &b.name)));
        Ok(members)
    }

    async fn publish(&self, notice: Notice) -> Result<(), Error> {
        let json = serde_json::to_string(&notice).expect("a notice is plain data; this is a bug");
        let publish = Cmd::publish(self.channel(), json);
        self.ask(|redis| Box::pin(async move { publish.query_async::<()>(redis).await })).await
    }

    async fn remember(&self, name: &str, value: &[u8], ttl: Duration) -> Result<(), Error> {
        let ttl = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).max(1);
        let mut set = redis::cmd("SET");
        set.arg(self.kept(name)).arg(value).arg("PX").arg(ttl);
        self.ask(|redis| Box::pin(async move { set.query_async::<()>(redis).await })).await
    }

    async fn recall(&self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        let get = Cmd::get(self.kept(name));
        self.ask(|redis| Box::pin(async move { get.query_async(redis).await })).await
    }

    fn notices(&self) -> broadcast::Receiver<Notice> {
        self.notices.subscribe()
    }

    async fn run(&self, stop: CancellationToken) {
        let mut told = false;
        let listening = async {
            loop {
                let ended = self.listen(&mut told).await;
                if !std::mem::replace(&mut told, true) {
                    let why =
                        ended.err().map_or_else(|| "it went silent".to_owned(), |error| error.to_string());
                    tracing::warn!(at = self.at, why, "notices do not come; changes are seen later");
                }
                sleep(CHANNEL_BEAT).await;
            }
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = listening => {}
        }
    }
}

fn locked(lists: &StdMutex<KnownLists>) -> MutexGuard<'_, KnownLists> {
    lists.lock().unwrap_or_else(PoisonError::into_inner)
}

/// It answered, and the answer is no; the connection is as good as before.
fn is_refusal(error: &RedisError) -> bool {
    !(error.is_io_error() || error.is_timeout() || error.is_connection_dropped())
}

fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    match rest.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}://...@{host}"),
        None => url.to_owned(),
    }
}

impl fmt::Debug for RedisLive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisLive")
            .field("at", &self.at)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_shown() {
        assert_eq!(without_password("redis://me:p@ss@host:1/2"), "redis://...@host:1/2");
        assert_eq!(without_password("redis://host:1"), "redis://host:1");
        let shown = format!("{:?}", RedisLive::new("redis://me:secret@host:1", "c"));
        assert!(!shown.contains("secret"), "{shown}");
        let Err(Error::Url { url, .. }) = RedisLive::new("http://me:secret@host", "c") else {
            panic!("no address of a Redis")
        };
        assert!(!url.contains("secret"));
    }
}
