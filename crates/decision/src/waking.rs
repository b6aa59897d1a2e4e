//! How long whoever waits for a load should be willing to wait.
//!
//! How long a load took the last times says what the next will take, more or less: the file may have left the page cache, the machine may be
//! busy, and what stands before it in the line may take longer too. A bound that is told to a client must hold, so it leaves time for that.

use crate::estimate::Moments;
use modelless_types::Micros;

/// On the way, and until it is known here that it is in memory.
const BESIDE: Micros = Micros::from_millis(20);

/// The nearest bound that leaves time for a load that should be done by then, and a run after it: the load may take half as long
/// again. In whole milliseconds, as people write it.
pub fn bound(ready_in: Micros, run: Moments) -> Micros {
    let load = ready_in.0.saturating_add(ready_in.0 / 2).saturating_add(BESIDE.0);
    let all = (Moments::exactly(Micros(load)) + run).p99().0;
    Micros(all.div_ceil(1_000).saturating_mul(1_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_leaves_time_for_a_load_that_takes_half_as_long_again_and_for_a_slow_run() {
        let run = Moments { mean: 4_000.0, var: 1_000_000.0 };
        let found = bound(Micros::from_millis(100), run);
        assert!(found >= Micros(170_000 + run.p99().0), "{found}");
        assert!(found < Micros::from_millis(190) && found.0.is_multiple_of(1_000), "{found}");
        assert!((Moments::exactly(Micros::from_millis(150)) + run).within(Moments::exactly(found).mean));
        assert!(bound(Micros(u64::MAX), Moments::ZERO) >= Micros(u64::MAX / 2));
    }
}
