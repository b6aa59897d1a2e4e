#![no_main]

use libfuzzer_sys::fuzz_target;
use modelless_fuzz::within;
use modelless_gateway::fuzzing::answers;

fuzz_target!(|data: &[u8]| {
    // A byte can be five characters of a list that grew, and is read again as a value of JSON.
    within(512 * data.len() + (64 << 10), || answers(data));
});
