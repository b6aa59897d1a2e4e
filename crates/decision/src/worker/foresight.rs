//! How far a worker looks ahead, and which of its ideas are switched on.

use serde::{Deserialize, Serialize};

/// How far a worker looks ahead when it chooses what runs next. `docs/policies.md` tells why each is as it is; each can be switched
/// off, so that what it is worth can be measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "each switches one idea off")]
pub struct Foresight {
    /// Those who will probably come count beside those who wait.
    pub to_come: bool,
    /// Of what comes, thousandths of what came lately.
    pub margin_permille: u16,
    /// Who is answered with less than so many thousandths of its bound to spare counts a little, where variants are compared.
    pub reserve_permille: u16,
    /// The first in line gives way where that lets more of the others be in time.
    pub gives_way: bool,
    /// How many batches a lane may choose from at most, beside what is bound: one for each variant that the classes in demand need.
    pub pool: u8,
    /// Batches are taken to last the longer, where variants are compared, the more were missed lately although room had been found for all.
    pub caution: bool,
    /// Who is probably in time and not surely has to be the surer of it, the more of those came late.
    pub chances: bool,
    /// No class is answered by a variant that the device could not afford for all that is asked of it: see `level`.
    pub levels: bool,
    /// A device that is asked for more than it can do runs full batches, the cheapest first: see `pressed`.
    pub full_batches: bool,
    /// Who gathered while a model was loaded takes turns with others, where there is ample time for all: see `turns`.
    pub turns: bool,
    /// Where little is asked of a device there is no limit to how accurate answers may be, and nothing is kept in reserve: see `level`.
    pub eases: bool,
}

impl Default for Foresight {
    fn default() -> Self {
        Self {
            to_come: true,
            margin_permille: 1_250,
            reserve_permille: 200,
            gives_way: true,
            pool: 4,
            caution: true,
            chances: true,
            levels: true,
            full_batches: true,
            turns: true,
            eases: true,
        }
    }
}
