#![no_main]

use libfuzzer_sys::fuzz_target;
use modelless_fuzz::within;
use modelless_gateway::fuzzing::oip_json;

fuzz_target!(|data: &[u8]| {
    // Two characters can be an element of eight bytes, in a list that grew; and all of it is written and read again in two forms.
    within(256 * data.len() + (64 << 10), || oip_json(data));
});
