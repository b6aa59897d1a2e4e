//! What goes wrong in a round, in which order, and what a round does about it.

use modelless_testkit::Rng;
use serde_json::{Value, json};

/// Types of the pool, as `moto::pool` names them.
const FIRST: &str = "c5.large";
const BOTH: [&str; 2] = [FIRST, "m5.large"];

/// What goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Fault {
    /// A machine's power is cut.
    PowerCut,
    /// EC2 takes a machine back and says so.
    TakenBack,
    /// EC2 has no machine of any type.
    NoCapacity,
    /// It has none of the first type.
    FirstTypeOut,
    /// No more are allowed.
    NoQuota,
    /// It says that it is asked too often.
    Throttled,
    /// It answers with its own error.
    Failing,
    /// It does what it is asked, and nobody hears the answer.
    Unheard,
    /// It does not answer for a while, and nobody is told.
    Hangs,
    /// Nothing can connect to it for a while.
    Severed,
    /// Every answer comes late.
    Late,
    /// A machine takes long to boot.
    SlowBoot,
    /// A machine never becomes a node.
    NeverJoins,
    /// A machine ends as soon as its node is there.
    DiesYoung,
    /// `kill -9` of the scheduler at a random moment while it asks for a machine.
    Killed,
    /// The same when EC2 has started a machine and nobody heard of it.
    KilledUnheard,
    /// `kill -9`, and what was written down of machines is lost.
    Forgotten,
    /// The same, and fewer machines are wanted by whoever comes next.
    ForgottenAndFewer,
}

use Fault::{
    DiesYoung, Failing, FirstTypeOut, Forgotten, ForgottenAndFewer, Hangs, Killed, KilledUnheard, Late,
    NeverJoins, NoCapacity, NoQuota, PowerCut, Severed, SlowBoot, TakenBack, Throttled, Unheard,
};

const ALL: [Fault; 18] = [
    PowerCut,
    TakenBack,
    NoCapacity,
    FirstTypeOut,
    NoQuota,
    Throttled,
    Failing,
    Unheard,
    Hangs,
    Severed,
    Late,
    SlowBoot,
    NeverJoins,
    DiesYoung,
    Killed,
    KilledUnheard,
    Forgotten,
    ForgottenAndFewer,
];

impl Fault {
    /// Every kind once, in an order that a seed gives.
    pub(super) fn deck(rng: &mut Rng) -> Vec<Self> {
        let mut deck = ALL.to_vec();
        for last in (1..deck.len()).rev() {
            deck.swap(last, rng.below(last + 1));
        }
        deck
    }

    /// One of each family, for the short form.
    pub(super) fn few() -> Vec<Self> {
        vec![KilledUnheard, Hangs]
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            PowerCut => "power cut",
            TakenBack => "taken back",
            NoCapacity => "no capacity",
            FirstTypeOut => "first type out",
            NoQuota => "no quota",
            Throttled => "throttled",
            Failing => "failing",
            Unheard => "answers dropped",
            Hangs => "hangs",
            Severed => "no connection",
            Late => "answers late",
            SlowBoot => "slow boot",
            NeverJoins => "never joins",
            DiesYoung => "dies young",
            Killed => "scheduler killed",
            KilledUnheard => "scheduler killed, start unheard",
            Forgotten => "scheduler killed, records lost",
            ForgottenAndFewer => "scheduler killed, records lost, one fewer wanted",
        }
    }

    /// Begins with the end of a machine, so that another is needed while things go wrong.
    pub(super) fn ends_one(self) -> bool {
        !matches!(self, TakenBack | Forgotten | ForgottenAndFewer)
    }

    /// What moto is told, and what it is told when that is over.
    pub(super) fn of_moto(self) -> Option<(Value, Value)> {
        let (on, off) = match self {
            NoCapacity => (json!({"none_of": BOTH}), json!({"none_of": []})),
            FirstTypeOut => (json!({"none_of": [FIRST]}), json!({"none_of": []})),
            NoQuota => (json!({"no_quota_for": BOTH}), json!({"no_quota_for": []})),
            Throttled => (json!({"throttle": 10}), json!({"throttle": 0})),
            Failing => (json!({"fail": 10}), json!({"fail": 0})),
            Unheard => (json!({"lose": 3}), json!({"lose": 0})),
            KilledUnheard => (json!({"lose": 1_000}), json!({"lose": 0})),
            Late => (json!({"late": 2.0}), json!({"late": 0})),
            PowerCut | TakenBack | Hangs | Severed | SlowBoot | NeverJoins | DiesYoung | Killed
            | Forgotten | ForgottenAndFewer => return None,
        };
        Some((on, off))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deck_has_every_kind_once_and_a_seed_gives_its_order() {
        let (one, same, other) =
            (Fault::deck(&mut Rng::new(1)), Fault::deck(&mut Rng::new(1)), Fault::deck(&mut Rng::new(2)));
        assert_eq!(one, same);
        assert_ne!(one, other);
        let mut sorted = one;
        sorted.sort_unstable();
        assert_eq!(sorted, ALL);
        let mut names: Vec<&str> = ALL.iter().map(|fault| fault.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
    }

    #[test]
    fn what_moto_is_told_is_taken_back_by_the_same_names() {
        for fault in ALL {
            let Some((on, off)) = fault.of_moto() else { continue };
            let names = |of: &Value| of.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
            assert_eq!(names(&on), names(&off), "{fault:?}");
        }
    }
}
