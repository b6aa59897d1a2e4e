//! Machines that EC2 rents, asked for by signed requests over HTTPS.
//!
//! A machine is known by its tags: cluster, pool and name. A start first asks for the name; then for each type in each place, with
//! a token that follows from all of these, so that a request that is repeated makes one machine. Only when EC2 says that it has none
//! of a type is the next asked for; whatever leaves open whether there is a machine ends the start, and the list tells. Where two
//! have come by one name all the same, the older stays.
//!
//! It knows nothing of prices and decides nothing about how many there are. What a machine does when it has started is the script
//! beside this file.

mod api;
mod config;
mod credentials;
mod http;
mod join;
#[cfg(test)]
mod machine;
mod query;
mod sign;
mod xml;

pub use config::{Ec2Pool, Join, Secrets, Spot};
pub use join::Told;

use crate::{Error, Fleet, Instance, Wanted};
use api::{Api, Failure, Kind};
use async_trait::async_trait;
use query::{Found, Whose};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// How tags of ours begin.
const TAGS: &str = "modelless:";
const CLUSTER: &str = "modelless:cluster";
const POOL: &str = "modelless:pool";
const MACHINE: &str = "modelless:machine";
/// Parts of a list; more machines than these hold no pool has.
const PAGES: usize = 20;

/// Whose machines, and what of them.
#[derive(Clone, Debug)]
pub struct Ec2Config {
    /// The cluster, by a name that no other one of this account has.
    pub cluster: String,
    /// The pool.
    pub pool: String,
    /// What is set for it.
    pub of: Ec2Pool,
    /// What its machines are told of the cluster.
    pub told: Told,
}

/// The provider.
pub struct Ec2 {
    config: Ec2Config,
    api: Api,
}

impl Ec2 {
    /// Calls nothing yet. Keys are looked for in the environment where no file is named.
    pub fn new(config: Ec2Config) -> Result<Self, String> {
        let api = Api::new(&config.of, |name| std::env::var(name).ok())?;
        Ok(Self { config, api })
    }

    fn whose(&self) -> Whose<'_> {
        Whose { cluster: &self.config.cluster, pool: &self.config.pool }
    }

    /// All that have not ended, by name; of several by one name the one that stays first, and what it leaves over.
    async fn found(&self, name: Option<&str>) -> Result<(Vec<Instance>, Vec<Found>), Error> {
        let (mut all, mut from) = (Vec::new(), None);
        for _ in 0..PAGES {
            let answer = self.api.call(&query::describe(self.whose(), name, from.as_deref())).await;
            let (some, next) = query::described(&answer.map_err(|failure| failure.error())?);
            all.extend(some);
            from = next;
            if from.is_none() {
                return Ok(one_each(all));
            }
        }
        // Whoever takes a part for all would ask for more than may be.
        Err(Error::Away("EC2's list of machines has no end".to_owned()))
    }

    async fn terminate(&self, id: &str) -> Result<(), Error> {
        match self.api.call(&query::terminate(id)).await {
            Ok(_) => Ok(()),
            Err(failure) if failure.kind() == Kind::Absent => Ok(()),
            Err(failure) => Err(failure.error()),
        }
    }

    /// Where a request was heard and whoever sent it was killed before the next list, two may have come.
    async fn take_away(&self, over: Vec<Found>) {
        for found in over {
            tracing::warn!(
                instance = found.id,
                name = found.name,
                "a second machine by one name is taken away"
            );
            if let Err(error) = self.terminate(&found.id).await {
                tracing::warn!(instance = found.id, %error, "it could not be taken away; it is tried again");
            }
        }
    }
}

/// The oldest of each name that stays, or one that goes where none does; and those that stay beside another.
fn one_each(mut all: Vec<Found>) -> (Vec<Instance>, Vec<Found>) {
    all.sort_by(|a, b| (a.ending(), &a.launched, &a.id).cmp(&(b.ending(), &b.launched, &b.id)));
    let (mut one, mut over) = (BTreeMap::new(), Vec::new());
    for found in all {
        let Some(name) = found.name.clone() else { continue }; // not started here
        match one.entry(name) {
            Entry::Vacant(free) => {
                let (name, ending) = (free.key().clone(), found.ending());
                free.insert(Instance { id: found.id, name, ending });
            }
            Entry::Occupied(_) if found.ending() => {}
            Entry::Occupied(_) => over.push(found),
        }
    }
    (one.into_values().collect(), over)
}

