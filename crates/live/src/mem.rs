//! Live state inside one process.

use crate::head::Head;
use crate::said::Said;
use crate::{Error, Live, MEMBERS, Member, NOTICES, Notice, Role};
use async_trait::async_trait;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::broadcast;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Values that are kept at a time.
const KEPT: usize = 10_000;

type Members = BTreeMap<(Role, String), (Member, Instant)>;

/// Live state inside one process.
#[derive(Debug)]
pub struct MemLive {
    members: Mutex<Members>,
    notices: broadcast::Sender<Notice>,
    kept: Mutex<BTreeMap<String, (Vec<u8>, Instant)>>,
}

impl Default for MemLive {
    fn default() -> Self {
        Self { members: Mutex::default(), notices: broadcast::Sender::new(NOTICES), kept: Mutex::default() }
    }
}

impl MemLive {
    /// Those whose time is not over.
    fn members_now(&self) -> MutexGuard<'_, Members> {
        let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        members.retain(|_, (_, until)| *until > now);
        members
    }
}

#[async_trait]
impl Live for MemLive {
    async fn announce(&self, member: &Member, ttl: Duration) -> Result<Option<u64>, Error> {
        // The same bounds as anywhere.
        Head::of(member, 0).json()?;
        Said::of(member, 0).json(&member.name)?;
        let mut members = self.members_now();
        let until = Instant::now() + ttl;
        let before = members.insert((member.role, member.name.clone()), (member.clone(), until));
        if members.len() > MEMBERS {
            members.remove(&(member.role, member.name.clone()));
            return Err(Error::TooMany { count: MEMBERS + 1 });
        }
        Ok(before.map(|(before, _)| before.instance).filter(|before| *before != member.instance))
    }

    async fn withdraw(&self, role: Role, name: &str, instance: u64) -> Result<(), Error> {
        let mut members = self.members_now();
        let key = (role, name.to_owned());
        if members.get(&key).is_some_and(|(member, _)| member.instance == instance) {
            members.remove(&key);
        }
        Ok(())
    }

    async fn members(&self) -> Result<Vec<Member>, Error> {
        Ok(self.members_now().values().map(|(member, _)| member.clone()).collect())
    }

    async fn publish(&self, notice: Notice) -> Result<(), Error> {
        let _ = self.notices.send(notice); // nobody listens: nobody is told
        Ok(())
    }

    async fn remember(&self, name: &str, value: &[u8], ttl: Duration) -> Result<(), Error> {
        let now = Instant::now();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|_, (_, until)| *until > now);
        if kept.len() < KEPT || kept.contains_key(name) {
            kept.insert(name.to_owned(), (value.to_owned(), now + ttl));
        }
        Ok(())
    }

    async fn recall(&self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let there = kept.get(name).filter(|(_, until)| *until > Instant::now());
        Ok(there.map(|(value, _)| value.clone()))
    }

    fn notices(&self) -> broadcast::Receiver<Notice> {
        self.notices.subscribe()
    }

    async fn run(&self, stop: CancellationToken) {
        stop.cancelled().await;
    }
}
