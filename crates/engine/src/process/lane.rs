//! The executor's side of a lane: what is in flight, in order, and who is told when it is done.

use super::behind;
use super::lock;
use super::spawn;
use crate::clock;
use crate::prompt::{StoodBack, take_short_turns};
use crate::ring::{self, Answer, Reply, Request, Ring};
use crate::seam::{BatchError, BatchResult, Done};
use crate::slot::{BatchSlot, Gate, Outputs, SLOTS_PER_LANE};
use modelless_types::{Bytes, VariantId};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Far more than the lanes and pools of any model. Each costs the kernel memory that is not counted as the runner's.
const MOST_THREADS: u64 = 2_048;

/// In such parts the kernel counts processor time in `/proc`, whatever it counts in itself: a part of its interface.
const TICK_MS: u64 = 10;

/// What a process takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Usage {
    /// Memory that it touched.
    resident: Bytes,
    /// The most of it that there has been.
    peak: Bytes,
    /// The part of it that is its own, and goes with it.
    private: Bytes,
    /// Memory that no file is behind and others may have as well: the slots of its variants.
    shared: Bytes,
    threads: u64,
}

impl Usage {
    /// Of a process that is there.
    pub(super) fn of(pid: u32) -> Option<Self> {
        std::fs::read_to_string(format!("/proc/{pid}/status")).ok().map(|status| Self::parse(&status))
    }

    fn parse(status: &str) -> Self {
        let number = |name| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        let kib = |name| Bytes(number(name).unwrap_or(0) << 10);
        let threads = number("Threads:").unwrap_or(0);
        Self {
            resident: kib("VmRSS:"),
            peak: kib("VmHWM:"),
            private: kib("RssAnon:"),
            shared: kib("RssShmem:"),
            threads,
        }
    }
}

/// What a process took of processors, as its `stat` tells: in user space and for it in the kernel.
fn ticks(stat: &str) -> Option<u64> {
    // The name may hold anything, so it is counted from its end: `state` is the first field after it.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ').skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    Some(ticks()? + ticks()?)
}

/// A runner, as its lanes and the watch know it.
#[derive(Debug, Default)]
pub(super) struct Runner {
    process: Mutex<Option<(u32, Arc<OwnedFd>)>>,
    /// Why it was killed, if it was.
    killed: Mutex<Option<String>>,
    /// Private memory that it may hold; 0 for no limit.
    allowed: AtomicU64,
    pub(super) lanes: Mutex<Vec<Arc<Lane>>>,
}

impl Runner {
    pub(super) fn started(&self, pid: u32, pidfd: Arc<OwnedFd>) {
        *lock(&self.process) = Some((pid, pidfd));
        if let Some(why) = self.why_killed() {
            self.kill(&why);
        }
    }

    pub(super) fn pid(&self) -> Option<u32> {
        lock(&self.process).as_ref().map(|(pid, _)| *pid)
    }

    /// Kills it; the first reason is kept.
    pub(super) fn kill(&self, why: &str) {
        lock(&self.killed).get_or_insert_with(|| why.to_owned());
        if let Some((_, pidfd)) = &*lock(&self.process) {
            spawn::kill(pidfd);
        }
    }

    pub(super) fn why_killed(&self) -> Option<String> {
        lock(&self.killed).clone()
    }

    /// Memory that it holds now; none if it is gone.
    pub(super) fn memory(&self) -> Bytes {
        self.pid().and_then(Usage::of).unwrap_or_default().resident
    }

    /// The part of it that comes back when it ends: all but what is in memory because of files, such as the library.
    pub(super) fn held(&self) -> Bytes {
        let usage = self.pid().and_then(Usage::of).unwrap_or_default();
        usage.private + usage.shared
    }

    /// The most that it has held.
    pub(super) fn peak(&self) -> Option<Bytes> {
        self.pid().and_then(Usage::of).map(|usage| usage.peak)
    }

