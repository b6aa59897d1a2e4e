//! How the applications of a task share what its devices do, while more is asked than can be answered in time.
//!
//! What is shared is the devices' time that the task gets, not queries. An application may have a part reserved: while it has used less
//! than that of what the task got, it goes first. The others, and what it asks beyond, go by weight: whoever has used the least
//! for his weight is next. It only says who is next; nobody is refused for what he used while a device is free, so what one leaves
//! the others have.
//!
//! A task is short from when somebody was refused for want of time or room until nobody has been for a while. Before and after that
//! nothing is counted and the earliest deadline goes first, as if nobody had a share.

mod account;

use crate::query::Query;
use account::Account;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use modelless_types::{AppId, Micros, QueryKey, Share, TaskId, Time};
use serde::{Deserialize, Serialize};

/// So long after the last refusal a task is short.
const LASTS: Micros = Micros::from_secs(2);
/// Applications of a task that are told apart, besides those with a reserved part; all others are one.
const APART: usize = 256;
/// Those who are not told apart. No application has this number.
const OTHERS: AppId = AppId(0);
/// Tasks whose applications are told apart.
const TASKS: usize = 1_024;
/// What is reserved may be used ahead by so much, for each node that there is: a second of the reserved part.
const AHEAD_US: u64 = 1_000_000;
/// What was used longer ago than so much was used for each node counts half.
const LATELY_US: u64 = 10_000_000;
/// What was reserved and used may put an application back among those beyond their part by no more than this.
const BEHIND_US: u64 = 10_000_000;
/// So many of an application wait before all priorities at most.
const FIRST_MOST: usize = 64;
/// Heaviest weight.
const HEAVIEST: u32 = 1_000;

/// What somebody said of an application: for one task, or for all of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Said {
    /// To this task; `None` is every one for which nothing nearer is said.
    pub task: Option<TaskId>,
    /// Whose queries.
    pub app: AppId,
    /// Its weight, 1 to 1,000.
    pub weight: Option<u32>,
    /// What is reserved for it.
    pub reserve: Option<Share>,
}

/// Where a waiting query stands among those of its task: the lowest goes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) struct Turn {
    /// Beyond what is reserved for its application.
    beyond: bool,
    /// What the application has used for its weight.
    used: u64,
}

/// What a query was charged when it was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Charged {
    app: AppId,
    device: Micros,
    /// Within what is reserved for its application.
    pub(super) within: bool,
}

/// How an application stands while its task is short.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Standing {
    /// What it has used lately of the devices' time that the task got, in parts per million.
    pub used_ppm: u32,
    /// What it may count on, in parts per million: what is reserved for it, or by weight among those who ask, whichever is more.
    pub share_ppm: u32,
    /// Its weight.
    pub weight: u32,
    /// What is reserved for it.
    pub reserve: Option<Share>,
    /// Whether it goes first: it has used less than is reserved for it.
    pub within: bool,
}

/// What was said of an application: its weight, and what is reserved for it.
type Due = (Option<u32>, Option<Share>);

/// Of all tasks. Where nothing was said it does nothing, and costs a look at an empty map.
#[derive(Clone, Debug, Default)]
pub(super) struct Sharing {
    said: BTreeMap<(Option<TaskId>, AppId), Due>,
    tasks: BTreeMap<TaskId, Account>,
}

impl Sharing {
    /// From now on, in place of what was said before. What was used is forgotten.
    pub(super) fn say(&mut self, said: &[Said]) {
        let one = |said: &Said| {
            let weight = said.weight.map(|weight| weight.clamp(1, HEAVIEST));
            ((said.task, said.app), (weight, said.reserve))
        };
        self.said = said.iter().map(one).collect();
        self.tasks.clear();
    }

    /// Tasks that are gone need no account.
    pub(super) fn keep(&mut self, there: impl Fn(TaskId) -> bool) {
        self.tasks.retain(|task, _| there(*task));
    }

    /// Weight and reserved part of an application, the nearest that was said of each.
    fn settings(&self, task: TaskId, app: AppId) -> (u32, Option<Share>) {
        let of = |task| self.said.get(&(task, app)).copied().unwrap_or_default();
        let ((weight, reserve), (usual, usually)) = (of(Some(task)), of(None));
        (weight.or(usual).unwrap_or(1), reserve.or(usually))
    }

    /// Whether anything was said that concerns a task.
    fn concerns(&self, task: TaskId) -> bool {
        let first = |task: Option<TaskId>| {
            self.said.range((task, AppId(0))..).next().is_some_and(|((of, _), _)| *of == task)
        };
        first(None) || first(Some(task))
    }

    /// As whom a query's application is counted; `None` where nobody shares.
    pub(super) fn party(&mut self, now: Time, query: &Query) -> Option<AppId> {
        if self.said.is_empty() {
            return None;
        }
        let (task, app) = (query.class.task, query.app);
        if query.priority.is_spare() || !self.concerns(task) {
            return None;
        }
        let settings = self.settings(task, app);
        if !self.tasks.contains_key(&task) && self.tasks.len() >= TASKS {
            return None;
        }
        Some(self.tasks.entry(task).or_default().party(now, app, settings))
    }

