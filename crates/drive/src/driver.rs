//! The driver: one machine, one lock, one timer.

use crate::clock::Clock;
use crate::record::Recorder;
use modelless_decision::Machine;
use modelless_types::Time;
use serde::Serialize;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Notify;

/// Does what a machine wants done. Called without the lock held, on whichever thread fed the machine.
pub trait Perform<A>: Send + Sync {
    /// Performs one action. Must not block.
    fn perform(&self, action: A);
}

/// Owns a machine and feeds it.
pub struct Driver<M: Machine> {
    inner: Mutex<Inner<M>>,
    clock: Clock,
    /// When the timer task will wake by itself; later wakes of the machine need no notice.
    armed: AtomicU64,
    rearm: Notify,
}

struct Inner<M: Machine> {
    machine: M,
    last: Time,
    recorder: Option<Recorder>,
}

impl<M> Driver<M>
where
    M: Machine,
    M::Event: Serialize,
    M::Action: Serialize,
{
    /// Around a machine that has seen nothing yet.
    pub fn new(machine: M, clock: Clock, recorder: Option<Recorder>) -> Self {
        let inner = Mutex::new(Inner { machine, last: Time::ZERO, recorder });
        Self { inner, clock, armed: AtomicU64::new(u64::MAX), rearm: Notify::new() }
    }

    /// The clock that stamps inputs.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Tells the machine what happened, then has its actions performed here.
    pub fn feed(&self, event: M::Event, perform: &impl Perform<M::Action>) {
        self.feed_with(|_, _| Some((event, ())), perform);
    }

    /// Makes the input from the machine's own state and the time it is stamped with, in one step with feeding it;
    /// `None` feeds nothing. Gives back what came with the input.
    pub fn feed_with<R>(
        &self,
        make: impl FnOnce(&mut M, Time) -> Option<(M::Event, R)>,
        perform: &impl Perform<M::Action>,
    ) -> Option<R> {
        let mut actions = Vec::new();
        let (wake, out) = {
            let mut inner = self.lock();
            let now = inner.stamp(&self.clock);
            let (event, out) = make(&mut inner.machine, now)?;
            inner.handle(now, event, &mut actions);
            (inner.machine.poll_timeout(), out)
        };
        self.arm(wake.map(|wake| wake.at));
        for action in actions {
            perform.perform(action);
        }
        Some(out)
    }

    /// Looks at the machine, or asks it something, at this moment. Never feeds it.
    pub fn look<R>(&self, ask: impl FnOnce(&mut M, Time) -> R) -> R {
        let mut inner = self.lock();
        let now = self.clock.now().max(inner.last);
        ask(&mut inner.machine, now)
    }

    /// Serves the machine's timer; runs until it is dropped.
    pub async fn serve_timer(&self, perform: &impl Perform<M::Action>) {
        loop {
            let wake = self.look(|machine, _| machine.poll_timeout());
            self.armed.store(wake.map_or(u64::MAX, |wake| wake.at.0), Ordering::SeqCst);
            // Between looking and arming someone may have fed an earlier wake: look once more before sleeping.
            if self.look(|machine, _| machine.poll_timeout()) != wake {
                continue;
            }
            match wake {
                None => self.rearm.notified().await,
                Some(wake) => tokio::select! {
                    biased;
                    () = self.rearm.notified() => {}
                    () = tokio::time::sleep_until(self.clock.instant(wake.at)) => self.timeout(perform),
                },
            }
        }
    }

    fn timeout(&self, perform: &impl Perform<M::Action>) {
        let mut actions = Vec::new();
        {
            let mut inner = self.lock();
            let now = inner.stamp(&self.clock);
            if inner.machine.poll_timeout().is_some_and(|wake| wake.at <= now) {
                inner.timeout(now, &mut actions);
            }
        }
        for action in actions {
            perform.perform(action);
        }
    }

    fn arm(&self, wake: Option<Time>) {
        if let Some(at) = wake
            && at.0 < self.armed.load(Ordering::SeqCst)
        {
            self.armed.store(at.0, Ordering::SeqCst);
            self.rearm.notify_one();
        }
    }

    /// A machine that panicked half-way is in no state to decide anything: rather than answer wrongly or hang, the
    /// process ends, and whoever supervises it starts a fresh one.
    fn lock(&self) -> std::sync::MutexGuard<'_, Inner<M>> {
        self.inner.lock().unwrap_or_else(|_| {
            tracing::error!("a machine panicked while it was driven; this is a bug. The process ends");
            std::process::abort()
        })
    }
}

impl<M> Inner<M>
where
    M: Machine,
    M::Event: Serialize,
    M::Action: Serialize,
{
    fn stamp(&mut self, clock: &Clock) -> Time {
        self.last = clock.now().max(Time(self.last.0 + 1));
        self.last
    }

    fn handle(&mut self, now: Time, event: M::Event, actions: &mut Vec<M::Action>) {
        let line = self.recorder.as_ref().map(|_| serde_json::to_value(&event));
        self.machine.handle(now, event);
        self.drain(actions);
        if let (Some(recorder), Some(line)) = (&mut self.recorder, line) {
            recorder.input(now, line, actions);
        }
    }

    fn timeout(&mut self, now: Time, actions: &mut Vec<M::Action>) {
        self.machine.handle_timeout(now);
        self.drain(actions);
        if let Some(recorder) = &mut self.recorder {
            recorder.timer(now, actions);
        }
    }

    fn drain(&mut self, actions: &mut Vec<M::Action>) {
        while let Some(action) = self.machine.poll_action() {
            actions.push(action);
        }
    }
}
