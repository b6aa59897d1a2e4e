#![no_main]

use libfuzzer_sys::fuzz_target;
use modelless_adapter::fuzzing::tensor;
use modelless_fuzz::within;

fuzz_target!(|data: &[u8]| {
    within(64 * data.len() + (64 << 10), || tensor(data));
});
