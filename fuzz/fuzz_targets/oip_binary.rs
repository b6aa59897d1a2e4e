#![no_main]

use libfuzzer_sys::fuzz_target;
use modelless_fuzz::within;
use modelless_gateway::fuzzing::oip_binary;

fuzz_target!(|data: &[u8]| {
    // As for JSON, which a part of it is.
    within(256 * data.len() + (64 << 10), || oip_binary(data));
});