    /// Processor time that it has taken, with all of its threads.
    pub(super) fn processor_time(&self) -> Option<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()?)).ok()?;
        ticks(&stat).map(|ticks| Duration::from_millis(ticks.saturating_mul(TICK_MS)))
    }

    /// How much private memory it may hold from now on.
    pub(super) fn allow(&self, memory: Option<Bytes>) {
        self.allowed.store(memory.map_or(0, |bytes| bytes.0), Ordering::Relaxed);
    }

    /// Kills it if it holds more than it may.
    pub(super) fn watch_usage(&self) {
        let Some(usage) = self.pid().and_then(Usage::of) else { return };
        let allowed = Bytes(self.allowed.load(Ordering::Relaxed));
        if allowed.0 != 0 && usage.private > allowed {
            self.kill(&format!("it held {} of memory, more than the {allowed} that it may", usage.private));
        } else if usage.threads > MOST_THREADS {
            self.kill(&format!("it had {} threads, more than the {MOST_THREADS} that it may", usage.threads));
        }
    }
}

/// One lane of a runner.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) gate: Arc<Gate>,
    ring: Ring,
    runner: Arc<Runner>,
    /// Of its runner's lanes, from 0.
    number: u16,
    queue: Mutex<Queue>,
    closed: Condvar,
    /// Somebody watches the lane.
    helped: AtomicBool,
}

#[derive(Debug, Default)]
struct Queue {
    /// The number of the next request.
    next: u32,
    /// The number of the next reply.
    done: u32,
    in_flight: VecDeque<InFlight>,
    /// The number of the request that ran over its limit.
    hung: Option<u32>,
    /// Why nothing more is taken.
    closed: Option<String>,
    /// The batch that what runs it stands back for, and its threads.
    stands_back: Option<(u32, Vec<StoodBack>)>,
    /// It was somebody else who killed the runner.
    outside: bool,
}

struct InFlight {
    number: u32,
    slot: BatchSlot,
    rows: u32,
    limit: Duration,
    /// Since when it is the head of the lane.
    since: Instant,
    done: Done,
}

impl std::fmt::Debug for InFlight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InFlight")
            .field("number", &self.number)
            .field("slot", &self.slot)
            .finish_non_exhaustive()
    }
}

impl Lane {
    /// A lane, and what the runner needs to serve it.
    pub(super) fn create(runner: &Arc<Runner>, number: u16) -> std::io::Result<(Arc<Self>, OwnedFd)> {
        let (fd, ring) = Ring::create()?;
        let (gate, queue, closed) = (Arc::default(), Mutex::default(), Condvar::new());
        Ok((
            Arc::new(Self {
                gate,
                ring,
                runner: Arc::clone(runner),
                number,
                queue,
                closed,
                helped: AtomicBool::new(false),
            }),
            fd,
        ))
    }

    /// Sends a batch of `rows` rows (padding included) on its way, or gives `done` back with the reason.
    pub(super) fn submit(
        &self,
        slot: BatchSlot,
        rows: u32,
        limit: Duration,
        done: Done,
    ) -> Result<(), (Done, String)> {
        let parts = slot.parts.filled_up(rows);
        let request = Request { variant: slot.variant.0, slot: slot.index().into(), parts };
        let mut queue = lock(&self.queue);
        if let Some(why) = &queue.closed {
            return Err((done, why.clone()));
        }
        let number = queue.next;
        queue.next = ring::next(number);
        let since = clock::now();
        queue.in_flight.push_back(InFlight { number, slot, rows, limit, since, done });
        self.ring.send(number, request);
        Ok(())
    }

    /// Nobody waits for a batch any longer. It is run all the same if it has begun, or ended if it is not here any more.
    pub(super) fn revoke(&self, ticket: u64) {
        let queue = lock(&self.queue);
        // Under the lock its place is its own: another request gets it only when this one was taken out.
        if let Some(batch) = queue.in_flight.iter().find(|batch| batch.slot.ticket() == ticket) {
            self.ring.revoke(batch.number);
        }
    }

