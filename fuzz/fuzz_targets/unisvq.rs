#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| gosset_fuzz::fuzz("unisvq", data));
