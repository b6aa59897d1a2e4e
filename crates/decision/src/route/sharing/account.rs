//! What the applications of one task have used, and who of them waits.

use super::{AHEAD_US, APART, BEHIND_US, LASTS, LATELY_US, OTHERS, Standing, Turn};
use alloc::collections::{BTreeMap, BTreeSet};
use core::cmp::Ordering;
use modelless_types::{AppId, Micros, QueryKey, Share, Time};

/// Units of [`Party::used`] in a microsecond at weight 1: a millionth of a second at the heaviest weight is still one.
const UNITS: u64 = 1_000;
const WHOLE: u64 = 1_000_000;

/// One application.
#[derive(Clone, Debug)]
struct Party {
    weight: u32,
    reserve: Option<Share>,
    /// What it may use yet of what is reserved for it, and up to which figure of [`Account::total`] that was filled.
    left: i64,
    filled: u64,
    /// What it has used for its weight: whoever has the least is next.
    used: u64,
    /// What it has used lately, in microseconds.
    lately: u64,
    waiting: BTreeSet<(Time, QueryKey)>,
    /// When it last asked.
    asked: Time,
}

/// All of one task.
#[derive(Clone, Debug, Default)]
pub(super) struct Account {
    parties: BTreeMap<AppId, Party>,
    short_until: Option<Time>,
    nodes: u64,
    /// Microseconds of devices that the task got since it is short.
    total: u64,
    /// Of all that was used lately.
    lately: u64,
    /// Where those stand who go by weight: nobody who begins to wait is further back.
    used: u64,
}

fn signed(us: u64) -> i64 {
    i64::try_from(us).unwrap_or(i64::MAX)
}

impl Party {
    /// The most that it may use ahead of what is reserved for it.
    fn most(&self, nodes: u64) -> i64 {
        let reserved = self.reserve.map_or(0, |share| u64::from(share.ppm()));
        signed(reserved.saturating_mul(AHEAD_US).saturating_mul(nodes.max(1)) / WHOLE)
    }

    /// What is left of the reserved part now that the task got so much.
    fn left(&self, total: u64, nodes: u64) -> i64 {
        let Some(share) = self.reserve else { return 0 };
        let more = u128::from(total.saturating_sub(self.filled)) * u128::from(share.ppm());
        let more = i64::try_from(more / u128::from(WHOLE)).unwrap_or(i64::MAX);
        self.left.saturating_add(more).min(self.most(nodes))
    }

    fn fill(&mut self, total: u64, nodes: u64) {
        let left = self.left(total, nodes);
        // Less than a microsecond is not given away: it is filled next time.
        if left != self.left || self.reserve.is_none() || left == self.most(nodes) {
            (self.left, self.filled) = (left, total);
        }
    }

    fn for_its_weight(&self, us: u64) -> u64 {
        us.max(1).saturating_mul(UNITS) / u64::from(self.weight.max(1))
    }

    /// How many wait for its weight, against another one with so many.
    fn crowd(&self, more: usize, other: &Self) -> Ordering {
        let own = (self.waiting.len() + more) as u64 * u64::from(other.weight);
        own.cmp(&(other.waiting.len() as u64 * u64::from(self.weight)))
    }
}

impl Account {
    /// As whom an application is counted.
    pub(super) fn party(&mut self, now: Time, app: AppId, settings: (u32, Option<Share>)) -> AppId {
        if let Some(known) = self.parties.get_mut(&app) {
            known.asked = now;
            return app;
        }
        let (weight, reserve) = settings;
        let apart = self.parties.values().filter(|party| party.reserve.is_none()).count();
        if reserve.is_none() && apart >= APART && !self.forgets() {
            self.open(now, OTHERS, (1, None));
            return OTHERS;
        }
        self.open(now, app, (weight, reserve));
        app
    }

    fn open(&mut self, now: Time, app: AppId, (weight, reserve): (u32, Option<Share>)) {
        let (total, used) = (self.total, self.used);
        let party = self.parties.entry(app).or_insert_with(|| Party {
            weight,
            reserve,
            left: 0,
            filled: total,
            used,
            lately: 0,
            waiting: BTreeSet::new(),
            asked: now,
        });
        party.asked = now;
        party.left = party.most(self.nodes);
    }

    /// Makes room for one more: of those for whom nothing waits and nothing is reserved the one that has not asked for the longest.
    fn forgets(&mut self) -> bool {
        let idle = |(app, party): &(&AppId, &Party)| {
            **app != OTHERS && party.reserve.is_none() && party.waiting.is_empty()
        };
        let oldest = self.parties.iter().filter(idle).min_by_key(|(app, party)| (party.asked, **app));
        oldest.map(|(app, _)| *app).and_then(|app| self.parties.remove(&app)).is_some()
    }

    pub(super) fn parties(&self) -> impl Iterator<Item = AppId> {
        self.parties.keys().copied()
    }

    pub(super) fn waits(&mut self, app: AppId, at: (Time, QueryKey)) {
        if let Some(party) = self.parties.get_mut(&app) {
            if party.waiting.is_empty() {
                // Nobody saves up what he did not ask for.
                party.used = party.used.max(self.used);
            }
            party.waiting.insert(at);
        }
    }

    pub(super) fn left(&mut self, app: AppId, at: (Time, QueryKey)) {
        if let Some(party) = self.parties.get_mut(&app) {
            party.waiting.remove(&at);
        }
    }

    pub(super) fn waiting(&self, app: AppId) -> usize {
        self.parties.get(&app).map_or(0, |party| party.waiting.len())
    }