    /// Until it ends, what runs the batch at the head of the lane stands back, if it is that one.
    pub(super) fn stand_back(&self, ticket: u64) {
        let mut queue = lock(&self.queue);
        let Some(head) = queue.in_flight.front().filter(|head| head.slot.ticket() == ticket) else { return };
        let number = head.number;
        if queue.stands_back.is_none()
            && let Some(pid) = self.runner.pid()
        {
            // Under the lock: whatever ends it comes afterwards, and takes it back.
            queue.stands_back = Some((number, behind::stand_back(pid, self.number)));
        }
    }

    /// A thread that is killed has to run once more to end, and one that stands back comes to that late on a busy machine: while
    /// its model answers nobody. So where the runner is on its way out, whoever killed it, they come forward.
    pub(super) fn let_out(&self) {
        let mut queue = lock(&self.queue);
        let ending = queue.stands_back.is_some() && self.runner.pid().is_some_and(behind::is_ending);
        let stood_back = queue.stands_back.take_if(|_| ending);
        for thread in stood_back.into_iter().flat_map(|(_, threads)| threads) {
            // Of those that have ended by now there is nothing to change.
            let _ = thread.end();
        }
    }

    /// Wakes the runner for a batch to come, if it sleeps.
    pub(super) fn prime(&self) {
        if lock(&self.queue).in_flight.is_empty() {
            self.ring.prime();
        }
    }

    pub(super) fn has_in_flight(&self, variant: VariantId) -> bool {
        lock(&self.queue).in_flight.iter().any(|batch| batch.slot.variant == variant)
    }

    /// Kills the runner if the batch at the head has run over its limit. Gives how long that one has run.
    pub(super) fn watch(&self, now: Instant) -> Duration {
        let (ran, over) = {
            let mut queue = lock(&self.queue);
            let Some(head) = queue.in_flight.front() else { return Duration::ZERO };
            let ran = now.saturating_duration_since(head.since);
            if ran < head.limit {
                return ran;
            }
            let (number, limit, batch) = (head.number, head.limit, head.slot.ticket());
            if queue.hung.replace(number) != Some(number) {
                let (lane, limit_ms) = (self.number, limit.as_millis());
                tracing::warn!(batch, lane, limit_ms, "a batch hangs; its runner is killed");
            }
            (ran, limit)
        };
        self.runner.kill(&format!("a batch ran over its limit of {} ms", over.as_millis()));
        ran
    }

    /// The batches in flight, as who submitted them names them.
    pub(super) fn tickets(&self) -> Vec<u64> {
        lock(&self.queue).in_flight.iter().map(|batch| batch.slot.ticket()).collect()
    }

    /// A batch of it ran over its limit.
    pub(super) fn hung(&self) -> bool {
        lock(&self.queue).hung.is_some()
    }

    /// The runner was reaped: nothing more is taken, and the reader ends what is in flight.
    pub(super) fn close(&self, why: &str, outside: bool) {
        {
            let mut queue = lock(&self.queue);
            queue.closed = Some(why.to_owned());
            queue.outside = outside;
        }
        self.closed.notify_all();
        self.ring.gone();
    }

    /// Sleeps until batches are done and tells their owners, until the runner is gone.
    pub(super) fn read(&self) {
        take_short_turns();
        let mut seen = 0;
        loop {
            let (new, gone) = self.ring.wait(seen);
            let sane = (0..new).all(|_| {
                let done = self.finish(seen);
                seen = ring::next(seen);
                done
            });
            if !sane || gone || new == 0 {
                return self.drain();
            }
        }
    }

    /// Watches for the reply to the batch at the head for at most `limit`, giving way to whatever else wants to run,
    /// and tells its owner on this thread: one wake-up less than waiting for the reader.
    pub(super) fn help(&self, limit: Duration) {
        let head = lock(&self.queue).in_flight.front().map(|head| head.number);
        if let Some(number) = head
            && !self.helped.swap(true, Ordering::AcqRel)
        {
            self.watch_for(number, limit);
        }
    }

