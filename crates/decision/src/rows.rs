//! How many queries of one request are open at a time, and which are asked again.
//!
//! A request that sets a bound on its latency sets it for all of its queries together: as many as may be are open, and what is late is
//! late. Else the time of each begins when its turn comes, and as many are open as are answered well within the bound that their task
//! sets; what comes too late all the same stood in nobody's way but its own request's.

use modelless_types::Micros;

/// Open at first where the request sets no bound.
const FIRST: usize = 32;
/// How often one is asked at most: until only one is left open, which eight halvings lead to, and twice more.
const TRIES: u8 = 10;
/// What one rests before it is asked for the second time; twice as long each time after that, up to 32 times.
const REST: Micros = Micros::from_millis(20);
const DOUBLINGS_MAX: u8 = 5;

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

/// Between two times that fewer were let in. How those fare that began in an earlier one says nothing of how many may be open now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Era(u32);

/// How many are open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rows {
    open: usize,
    most: usize,
    /// What each has; `None` where the request sets a bound, which holds for all of them together.
    each: Option<Micros>,
    /// How often fewer were let in.
    era: Era,
    /// Answers since one more was let in; `None` as long as nothing took long, when each lets in one more.
    quick: Option<usize>,
}

impl Rows {
    /// Each has so long, unless that is a bound for all of them. At most so many are open at a time.
    pub fn new(each: Micros, bounded: bool, most: usize) -> Self {
        let open = if bounded { most } else { FIRST.min(most) };
        Self { open, most, each: (!bounded).then_some(each), era: Era(0), quick: None }
    }

    /// How many may be open now.
    pub const fn open(&self) -> usize {
        self.open
    }

    /// In which one begins that is asked now.
    pub const fn era(&self) -> Era {
        self.era
    }

    /// When the time of the one at this place begins that is asked for so many times with this one.
    pub fn begins(&self, at: usize, tries: u8) -> Begins {
        match tries {
            0 | 1 if self.each.is_none() || at < FIRST => Begins::WithAll,
            0 | 1 => Begins::InTurn,
            more => Begins::Again(Micros(REST.0 << (more - 2).min(DOUBLINGS_MAX))),
        }
    }

    /// One that began in this era was answered after so long. One more where there was half of the time left, slowly once it has been
    /// seen how many are too many; fewer where there was less than a quarter.
    pub fn answered(&mut self, total: Micros, began: Era) {
        let Some(each) = self.each else { return };
        if total.0 > each.0 / 4 * 3 {
            self.fewer(self.open - (self.open / 4).max(1), began);
        } else if total.0 <= each.0 / 2 && self.is_enough() {
            self.open = (self.open + 1).min(self.most);
        }
    }

    /// One that was asked so many times, last in this era, came too late or found no place. Whether it is asked again.
    pub fn late(&mut self, tries: u8, began: Era) -> bool {
        let again = self.each.is_some() && tries < TRIES;
        if again {
            self.fewer(self.open / 2, began);
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

    /// Once for all that were open.
    fn fewer(&mut self, open: usize, began: Era) {
        self.quick = Some(0);
        if began == self.era {
            self.era.0 = self.era.0.wrapping_add(1);
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
            rows.answered(QUICK, rows.era());
        }
        assert_eq!(rows.open(), 40);
    }

    #[test]
    fn fewer_are_let_in_once_for_all_that_are_open_and_more_only_slowly_after_that() {
        let mut rows = Rows::new(EACH, false, 256);
        let first = rows.era();
        for tries in (1..TRIES).cycle().take(32) {
            assert!(rows.late(tries, first));
        }
        assert_eq!(rows.open(), 16, "32 late ones are one reason, not 32");
        rows.answered(SLOW, first);
        assert_eq!(rows.open(), 16, "and so is a slow one of theirs");
        rows.answered(SLOW, rows.era());
        assert_eq!(rows.open(), 12, "those that began after that are another");
        for _ in 0..12 {
            rows.answered(QUICK, rows.era());
        }
        assert_eq!(rows.open(), 12);
        rows.answered(QUICK, rows.era());
        assert_eq!(rows.open(), 13);
        for _ in 0..1_000 {
            rows.answered(SLOW, rows.era());
        }
        assert_eq!(rows.open(), 1);
    }

    #[test]
    fn what_is_late_again_lets_in_fewer_again() {
        let mut rows = Rows::new(EACH, false, 256);
        let open = (1..TRIES).map(|tries| {
            assert!(rows.late(tries, rows.era()));
            rows.open()
        });
        assert!(open.eq([16, 8, 4, 2, 1, 1, 1, 1, 1]));
    }

    #[test]
    fn what_is_late_is_asked_some_times_with_longer_rests_and_never_where_the_request_sets_a_bound() {
        let mut rows = Rows::new(EACH, false, 256);
        assert_eq!((1..=TRIES).map(|tries| rows.late(tries, rows.era())).filter(|again| *again).count(), 9);
        let rests = (2..=TRIES).map(|tries| rows.begins(99, tries));
        let expected = [20, 40, 80, 160, 320, 640, 640, 640, 640];
        assert!(rests.eq(expected.map(|ms| Begins::Again(Micros::from_millis(ms)))));
        assert_eq!((rows.begins(31, 1), rows.begins(32, 1)), (Begins::WithAll, Begins::InTurn));
        let mut bounded = Rows::new(EACH, true, 256);
        assert!(!bounded.late(1, bounded.era()) && bounded.open() == 256);
        assert_eq!(bounded.begins(99, 1), Begins::WithAll);
    }
}