/// All types in all places were refused.
fn none_left(refused: &[(String, Failure)]) -> Error {
    let all_quota = refused.iter().all(|(_, failure)| failure.kind() == Kind::Quota);
    let why: Vec<String> = refused.iter().map(|(attempt, failure)| format!("{attempt}: {failure}")).collect();
    let why = why.join("; ");
    if all_quota { Error::Quota(why) } else { Error::Capacity(why) }
}

#[async_trait]
impl Fleet for Ec2 {
    async fn start(&self, wanted: &Wanted) -> Result<Instance, Error> {
        let (there, over) = self.found(Some(&wanted.name)).await?;
        self.take_away(over).await;
        if let Some(there) = there.into_iter().next() {
            return Ok(there);
        }
        let Ec2Config { of, told, .. } = &self.config;
        let user_data = join::user_data(&of.join, told, &wanted.settings).map_err(Error::Refused)?;
        let mut refused = Vec::new();
        for attempt in of.attempts() {
            let asked = query::run(of, self.whose(), &wanted.name, attempt, &user_data);
            let failure = match self.api.call(&asked).await {
                Ok(answer) => {
                    let found = query::started(&answer).into_iter().next();
                    let found = found.ok_or_else(|| Error::Away("EC2 names no machine".to_owned()))?;
                    let (id, ending) = (found.id.clone(), found.ending());
                    tracing::info!(name = wanted.name, instance = id, %attempt, "EC2 starts a machine");
                    return Ok(Instance { id, name: wanted.name.clone(), ending });
                }
                Err(failure) => failure,
            };
            match failure.kind() {
                Kind::Capacity | Kind::Quota => {
                    tracing::info!(name = wanted.name, %attempt, %failure, "a type of machine is not to be had");
                    refused.push((attempt.to_string(), failure));
                }
                Kind::Throttled | Kind::Away | Kind::Stale | Kind::Absent | Kind::Refused => {
                    return Err(failure.error());
                }
            }
        }
        Err(none_left(&refused))
    }

    async fn list(&self) -> Result<Vec<Instance>, Error> {
        let (all, over) = self.found(None).await?;
        self.take_away(over).await;
        Ok(all)
    }

    async fn stop(&self, id: &str) -> Result<(), Error> {
        self.terminate(id).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(id: &str, name: Option<&str>, state: &str, launched: &str) -> Found {
        let (name, state) = (name.map(ToOwned::to_owned), state.to_owned());
        Found { id: id.to_owned(), name, state, launched: launched.to_owned() }
    }

    #[test]
    fn of_two_by_one_name_the_older_stays_and_what_goes_already_is_left_to_go() {
        let (all, over) = one_each(vec![
            found("i-3", Some("p-1"), "pending", "2026-01-02"),
            found("i-2", Some("p-1"), "running", "2026-01-01"),
            found("i-1", Some("p-1"), "shutting-down", "2025-01-01"),
            found("i-4", Some("p-2"), "shutting-down", "2025-01-01"),
            found("i-5", None, "running", "2025-01-01"),
        ]);
        let all: Vec<_> = all.iter().map(|of| (of.id.as_str(), of.name.as_str(), of.ending)).collect();
        assert_eq!(all, [("i-2", "p-1", false), ("i-4", "p-2", true)]);
        assert_eq!(over.iter().map(|of| of.id.as_str()).collect::<Vec<_>>(), ["i-3"]);
    }

    #[test]
    fn when_nothing_is_to_be_had_every_type_is_named_with_why() {
        let told = |code: &str| Failure::Told { status: 400, code: code.into(), message: "no".into() };
        let (none, quota) = (told("InsufficientInstanceCapacity"), told("VcpuLimitExceeded"));
        let error = none_left(&[("a".into(), none), ("b".into(), quota.clone())]);
        assert!(
            matches!(&error, Error::Capacity(why) if why.contains("a: EC2 says Insuff") && why.contains("b: EC2 says Vcpu"))
        );
        assert!(matches!(none_left(&[("b".into(), quota)]), Error::Quota(_)));
    }
}
