//! Offline jobs at work: inputs are taken from the store, asked as queries that only spare time is spent on, and ended there.
//!
//! Each gateway works on all jobs of the store that it may; who has an input is written there, for a short time that is lengthened
//! as long as this process lives. What it had when it died is somebody else's soon, and an input ends once, whoever ends it first.
//!
//! | file | tells |
//! |---|---|
//! | `run` | which jobs there are, and that somebody works on each |
//! | `drive` | one job: taking, asking, ending |
//! | `ends` | its ends, on their way to the store |
//! | `slow` | when a job whose inputs come to nothing tries again |
//! | `one` | one input: asked, and what its end means |
//! | `pacer` | how many inputs of a task are at nodes |
//! | `goals` | the goals of a job, as they are kept |

mod drive;
mod ends;
mod goals;
mod one;
mod pacer;
mod run;
mod slow;

pub(crate) use goals::JobGoals;
pub(crate) use run::run;

use modelless_types::TaskId;
use pacer::Pacer;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::watch;

/// What the jobs of a gateway share.
#[derive(Debug)]
pub(crate) struct Jobs {
    pacers: Mutex<BTreeMap<TaskId, Arc<Pacer>>>,
    /// A job was started or ended here.
    changed: watch::Sender<u64>,
    /// More run than this gateway works on.
    crowded: AtomicBool,
}

impl Default for Jobs {
    fn default() -> Self {
        Self { pacers: Mutex::default(), changed: watch::Sender::new(0), crowded: AtomicBool::new(false) }
    }
}

impl Jobs {
    /// Has jobs looked at now instead of soon.
    pub(crate) fn changed(&self) {
        self.changed.send_modify(|times| *times += 1);
    }

    fn crowded(&self, crowded: bool) {
        self.crowded.store(crowded, Ordering::Relaxed);
    }

    /// Whether jobs wait for others to end.
    fn is_crowded(&self) -> bool {
        self.crowded.load(Ordering::Relaxed)
    }

    fn pacer(&self, task: TaskId) -> Arc<Pacer> {
        let mut pacers = self.pacers.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(pacers.entry(task).or_default())
    }
}
