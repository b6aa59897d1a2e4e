#![no_main]

use libfuzzer_sys::fuzz_target;
use modelless_fuzz::within;
use modelless_wire::fuzzing::{RECEIVED, frames};

/// A frame that comes in parts gets room for all of it when it is begun, of which the system gives only what is written to.
const BEGUN: usize = 8 * (256 << 20);

fuzz_target!(|data: &[u8]| {
    within(BEGUN + usize::try_from(RECEIVED).expect("small") + 512 * data.len() + (4 << 20), || frames(data));
});