    /// The batch may be long done by now: this thread can have been stopped for any time since it looked.
    fn watch_for(&self, number: u32, limit: Duration) {
        self.ring.watched(true);
        let until = clock::now() + limit;
        while self.ring.awaits(number) && clock::now() < until {
            std::thread::yield_now();
        }
        self.ring.watched(false);
        self.helped.store(false, Ordering::Release);
        // Replies that came meanwhile woke nobody, to whichever batches they are: so whatever is there and not finished
        // is finished now, beginning with the first and not with the one that was watched for.
        // No more than there can be: those that come from now on wake the reader, and what comes of an answer may keep bringing others.
        let mut number = lock(&self.queue).done;
        for _ in 0..SLOTS_PER_LANE {
            if !self.ring.has(number) || !self.finish(number) {
                break;
            }
            number = ring::next(number);
        }
    }

    /// Ends the batch at the head with its reply. False if there is none, or no sense in the reply.
    fn finish(&self, number: u32) -> bool {
        let batch = {
            let mut queue = lock(&self.queue);
            if queue.done != number {
                return true; // a watcher was here before
            }
            if queue.in_flight.front().is_none_or(|head| head.number != number) {
                return false;
            }
            let Some(reply) = self.ring.take(number) else { return false };
            let stood_back = queue.stands_back.take_if(|(batch, _)| *batch == number);
            if !stood_back.into_iter().flat_map(|(_, threads)| threads).all(StoodBack::end) {
                tracing::warn!("a runner's threads may go on standing back behind everything else");
            }
            let batch = queue.in_flight.pop_front().map(|batch| (batch, reply));
            queue.done = ring::next(number);
            if let Some(head) = queue.in_flight.front_mut() {
                head.since = clock::now();
            }
            batch
        };
        if let Some((InFlight { slot, rows, done, .. }, reply)) = batch {
            tell(done, result(slot, rows, reply));
        }
        true
    }

