//! One process for each node: who holds a node's name, and what becomes of a second one.
//!
//! The one that holds it says every second in the database that it is there. Whoever comes later waits to see whether it
//! does: if so, the newcomer ends with an error, and if not, the newcomer is the node. One that was stopped for so
//! long finds that out and ends. No clocks are compared, and while the database is away nobody loses anything.

use super::{BEAT, told_within};
use modelless_store::{Holder, Store};
use std::fs;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// So long a process must have said nothing before another takes its node.
const GONE_AFTER: Duration = Duration::from_secs(5);
/// What was said has an answer by then, or its connection is no good; far less than [`GONE_AFTER`].
const SAID_WITHIN: Duration = BEAT.saturating_mul(2);
/// Between looks at one that may be gone.
const LOOK: Duration = Duration::from_millis(250);

/// The node of that name, as this process.
#[derive(Clone)]
pub(super) struct Holding {
    /// A connection that gives no answer keeps its place among a store's, so another store may take over.
    store: Arc<Mutex<Arc<dyn Store>>>,
    /// Where the store is.
    database: String,
    name: String,
    instance: u64,
    place: String,
}

impl Holding {
    /// Becomes the node, unless another process is.
    pub(super) async fn take(
        store: Arc<dyn Store>,
        database: &str,
        name: &str,
        instance: u64,
    ) -> anyhow::Result<Self> {
        let (store, database) = (Arc::new(Mutex::new(store)), database.to_owned());
        let holding = Self { store, database, name: name.to_owned(), instance, place: place() };
        let before = holding.hold(None).await?;
        if before.instance == instance {
            return Ok(holding);
        }
        if !is_gone(&before.place) {
            let (name, place) = (&holding.name, for_people(&before.place));
            tracing::warn!(name, place, "another process is this node; looking whether it is still there");
            let since = Instant::now();
            while since.elapsed() < GONE_AFTER {
                sleep(LOOK).await;
                let now = holding.hold(None).await?;
                if now.instance == instance {
                    return Ok(holding); // it ended
                }
                if now != before {
                    return Err(holding.taken(&now));
                }
            }
        }
        let now = holding.hold(Some(&before)).await?;
        if now.instance == instance { Ok(holding) } else { Err(holding.taken(&now)) }
    }

    /// Says that it is there until `ended`, and gives who has taken the node meanwhile, if somebody has.
    pub(super) async fn keep(&self, ended: &CancellationToken) -> Option<Holder> {
        let mut own = false;
        let anew = async || {
            match timeout(SAID_WITHIN, modelless_store::open(&self.database)).await {
                Ok(Ok(fresh)) => {
                    let old = std::mem::replace(&mut *self.locked(), Arc::new(fresh) as Arc<dyn Store>);
                    if std::mem::replace(&mut own, true) {
                        told_within(SAID_WITHIN, old.close()).await; // nobody else uses it
                    }
                }
                Ok(Err(error)) => tracing::debug!(%error, "the database is not reached anew either"),
                Err(_) => tracing::debug!("the database is not reached anew either"),
            }
        };
        keep_saying(self.instance, ended, async || self.hold(None).await, anew).await
    }

    /// The name is free at once, unless the store takes longer than `within` to hear of it.
    pub(super) async fn release(&self, within: Duration) {
        let released = async {
            if let Err(error) = self.store().release_node(&self.name, self.instance).await {
                tracing::debug!(%error, "the node's name was not released; it is free in a few seconds");
            }
        };
        told_within(within, released).await;
    }

    pub(super) fn taken(&self, by: &Holder) -> anyhow::Error {
        anyhow::anyhow!(
            "the node `{}` is another process: {}. Two cannot be one node; end that one, or give this one a name of \
             its own with --set executor.name=NAME",
            self.name,
            for_people(&by.place)
        )
    }

    async fn hold(&self, gone: Option<&Holder>) -> modelless_store::Result<Holder> {
        self.store().hold_node(&self.name, self.instance, &self.place, gone).await
    }

    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.locked())
    }

    fn locked(&self) -> MutexGuard<'_, Arc<dyn Store>> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Says it every beat until `ended`. A database whose packets are lost gives no answer for many minutes, and meanwhile another
/// may take the node: what has none soon is said again over another connection, once `anew` has made one.
async fn keep_saying(
    instance: u64,
    ended: &CancellationToken,
    say: impl AsyncFn() -> modelless_store::Result<Holder>,
    mut anew: impl AsyncFnMut(),
) -> Option<Holder> {
    let mut beat = interval(BEAT);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let said = async {
            beat.tick().await;
            let said = timeout(SAID_WITHIN, say()).await;
            if said.is_err() {
                anew().await;
            }
            said
        };
        let said = tokio::select! {
            biased;
            () = ended.cancelled() => return None,
            said = said => said,
        };
        match said {
            Ok(Ok(holder)) if holder.instance == instance => {}
            Ok(Ok(other)) => return Some(other),
            Ok(Err(error)) => tracing::debug!(%error, "could not say that this node is there; serving on"),
            Err(_) => tracing::debug!(
                "the database does not answer; serving on, and asking over another connection"
            ),
        }
    }
}

