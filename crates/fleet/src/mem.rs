//! The fake: machines that are only names. For tests of whatever uses a provider; it holds to the same suite as the real ones.

use crate::{Error, Fleet, Instance, Wanted};
use async_trait::async_trait;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What all of its pools have, and what goes wrong next. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct MemMachines(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// By cluster and pool.
    there: BTreeMap<(String, String), Vec<Instance>>,
    last: u64,
    starts: u64,
    fails: Option<Error>,
    loses_answers: bool,
}

impl MemMachines {
    /// The provider of a pool.
    pub fn of(&self, cluster: &str, pool: &str) -> MemFleet {
        MemFleet { machines: self.clone(), place: (cluster.to_owned(), pool.to_owned()) }
    }

    /// What comes next fails so, until it is said again.
    pub fn fail(&self, with: Option<Error>) {
        self.state().fails = with;
    }

    /// Starts are done and nobody hears of it, until it is said again.
    pub fn lose_answers(&self, lost: bool) {
        self.state().loses_answers = lost;
    }

    /// A machine ends by itself.
    pub fn end(&self, name: &str) {
        self.state().there.values_mut().for_each(|all| all.retain(|known| known.name != name));
    }

    /// How many machines were really started.
    pub fn starts(&self) -> u64 {
        self.state().starts
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The provider of one pool.
#[derive(Clone, Debug)]
pub struct MemFleet {
    machines: MemMachines,
    place: (String, String),
}

#[async_trait]
impl Fleet for MemFleet {
    async fn start(&self, wanted: &Wanted) -> Result<Instance, Error> {
        let mut state = self.machines.state();
        if let Some(error) = &state.fails {
            return Err(error.clone());
        }
        state.last += 1;
        let id = format!("mem-{}", state.last);
        let there = state.there.entry(self.place.clone()).or_default();
        if let Some(known) = there.iter().find(|known| known.name == wanted.name) {
            return Ok(known.clone());
        }
        let instance = Instance { id, name: wanted.name.clone(), ending: false };
        there.push(instance.clone());
        state.starts += 1;
        if state.loses_answers { Err(Error::Away("the answer was lost".to_owned())) } else { Ok(instance) }
    }

    async fn list(&self) -> Result<Vec<Instance>, Error> {
        let state = self.machines.state();
        match &state.fails {
            Some(error) if error.is_passing() => Err(error.clone()),
            Some(_) | None => Ok(state.there.get(&self.place).cloned().unwrap_or_default()),
        }
    }

    async fn stop(&self, id: &str) -> Result<(), Error> {
        let mut state = self.machines.state();
        if let Some(error) = state.fails.clone().filter(Error::is_passing) {
            return Err(error);
        }
        state.there.entry(self.place.clone()).or_default().retain(|known| known.id != id);
        Ok(())
    }
}
