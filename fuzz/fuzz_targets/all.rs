#![no_main]

use std::sync::LazyLock;

static TARGET: LazyLock<&str> = LazyLock::new(|| {
    let name = std::env::var("GOSSET_FUZZ_TARGET").expect("GOSSET_FUZZ_TARGET names a target");
    gosset_fuzz::entry(&name).name
});

libfuzzer_sys::fuzz_target!(init: gosset_fuzz::prepare(&TARGET), |data: &[u8]| gosset_fuzz::fuzz(&TARGET, data));
