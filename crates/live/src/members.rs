//! Saying that one is there, and knowing who is, through the absence of the live state.

use crate::said::{bounded, settled};
use crate::{Live, Member};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

/// Heartbeats that may be lost before a member is.
const BEATS: u32 = 4;

/// Announces a member every `beat` until `stop`, then takes it back. What `describe` gives is what it is at that moment.
pub async fn keep_announced(
    live: Arc<dyn Live>,
    mut describe: impl FnMut() -> Member + Send,
    beat: Duration,
    stop: CancellationToken,
) {
    let mut tick = interval(beat);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut away = false;
    let mut told: Option<Member> = None;
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            _ = tick.tick() => {}
        }
        let member = bounded(describe());
        let member = match &told {
            Some(told) => settled(told, member),
            None => member,
        };
        told = Some(member.clone());
        match live.announce(&member, beat * BEATS).await {
            Ok(other) => {
                if std::mem::take(&mut away) {
                    tracing::info!("the live state answers again");
                }
                if let Some(other) = other {
                    let (role, name) = (member.role.name(), &member.name);
                    tracing::warn!(
                        role,
                        name,
                        other,
                        "took over a name; if this repeats, two processes have it"
                    );
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut away, true) {
                    tracing::warn!(%error, "cannot say that we are here; serving on");
                }
            }
        }
    }
    let member = describe();
    if let Err(error) = live.withdraw(member.role, &member.name, member.instance).await {
        tracing::warn!(%error, "could not say that we leave; it shows when the last heartbeat is over");
    }
}

/// Who is known to be there. While the live state does not answer nobody leaves; when it comes back empty,
/// everybody has the time to say again that they are there.
#[derive(Debug)]
pub struct Known {
    members: BTreeMap<(crate::Role, String), (Member, Instant)>,
    grace: Duration,
}

impl Known {
    /// Nobody yet. One who is not announced for `grace` while the live state answers is gone.
    pub fn new(grace: Duration) -> Self {
        Self { members: BTreeMap::new(), grace }
    }

    /// What was read. Who is in it is there; who is not has until `grace` after the last time.
    pub fn read(&mut self, now: Instant, members: Vec<Member>) {
        for member in members {
            self.members.insert((member.role, member.name.clone()), (member, now));
        }
        let grace = self.grace;
        self.members.retain(|_, (_, seen)| now.saturating_duration_since(*seen) <= grace);
    }

    /// It did not answer: nobody's time goes on.
    pub fn away(&mut self, now: Instant) {
        for (_, seen) in self.members.values_mut() {
            *seen = now;
        }
    }

    /// Those who are there, by role and name.
    pub fn members(&self) -> Vec<Member> {
        self.members.values().map(|(member, _)| member.clone()).collect()
    }
}

/// Follows who is there, asking every `beat`, until `stop`; and whether the live state `answers`.
pub async fn follow(
    live: Arc<dyn Live>,
    beat: Duration,
    members: watch::Sender<Vec<Member>>,
    answers: watch::Sender<bool>,
    stop: CancellationToken,
) {
    let mut known = Known::new(beat * BEATS);
    let mut tick = interval(beat);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut away = false;
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            _ = tick.tick() => {}
        }
        match live.members().await {
            Ok(read) => {
                away = false;
                known.read(Instant::now(), read);
            }
            Err(error) => {
                if !std::mem::replace(&mut away, true) {
                    tracing::warn!(%error, "who else is there is not known any longer; going on with those who were");
                }
                known.away(Instant::now());
            }
        }
        let now = known.members();
        members.send_if_modified(|before| std::mem::replace(before, now.clone()) != now);
        answers.send_if_modified(|before| std::mem::replace(before, !away) == away);
    }
}
