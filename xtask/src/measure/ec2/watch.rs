//! Looks at EC2 itself and at what is written down, all the time: how many machines there are, how many of them serve, and since when
//! those that nobody knew of are known.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use modelless_testkit::{Connection, Moto, Request, wait};
use serde_json::Value;

const LOOK: Duration = Duration::from_millis(50);
/// A look takes much less.
const PATIENCE: Duration = Duration::from_mins(1);

/// What was there at a moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Look {
    /// Ids of machines that EC2 has.
    pub(super) running: BTreeSet<String>,
    /// Instance and state of each that is written down and has not ended.
    pub(super) open: Vec<(String, String)>,
}

impl Look {
    pub(super) fn now(ec2: &Moto, gateway: SocketAddr) -> Result<Self> {
        // First what is written down: a machine that comes in between is then one too many there, not one that nobody knows.
        let answer = Connection::open(gateway)?.exchange(&Request::get("/v1/machines"))?.json()?;
        let text = |machine: &Value, name: &str| machine[name].as_str().unwrap_or_default().to_owned();
        let all = answer["machines"].as_array().with_context(|| format!("no machines in {answer}"))?;
        let open = all.iter().map(|of| (text(of, "instance"), text(of, "state")));
        let open = open.filter(|(_, state)| state != "gone" && state != "failed").collect();
        let running = ec2.running()?;
        let running = running.iter().map(|one| text(one, "id")).collect();
        Ok(Self { running, open })
    }

    /// Machines that are there and have joined.
    pub(super) fn serve(&self) -> usize {
        let joined = self.open.iter().filter(|(_, state)| state == "joined");
        joined.filter(|(id, _)| self.running.contains(id)).count()
    }

    /// All that EC2 has is written down and has joined, and is so many.
    pub(super) fn are(&self, many: usize) -> bool {
        self.running.len() == many && self.open.len() == many && self.serve() == many
    }

    /// What EC2 has and nobody wrote down by its id.
    pub(super) fn orphans(&self) -> BTreeSet<String> {
        let known = |id: &String| self.open.iter().any(|(instance, _)| instance == id);
        self.running.iter().filter(|id| !known(id)).cloned().collect()
    }
}

/// How an orphan ended to be one.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Found {
    pub(super) adopted: bool,
    pub(super) after: Duration,
}

/// What was seen since [`Watch::mark`].
#[derive(Default)]
struct Seen {
    looks: u64,
    failed: u64,
    most: usize,
    least: usize,
    below: Duration,
    last: Option<Instant>,
    orphans: BTreeSet<String>,
    since: Option<Instant>,
    found: Vec<Found>,
}

/// The same, for the raw file.
#[derive(Clone, Debug)]
pub(super) struct Told {
    pub(super) looks: u64,
    /// Looks that came to nothing.
    pub(super) failed: u64,
    /// Machines at once, as EC2 has them.
    pub(super) most: usize,
    /// How long fewer than the minimum served.
    pub(super) below: Duration,
    pub(super) found: Vec<Found>,
    /// Orphans that nobody has found yet.
    pub(super) left: usize,
}

pub(super) struct Watch {
    seen: Arc<Mutex<Seen>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watch {
    pub(super) fn start(ec2: Arc<Moto>, gateway: SocketAddr, least: usize) -> Self {
        let seen = Arc::new(Mutex::new(Seen { least, ..Seen::default() }));
        let stop = Arc::new(AtomicBool::new(false));
        let (looking, until) = (Arc::clone(&seen), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            while !until.load(Ordering::Relaxed) {
                let look = Look::now(&ec2, gateway);
                lock(&looking).note(look.ok().as_ref(), Instant::now());
                thread::sleep(LOOK);
            }
        });
        Self { seen, stop, thread: Some(thread) }
    }

    /// A round begins.
    pub(super) fn mark(&self) {
        let mut seen = lock(&self.seen);
        *seen = Seen { least: seen.least, last: seen.last, ..Seen::default() };
    }

    /// Nobody who lives knows of these.
    pub(super) fn orphaned(&self, ids: BTreeSet<String>) {
        let mut seen = lock(&self.seen);
        seen.orphans = ids;
        seen.since = Some(Instant::now());
    }

    /// What was seen, with a look at how things are now.
    pub(super) fn told(&self) -> Result<Told> {
        let looks = lock(&self.seen).looks;
        // The next one may have begun before, not the one after it.
        wait::until(PATIENCE, || {
            let more = lock(&self.seen).looks - looks;
            Ok(if more > 1 { Ok(()) } else { Err(format!("{more} looks since then")) })
        })?;
        let seen = lock(&self.seen);
        Ok(Told {
            looks: seen.looks,
            failed: seen.failed,
            most: seen.most,
            below: seen.below,
            found: seen.found.clone(),
            left: seen.orphans.len(),
        })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Seen {
    fn note(&mut self, look: Option<&Look>, now: Instant) {
        self.looks += 1;
        let Some(look) = look else {
            self.failed += 1;
            return;
        };
        // Time in which no look came to anything counts as the next one that does finds it.
        let since = self.last.replace(now);
        self.most = self.most.max(look.running.len());
        if let Some(since) = since.filter(|_| look.serve() < self.least) {
            self.below += now - since;
        }
        let Some(orphaned) = self.since else { return };
        let left = look.orphans();
        let found: Vec<String> = self.orphans.difference(&left).cloned().collect();
        for id in found {
            self.orphans.remove(&id);
            self.found.push(Found { adopted: look.running.contains(&id), after: now - orphaned });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(running: &[&str], open: &[(&str, &str)]) -> Look {
        Look {
            running: running.iter().map(|id| (*id).to_owned()).collect(),
            open: open.iter().map(|(id, state)| ((*id).to_owned(), (*state).to_owned())).collect(),
        }
    }

    #[test]
    fn only_what_is_there_and_has_joined_serves_and_only_what_is_written_down_by_its_id_is_known() {
        let seen =
            look(&["a", "b", "c"], &[("a", "joined"), ("b", "starting"), ("d", "joined"), ("", "asked")]);
        assert_eq!(seen.serve(), 1);
        assert_eq!(seen.orphans(), BTreeSet::from(["c".to_owned()]));
        assert!(!seen.are(3) && look(&["a"], &[("a", "joined")]).are(1));
    }

    #[test]
    fn time_below_the_minimum_and_orphans_until_they_are_known_or_gone_are_counted() {
        let (start, s) = (Instant::now(), Duration::from_secs);
        let mut seen = Seen { least: 1, ..Seen::default() };
        seen.note(Some(&look(&["a", "b"], &[("a", "joined")])), start);
        seen.orphans = look(&["b", "c"], &[]).running;
        seen.since = Some(start);
        seen.note(Some(&look(&["b", "c"], &[("b", "starting")])), start + s(1));
        seen.note(None, start + s(2));
        seen.note(Some(&look(&["b"], &[("b", "joined")])), start + s(3));
        let found = |adopted, after| Found { adopted, after: s(after) };
        assert_eq!(seen.found, [found(true, 1), found(false, 3)]);
        assert_eq!((seen.below, seen.most, seen.looks, seen.failed), (s(1), 2, 4, 1));
        assert!(seen.orphans.is_empty());
        // What no look saw is told by the next one that did.
        seen.note(None, start + s(5));
        seen.note(Some(&look(&[], &[])), start + s(6));
        assert_eq!(seen.below, s(4));
    }
}