    fn account(&self, task: TaskId, party: Option<AppId>) -> Option<(&Account, AppId)> {
        Some((self.tasks.get(&task)?, party?))
    }

    fn account_mut(&mut self, task: TaskId, party: Option<AppId>) -> Option<(&mut Account, AppId)> {
        Some((self.tasks.get_mut(&task)?, party?))
    }

    /// A query stands in line now.
    pub(super) fn waits(&mut self, query: &Query, party: Option<AppId>) {
        if let Some((account, party)) = self.account_mut(query.class.task, party) {
            account.waits(party, (query.deadline, query.key));
        }
    }

    /// It does no longer.
    pub(super) fn left(&mut self, query: &Query, party: Option<AppId>) {
        if let Some((account, party)) = self.account_mut(query.class.task, party) {
            account.left(party, (query.deadline, query.key));
        }
    }

    /// Nobody stands in line.
    pub(super) fn nobody_waits(&mut self) {
        self.tasks.values_mut().for_each(Account::nobody_waits);
    }

    /// Whether queries of a task go by what their applications have used.
    pub(super) fn is_short(&self, now: Time, task: TaskId) -> bool {
        !self.tasks.is_empty() && self.tasks.get(&task).is_some_and(|account| account.is_short(now))
    }

    /// Whose turn it is, as long as the task is short; else all are alike.
    pub(super) fn turn(&self, now: Time, task: TaskId, party: Option<AppId>) -> Turn {
        let known = self.account(task, party).filter(|(account, _)| account.is_short(now));
        known.map_or(Turn::default(), |(account, party)| account.turn(party))
    }

    /// Whether somebody waits of an application whose turn is before this one's.
    pub(super) fn is_behind_others(&self, task: TaskId, party: Option<AppId>) -> bool {
        self.account(task, party).is_some_and(|(account, party)| account.is_behind_others(party))
    }

    /// Whether one more of an application is before all priorities among those who wait: not all are answered in time, it has used less than is
    /// reserved for it, and not too many of it wait so.
    pub(super) fn waits_first(&self, now: Time, task: TaskId, party: Option<AppId>) -> bool {
        let known = self.account(task, party).filter(|(account, _)| account.is_short(now));
        known.is_some_and(|(account, party)| account.is_within(party) && account.waiting(party) < FIRST_MOST)
    }

    /// Somebody was refused for want of time or room.
    pub(super) fn falls_short(&mut self, now: Time, task: TaskId, nodes: usize) {
        if let Some(account) = self.tasks.get_mut(&task) {
            account.falls_short(now, u64::try_from(nodes).unwrap_or(u64::MAX));
        }
    }

    /// Who wait and are to give way, one after the other, so that one more of another application can wait: the last to be due of the one with the most for its
    /// weight, if that one has more for its weight than the other then would have.
    pub(super) fn give_way(&self, query: &Query, party: Option<AppId>) -> impl Iterator<Item = QueryKey> {
        let known = self.account(query.class.task, party);
        known.into_iter().flat_map(|(account, party)| account.give_way(party))
    }

    /// A query is sent that is expected to take so much of a device.
    pub(super) fn sent(&mut self, now: Time, query: &Query, device: Micros) -> Option<Charged> {
        if !self.is_short(now, query.class.task) {
            return None;
        }
        let app = self.party(now, query)?;
        let within = self.tasks.get_mut(&query.class.task)?.charge(app, device);
        Some(Charged { app, device, within })
    }

    /// A query that was charged, or none, took so much of a device; `None` where nothing tells.
    pub(super) fn took(&mut self, now: Time, task: TaskId, charged: Option<Charged>, device: Option<Micros>) {
        if let Some(account) = self.tasks.get_mut(&task)
            && account.is_short(now)
        {
            account.took(charged.map(|charged| (charged.app, charged.device)), device);
        }
    }

    /// How an application stands, as long as the task is short.
    pub(super) fn standing_of(&self, now: Time, task: TaskId, app: AppId) -> Option<Standing> {
        let account = self.tasks.get(&task).filter(|account| account.is_short(now))?;
        account.standing(app) // what others together used, who are not told apart, is none of its own
    }

    /// The same of all applications of tasks that are short; those who are not told apart have number 0.
    pub(super) fn standings(&self, now: Time) -> Vec<(TaskId, AppId, Standing)> {
        let short = self.tasks.iter().filter(|(_, account)| account.is_short(now));
        let of = |(task, account): (&TaskId, &Account)| {
            let stands = |app: AppId| Some((*task, app, account.standing(app)?));
            account.parties().filter_map(stands).collect::<Vec<_>>()
        };
        short.flat_map(of).collect()
    }
}
