//! Playing on from a choice: everything that follows is done as quickly as it can be, and who is not in time is counted.

use super::{Ahead, At, Group, MISSED, Next, People, STEPS, Table, Whom, is_fair, is_nearly, size};

pub(super) struct Play<'a> {
    pub(super) ahead: &'a Ahead,
    pub(super) people: &'a People,
    /// Who comes later does not count.
    pub(super) until: f64,
    pub(super) whom: Whom,
    /// Everything takes so many times as long.
    pub(super) scale: f64,
    pub(super) table: Table,
    pub(super) cost: u32,
    /// Whoever asks wants to know no more than that it costs so much.
    pub(super) most: u32,
}

impl Play<'_> {
    /// Whose turn it is among those who are there at a time and whom `may` names.
    fn first(&self, time: f64, may: impl Fn(usize) -> bool) -> Option<usize> {
        let mut first: Option<(usize, f64)> = None;
        for (kind, at) in self.table.at.iter().enumerate() {
            if at.is_there(time) && first.is_none_or(|(_, due)| at.next.due < due) && may(kind) {
                first = Some((kind, at.next.due));
            }
        }
        first.map(|(kind, _)| kind)
    }

    pub(super) fn head(&self, time: f64) -> Option<usize> {
        self.first(time, |_| true)
    }

    /// So many of the next group of a kind are done with.
    fn gone(&mut self, kind: usize, count: u32) {
        let at = &mut self.table.at[kind];
        at.next.count -= count;
        let waiting = at.waiting.saturating_sub(count);
        if at.next.count == 0 {
            *at = At::new(&self.people.kinds[kind], at.group + 1, self.until);
        }
        at.waiting = waiting;
    }

    pub(super) fn gives_way(&mut self, kind: usize, count: u32) {
        let count = self.table.at[kind].next.count.min(count);
        self.cost = self.cost.saturating_add(count.saturating_mul(MISSED));
        self.gone(kind, count);
    }

    fn answered(&mut self, group: &Group, count: u32, end: f64) {
        if self.whom == Whom::AndToCome && end > group.due - group.spare {
            self.cost = self.cost.saturating_add(count);
        }
    }

    /// How many of a kind are there, counted up to `most` at least.
    fn there(&self, kind: usize, most: u32, time: f64) -> u32 {
        let At { group, next, .. } = &self.table.at[kind];
        let time = time.min(self.until);
        if next.from > time {
            return 0;
        }
        let mut there = next.count;
        for group in &self.people.kinds[kind].groups[*group + 1..] {
            if there >= most || group.from > time {
                break;
            }
            there += group.count;
        }
        there
    }

    /// So many that a variant may answer go, earliest deadline first, and are answered at `end`.
    pub(super) fn take(&mut self, gear: usize, mut count: u32, time: f64, end: f64) {
        while count > 0 {
            let may = |kind: usize| self.people.kinds[kind].may[gear];
            let Some(kind) = self.first(time, may) else { return };
            let group = self.table.at[kind].next;
            let taken = group.count.min(count);
            self.answered(&group, taken, end);
            self.gone(kind, taken);
            count -= taken;
        }
    }

    /// Does everything else as quickly as it can be. What it cost in all.
    pub(super) fn ends(mut self) -> u32 {
        let mut steps = STEPS + self.table.free.len();
        while steps > 0 && self.cost < self.most {
            let lanes = 0..self.table.free.len();
            let Some(lane) = lanes.min_by(|a, b| self.table.free[*a].total_cmp(&self.table.free[*b])) else {
                break;
            };
            let time = self.table.free[lane];
            let Some(kind) = self.head(time) else {
                let groups = self.table.at.iter().filter(|at| at.next.count > 0).map(|at| at.next.from);
                let Some(next) = groups.min_by(f64::total_cmp) else { break };
                self.table.free[lane] = next;
                continue;
            };
            match self.quickly(kind, time) {
                Some((gear, count, takes)) => {
                    self.table.free[lane] += takes;
                    self.take(gear, count, time, self.table.free[lane]);
                    steps -= 1;
                }
                None => self.gives_way(kind, u32::MAX),
            }
        }
        self.rest()
    }

    /// The batch that takes the least of the device for the head of a kind, and how long it takes; none if it had better give way.
    fn quickly(&mut self, kind: usize, time: f64) -> Option<(usize, u32, f64)> {
        let At { next, waiting, .. } = self.table.at[kind];
        let (known, left) = (&self.people.kinds[kind], (next.due - time) / self.scale);
        if known.quickest > left || (waiting >= self.ahead.largest && known.least > left) {
            return None;
        }
        for kind in 0..self.table.at.len() {
            self.table.there[kind] = self.there(kind, self.ahead.largest, time);
        }
        let mut widest: Option<(f64, usize, u32, f64)> = None;
        for &at in &self.people.kinds[kind].gears {
            let gear = &self.ahead.gears[at];
            let there = gear.kinds.iter().map(|kind| self.table.there[*kind]).sum::<u32>().min(gear.best);
            let (fits, takes) = gear.fits(there, left);
            if fits == 0 {
                continue;
            }
            if is_nearly(fits, there) {
                return Some((at, fits, takes * self.scale));
            }
            let each = takes / f64::from(fits);
            if widest.is_none_or(|(known, ..)| each < known) {
                widest = Some((each, at, fits, takes));
            }
        }
        let fair = widest.filter(|(each, ..)| is_fair(*each, self.people.kinds[kind].each));
        fair.map(|(_, at, fits, takes)| (at, fits, takes * self.scale))
    }

    /// Beyond the batches that were played: as if queries were divisible.
    fn rest(self) -> u32 {
        let Self { ahead, people, table, until, whom, scale, mut cost, most } = self;
        let lanes = f64::from(size(table.free.len()).max(1));
        let mut time = table.free.iter().sum::<f64>() / lanes;
        for Next { kind, at, group, each } in &people.order {
            let stands = table.at[*kind];
            if *at < stands.group || group.from > until {
                continue;
            }
            if cost >= most {
                break;
            }
            let count = if *at == stands.group { stands.next.count } else { group.count };
            let end = time.max(group.from) + scale * each * f64::from(count) / lanes;
            if end > group.due {
                cost = cost.saturating_add(count.saturating_mul(MISSED));
                continue;
            }
            time = end;
            if whom == Whom::AndToCome && end > group.due - group.spare {
                cost = cost.saturating_add(count);
            }
        }
        ahead.spare.set(table);
        cost
    }
}
