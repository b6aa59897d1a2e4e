#![no_main]

use libfuzzer_sys::fuzz_target;
use modelless_adapter::fuzzing::{LIMITS, image};
use modelless_fuzz::within;

fuzz_target!(|data: &[u8]| {
    // What decoding may hold, twice: a picture is kept while the next one is decoded; and the file, its base64 and what those grow by.
    let limit = 2 * usize::try_from(LIMITS.max_decoder_bytes).expect("a few MB") + 8 * data.len() + (1 << 20);
    within(limit, || image(data));
});
