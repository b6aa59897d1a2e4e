#![no_main]

use libfuzzer_sys::fuzz_target;
use modelless_fuzz::within;
use modelless_gateway::fuzzing::goals;

fuzz_target!(|data: &[u8]| {
    within(256 * data.len() + (64 << 10), || goals(data));
});
