//! How many queries of one request are open at a time, and which are asked again.
//!
//! A request that sets a bound on its latency sets it for all of its queries together: as many as may be are open, and what is late is
//! late. Else the time of each begins when its turn comes, and as many are open as are answered well within the bound that their task
//! sets; what comes too late all the same stood in nobody's way but its own request's.

use modelless_types::Micros;

/// Open at first where the request sets no bound.
const FIRST: usize = 32;
/// How often one is asked at most.
const TRIES: u8 = 5;
/// What one rests before it is asked for the second time; twice as long each time after that.
const REST: Micros = Micros::from_millis(20);

/// When a query's time begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Begins {
    /// With its request.
    WithAll,
    /// When its turn comes.
    InTurn,
    /// When its turn comes again, after a rest.
    Again(Micros),
}

/// How many are open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rows {
    open: usize,
    most: usize,
    /// What each has; `None` where the request sets a bound, which holds for all of them together.
    each: Option<Micros>,
    /// So many of those that were open when fewer were let in last have not ended for the first time.
    settling: usize,
    /// Answers since one more was let in; `None` as long as nothing took long, when each lets in one more.
    quick: Option<usize>,
}

impl Rows {
    /// Each has so long, unless that is a bound for all of them. At most so many are open at a time.
    pub fn new(each: Micros, bounded: bool, most: usize) -> Self {
        let open = if bounded { most } else { FIRST.min(most) };
        Self { open, most, each: (!bounded).then_some(each), settling: 0, quick: None }
    }

    /// How many may be open now.
    pub const fn open(&self) -> usize {
        self.open
    }

    /// When the time of the one at this place begins that is asked for so many times with this one.
    pub fn begins(&self, at: usize, tries: u8) -> Begins {
        match tries {
            0 | 1 if self.each.is_none() || at < FIRST => Begins::WithAll,
            0 | 1 => Begins::InTurn,
            more => Begins::Again(Micros(REST.0 << (more - 2).min(TRIES))),
        }
    }

    /// One was answered after so long. One more where there was half of the time left, slowly once it has been seen how many are too
    /// many; fewer where there was less than a quarter.
    pub fn answered(&mut self, total: Micros, tries: u8) {
        let Some(each) = self.each else { return };
        self.ended(tries);
        if total.0 > each.0 / 4 * 3 {
            self.fewer(self.open - (self.open / 4).max(1));
        } else if total.0 <= each.0 / 2 && self.is_enough() {
            self.open = (self.open + 1).min(self.most);
        }
    }

    /// One came too late, or found no place. Whether it is asked again.
    pub fn late(&mut self, tries: u8) -> bool {
        let again = self.each.is_some() && tries < TRIES;
        if again {
            self.ended(tries);
            self.fewer(self.open / 2);
        }
        again
    }

    /// Whether so much was quick that one more may be open.
    fn is_enough(&mut self) -> bool {
        match &mut self.quick {
            None => true,
            Some(quick) if *quick < self.open => {
                *quick += 1;
                false
            }
            Some(quick) => {
                *quick = 0;
                true
            }
        }
    }

    fn ended(&mut self, tries: u8) {
        if tries == 1 {
            self.settling = self.settling.saturating_sub(1);
        }
    }

    /// Once for all that are open.
    fn fewer(&mut self, open: usize) {
        self.quick = Some(0);
        if self.settling == 0 {
            self.settling = self.open;
            self.open = open.max(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EACH: Micros = Micros::from_millis(20);
    const QUICK: Micros = Micros::from_millis(10);
    const SLOW: Micros = Micros::from_millis(16);

    #[test]
    fn each_quick_answer_lets_in_one_more_up_to_the_most() {
        let mut rows = Rows::new(EACH, false, 40);
        assert_eq!(rows.open(), 32);
        for _ in 0..20 {
            rows.answered(QUICK, 1);
        }
        assert_eq!(rows.open(), 40);
    }

    #[test]
    fn fewer_are_let_in_once_for_all_that_are_open_and_more_only_slowly_after_that() {
        let mut rows = Rows::new(EACH, false, 256);
        for _ in 0..32 {
            assert!(rows.late(1));
        }
        assert_eq!(rows.open(), 16, "32 late ones are one reason, not 32");
        rows.answered(SLOW, 1);
        assert_eq!(rows.open(), 12, "those that began after that are another");
        for _ in 0..12 {
            rows.answered(QUICK, 1);
        }
        assert_eq!(rows.open(), 12);
        rows.answered(QUICK, 1);
        assert_eq!(rows.open(), 13);
        for _ in 0..1_000 {
            rows.answered(SLOW, 1);
        }
        assert_eq!(rows.open(), 1);
    }

    #[test]
    fn what_is_late_is_asked_a_few_times_with_longer_rests_and_never_where_the_request_sets_a_bound() {
        let mut rows = Rows::new(EACH, false, 256);
        assert_eq!((1..=TRIES).map(|tries| rows.late(tries)).filter(|again| *again).count(), 4);
        let rests = (2..=5).map(|tries| rows.begins(99, tries));
        assert!(rests.eq([20, 40, 80, 160].map(|ms| Begins::Again(Micros::from_millis(ms)))));
        assert_eq!((rows.begins(31, 1), rows.begins(32, 1)), (Begins::WithAll, Begins::InTurn));
        let mut bounded = Rows::new(EACH, true, 256);
        assert!(!bounded.late(1) && bounded.open() == 256);
        assert_eq!(bounded.begins(99, 1), Begins::WithAll);
    }
}