    /// Ends everything in flight once the runner is reaped. A runner that is not yet has acknowledged what it
    /// was not given, or said itself that it is gone: nothing it says counts any more, and it is killed.
    fn drain(&self) {
        let (batches, hung, outside, why) = {
            let mut queue = lock(&self.queue);
            if queue.closed.is_none() {
                self.runner.kill("it broke the protocol of its lane");
            }
            while queue.closed.is_none() {
                queue = self.closed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
            let why = queue.closed.clone().unwrap_or_default();
            (std::mem::take(&mut queue.in_flight), queue.hung, queue.outside, why)
        };
        for (at, InFlight { number, slot, limit, done, .. }) in batches.into_iter().enumerate() {
            drop(slot);
            let error = match at {
                0 if hung == Some(number) => BatchError::Hung(limit),
                0 if outside => BatchError::Killed(why.clone()),
                0 => BatchError::Crashed(why.clone()),
                _ => BatchError::NotStarted(why.clone()),
            };
            tell(done, Err(error));
        }
    }
}

fn result(slot: BatchSlot, rows: u32, reply: Reply) -> BatchResult {
    match reply.answer {
        Answer::Ran(shapes) => match shapes.check(&slot.layout.outputs, slot.parts.filled_up(rows).last()) {
            Ok(()) => Ok(Outputs::new(slot, reply.run_us)),
            Err(why) => Err(BatchError::Shape(why)),
        },
        Answer::Failed(why) => Err(BatchError::Model(why)),
        Answer::Misshapen(why) => Err(BatchError::Shape(why)),
        Answer::Unreachable(why) => Err(BatchError::Unreachable(why)),
        Answer::Revoked => Err(BatchError::Revoked),
    }
}

/// A callback that panics must not take the lane's reader with it.
fn tell(done: Done, result: BatchResult) {
    if std::panic::catch_unwind(AssertUnwindSafe(|| done(result))).is_err() {
        tracing::error!("what was called at the end of a batch panicked; this is a bug");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::Mapping;
    use crate::slot::Layout;
    use modelless_types::{DType, TensorSpec};
    use std::sync::mpsc::{Receiver, sync_channel};
    use std::thread;

    #[test]
    fn usage_is_read_from_what_the_kernel_says() {
        let status = "Name:\tx\nVmHWM:\t    4096 kB\nVmRSS:\t    2048 kB\nRssAnon:\t    1024 kB\nRssFile:\t 1024 kB\nThreads:\t3\n";
        let (peak, resident, private) = (Bytes::from_mib(4), Bytes::from_mib(2), Bytes::from_mib(1));
        let usage = Usage { resident, peak, private, shared: Bytes(0), threads: 3 };
        assert_eq!(Usage::parse(status), usage);
        let own = Usage::of(std::process::id()).unwrap();
        assert!(own.private.0 > 0 && own.private <= own.resident && own.threads > 0, "{own:?}");
    }

    #[test]
    fn processor_time_is_read_whatever_a_process_is_called() {
        let stat = "7 (a) S (b) S 1 7 7 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 1 0 100 0 0";
        assert_eq!(ticks(stat), Some(300));
        assert_eq!(ticks("7 (a) S 1"), None);
        assert!(ticks(&std::fs::read_to_string("/proc/self/stat").unwrap()).is_some());
    }

    /// As long as anything here may take before it counts as lost.
    const LOST: Duration = Duration::from_secs(10);

    /// A lane with a runner that answers `batches` of them, its reader, and what is told of their ends.
    fn lane(batches: u32, check: impl FnOnce(&Lane, &dyn Fn(), &Receiver<()>) -> bool) -> bool {
        let (lane, fd) = Lane::create(&Arc::default(), 0).unwrap();
        let runner = Ring::open(fd).unwrap();
        let tensor = TensorSpec { name: "x".to_owned(), dtype: DType::Fp32, shape: vec![1] };
        let layout =
            Layout::new(std::slice::from_ref(&tensor), std::slice::from_ref(&tensor), 1, Bytes(0), 1 << 20);
        let layout = Arc::new(layout.unwrap());
        let arena = Arc::new(Mapping::private(layout.arena_bytes()).unwrap());
        thread::scope(|scope| {
            scope.spawn(|| lane.read());
            scope.spawn(|| {
                for number in 0..batches {
                    runner.receive(number).expect("a request");
                    runner.reply(
                        number,
                        &Reply { run_us: 1, answer: Answer::Failed("as it was told".to_owned()) },
                    );
                }
            });
            let (sender, done) = sync_channel(2);
            let submit = || {
                let slot = BatchSlot::new((VariantId(1), 1), 0, 1, &layout, &arena, &lane.gate).unwrap();
                let sender = sender.clone();
                let tell = Box::new(move |_| {
                    let _ = sender.send(());
                });
                assert!(lane.submit(slot, 1, LOST, tell).is_ok());
            };
            let passed = check(&lane, &submit, &done);
            lane.close("the test is over", false);
            passed
        })
    }

    #[test]
    fn a_reply_that_comes_while_somebody_still_watches_for_one_long_past_is_told() {
        let check = |lane: &Lane, submit: &dyn Fn(), done: &Receiver<()>| {
            for _ in 0..3 {
                submit();
                if done.recv_timeout(LOST).is_err() {
                    return false;
                }
            }
            thread::scope(|scope| {
                // Looked at the head when that was the first batch, and was stopped until now.
                lane.helped.store(true, Ordering::Release);
                let watcher = scope.spawn(|| lane.watch_for(0, Duration::from_millis(500)));
                while lane.helped.load(Ordering::Acquire) && !watcher.is_finished() && !lane.ring.is_watched()
                {
                    thread::yield_now();
                }
                submit();
                watcher.join().expect("it does not panic");
            });
            done.recv_timeout(LOST).is_ok()
        };
        assert!(lane(4, check), "it was replied to, and nobody was told");
    }
}
