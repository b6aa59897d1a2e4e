#![no_main]

use libfuzzer_sys::fuzz_target;
use modelless_fuzz::within;
use modelless_gateway::fuzzing::oip_grpc;

fuzz_target!(|data: &[u8]| {
    // A byte can be a number of eight, a tensor without anything in it is two bytes; and all of it is written and read again.
    within(512 * data.len() + (64 << 10), || oip_grpc(data));
});
