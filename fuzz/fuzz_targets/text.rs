#![no_main]

use libfuzzer_sys::fuzz_target;
use modelless_adapter::fuzzing::text;
use modelless_fuzz::within;

fuzz_target!(
    init: {
        // A tokenizer that panics costs its text and nothing else: that is caught, and is no finding.
        drop(std::panic::take_hook());
        std::panic::set_hook(Box::new(|_| {}));
        text(b"reads the tokenizer, which stays");
    },
    |data: &[u8]| {
        within(512 * data.len() + (1 << 20), || text(data));
    }
);
