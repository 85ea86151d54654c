#![no_main]

libfuzzer_sys::fuzz_target!(init: gosset_fuzz::prepare("kv_pages"), |data: &[u8]| gosset_fuzz::fuzz("kv_pages", data));