    pub(super) fn nobody_waits(&mut self) {
        self.parties.values_mut().for_each(|party| party.waiting.clear());
    }

    pub(super) fn is_short(&self, now: Time) -> bool {
        self.short_until.is_some_and(|until| until > now)
    }

    pub(super) fn falls_short(&mut self, now: Time, nodes: u64) {
        if !self.is_short(now) {
            (self.total, self.lately, self.used, self.nodes) = (0, 0, 0, nodes);
            for party in self.parties.values_mut() {
                (party.left, party.filled, party.used, party.lately) = (party.most(nodes), 0, 0, 0);
            }
        }
        self.short_until = Some(now + LASTS);
    }

    pub(super) fn is_within(&self, app: AppId) -> bool {
        let party = self.parties.get(&app).filter(|party| party.reserve.is_some());
        party.is_some_and(|party| party.left(self.total, self.nodes) > 0)
    }

    pub(super) fn turn(&self, app: AppId) -> Turn {
        if self.is_within(app) {
            return Turn::default();
        }
        Turn { beyond: true, used: self.parties.get(&app).map_or(0, |party| party.used) }
    }

    pub(super) fn is_behind_others(&self, app: AppId) -> bool {
        let own = self.turn(app);
        let waits = |(other, party): &(&AppId, &Party)| **other != app && !party.waiting.is_empty();
        self.parties.iter().filter(waits).any(|(other, _)| self.turn(*other) < own)
    }

    /// Who give up their places to one more of `app`: see [`super::Sharing::give_way`].
    pub(super) fn give_way(&self, app: AppId) -> impl Iterator<Item = QueryKey> {
        let most = || {
            let own = self.parties.get(&app)?;
            let others = self.parties.iter().filter(|(other, _)| **other != app && !self.is_within(**other));
            let (_, most) = others.max_by(|(_, a), (_, b)| a.crowd(0, b))?;
            let more = self.is_within(app) || own.crowd(1, most) == Ordering::Less;
            more.then_some(most)
        };
        most().into_iter().flat_map(|most| most.waiting.iter().rev().map(|(_, key)| *key))
    }

    /// Charges what a query is expected to take. Whether that is within what is reserved for its application.
    pub(super) fn charge(&mut self, app: AppId, device: Micros) -> bool {
        let within = self.is_within(app);
        let (total, nodes) = (self.total, self.nodes);
        let Some(party) = self.parties.get_mut(&app) else { return false };
        party.fill(total, nodes);
        party.left = party.left.saturating_sub(signed(device.0)).max(-party.most(nodes));
        if !within {
            self.used = self.used.max(party.used);
        }
        let used = party.used.saturating_add(party.for_its_weight(device.0));
        // Whoever had more than his weight's part by what is reserved for him is not kept waiting for it for ever.
        party.used = used.min(self.used.saturating_add(BEHIND_US * UNITS));
        party.lately = party.lately.saturating_add(device.0);
        self.lately = self.lately.saturating_add(device.0);
        self.forget_long_ago();
        within
    }

    /// What a query took, in place of what it was charged.
    pub(super) fn took(&mut self, charged: Option<(AppId, Micros)>, device: Option<Micros>) {
        let foreseen = charged.map_or(Micros::ZERO, |(_, device)| device);
        let device = device.unwrap_or(foreseen);
        self.total = self.total.saturating_add(device.0);
        let Some((app, foreseen)) = charged else { return };
        let (total, nodes) = (self.total, self.nodes);
        let Some(party) = self.parties.get_mut(&app) else { return };
        party.fill(total, nodes);
        if device >= foreseen {
            let more = device.0 - foreseen.0;
            party.left = party.left.saturating_sub(signed(more)).max(-party.most(nodes));
            if more > 0 {
                party.used = party.used.saturating_add(party.for_its_weight(more));
            }
            party.lately = party.lately.saturating_add(more);
            self.lately = self.lately.saturating_add(more);
        } else {
            let less = foreseen.0 - device.0;
            party.left = party.left.saturating_add(signed(less)).min(party.most(nodes));
            party.used = party.used.saturating_sub(party.for_its_weight(less));
            party.lately = party.lately.saturating_sub(less);
            self.lately = self.lately.saturating_sub(less);
        }
    }

    fn forget_long_ago(&mut self) {
        if self.lately > LATELY_US.saturating_mul(self.nodes.max(1)) {
            self.parties.values_mut().for_each(|party| party.lately /= 2);
            self.lately = self.parties.values().map(|party| party.lately).sum();
        }
    }

    pub(super) fn standing(&self, app: AppId) -> Option<Standing> {
        let party = self.parties.get(&app)?;
        let asks = |(other, party): &(&AppId, &Party)| {
            **other == app || party.lately > 0 || !party.waiting.is_empty()
        };
        let weights: u64 = self.parties.iter().filter(asks).map(|(_, party)| u64::from(party.weight)).sum();
        let ppm = |part: u64, of: u64| {
            let ppm = u128::from(part) * u128::from(WHOLE) / u128::from(of.max(1));
            u32::try_from(ppm).unwrap_or(u32::MAX).min(1_000_000)
        };
        let by_weight = ppm(u64::from(party.weight), weights);
        Some(Standing {
            used_ppm: ppm(party.lately, self.lately),
            share_ppm: party.reserve.map_or(0, Share::ppm).max(by_weight),
            weight: party.weight,
            reserve: party.reserve,
            within: self.is_within(app),
        })
    }
}