/// Host and process for people; behind it what tells whether that process is still there, to those on the same machine.
fn place() -> String {
    let pid = std::process::id();
    format!("process {pid} on {} {}/{}", super::host_name(), machine(), started(pid).unwrap_or(0))
}

fn for_people(place: &str) -> &str {
    place.rsplit_once(' ').map_or(place, |(people, _)| people)
}

/// This boot of this machine, and what sees the same processes as this one.
fn machine() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let processes = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    format!("{}/{}", boot.trim(), processes.display())
}

/// When a process started, in ticks since boot; none if there is no such process, or only what is left of it.
fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Behind its name, which may contain anything.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    if fields.next()? == "Z" {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// Whether the process is gone for sure: it was on this machine and is not any longer.
fn is_gone(place: &str) -> bool {
    let parsed = || {
        let (people, machine) = place.rsplit_once(' ')?;
        let pid = people.strip_prefix("process ")?.split(' ').next()?.parse().ok()?;
        let (machine, start) = machine.rsplit_once('/')?;
        Some((pid, machine, start.parse::<u64>().ok()?))
    };
    parsed().is_some_and(|(pid, there, start)| there == machine() && started(pid) != Some(start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_store::MemStore;
    use std::sync::atomic::{AtomicBool, Ordering};

    async fn take(store: &Arc<MemStore>, instance: u64) -> anyhow::Result<Holding> {
        Holding::take(Arc::clone(store) as Arc<dyn Store>, "", "n", instance).await
    }

    #[test]
    fn a_process_is_known_to_be_gone_only_on_its_own_machine() {
        assert!(!is_gone(&place()), "{}", place());
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let gone = format!("process {} on h {}/1", child.id(), machine());
        child.wait().unwrap();
        assert!(is_gone(&gone));
        let reused = format!("process {} on h {}/1", std::process::id(), machine());
        assert!(is_gone(&reused), "another process has its number");
        assert!(!is_gone("process 1 on h elsewhere/pid:[1]/1"));
        assert!(!is_gone("nonsense"));
        assert_eq!(for_people(&gone), format!("process {} on h", child.id()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_process_ends_with_an_error_while_the_first_lives() {
        let store = Arc::new(MemStore::new());
        let (first, ended) = (take(&store, 1).await.unwrap(), CancellationToken::new());
        let (kept, refused) = tokio::join!(first.keep(&ended), async {
            let refused = take(&store, 2).await;
            ended.cancel();
            refused
        });
        assert_eq!(kept, None, "the first one lost nothing");
        let why = refused.err().unwrap().to_string();
        assert!(why.contains("the node `n` is another process") && why.contains("executor.name"), "{why}");
        first.release(GONE_AFTER).await;
        take(&store, 3).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_was_silent_for_long_is_followed_and_hears_of_it() {
        let store = Arc::new(MemStore::new());
        let first = take(&store, 1).await.unwrap();
        let began = Instant::now();
        let second = take(&store, 2).await.unwrap(); // the first one says nothing
        assert!(began.elapsed() >= GONE_AFTER);
        let lost = first.keep(&CancellationToken::new()).await;
        assert_eq!(lost.map(|holder| holder.instance), Some(2));
        first.release(GONE_AFTER).await;
        assert_eq!(second.hold(None).await.unwrap().instance, 2, "which changes nothing for the second");
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_never_answers_does_not_keep_a_process_from_ending() {
        let (ended, began) = (CancellationToken::new(), Instant::now());
        let hangs = keep_saying(1, &ended, async || std::future::pending().await, async || ());
        let (kept, ()) = tokio::join!(hangs, async {
            sleep(BEAT * 3).await; // by now it hangs in one of the first beats
            ended.cancel();
        });
        assert_eq!(kept, None);
        told_within(BEAT, std::future::pending()).await;
        assert_eq!(began.elapsed(), BEAT * 4);
    }

    #[tokio::test(start_paused = true)]
    async fn one_whose_connection_gives_no_answer_hears_over_another_who_has_its_node() {
        let (store, began) = (MemStore::new(), Instant::now());
        store.hold_node("n", 2, "elsewhere", None).await.unwrap();
        let fresh = AtomicBool::new(false);
        let say = async || {
            if !fresh.load(Ordering::Acquire) {
                std::future::pending::<()>().await;
            }
            store.hold_node("n", 1, "here", None).await
        };
        let anew = async || fresh.store(true, Ordering::Release);
        let lost = timeout(GONE_AFTER, keep_saying(1, &CancellationToken::new(), say, anew)).await;
        assert_eq!(lost.expect("before another may take it").map(|holder| holder.instance), Some(2));
        assert!(began.elapsed() <= BEAT * 3, "{:?}", began.elapsed());
    }
}
