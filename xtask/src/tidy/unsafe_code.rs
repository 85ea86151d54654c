//! Where `unsafe` may stand, and which crates forbid it outright.

use super::{Finding, RepoFile, source};

/// The file that maps containers into memory.
const MEMORY_MAP: &str = "crates/gosset-container/src/reader.rs";

/// The file that lends candle's device memory and streams to the CUDA crate.
const CANDLE_SEAM: &str = "crates/gosset-runtime/src/candle_cuda/raw.rs";

/// Files that may hold `unsafe`: SIMD modules, memory maps, the CUDA crate and its seam with candle.
fn may_be_unsafe(path: &str) -> bool {
    let in_src = |krate: &str| path.strip_prefix(krate).is_some_and(|rest| rest.starts_with("/src/"));
    let simd = path.starts_with("crates/")
        && path.contains("/src/")
        && (path.contains("/arch/") || path.ends_with("/arch.rs"));
    simd || path == MEMORY_MAP || path == CANDLE_SEAM || in_src("crates/gosset-cuda")
}

/// Crates whose root must forbid unsafe code, so that the compiler holds them to it.
const FORBID: &[&str] = &[
    "crates/gosset-lattice",
    "crates/gosset-entropy",
    "crates/gosset-codec",
    "crates/gosset-unisvq",
    "crates/gosset-kv",
    "crates/gosset-quantize",
    "crates/gosset-eval",
    "crates/gosset-baselines",
    "crates/gosset-cli",
    "crates/gosset",
    "xtask",
];

pub(super) fn check(files: &[RepoFile]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.path.ends_with(".rs")) {
        if !may_be_unsafe(&file.path) {
            let code = source::code_only(&file.text);
            for line in source::lines_with(&code, "unsafe", "") {
                findings.push(Finding::new(format!("{}:{line}", file.path), "unsafe code outside the allow-list"));
            }
        }
        let root = ["/src/lib.rs", "/src/main.rs"].iter().find_map(|end| file.path.strip_suffix(end));
        if root.is_some_and(|root| FORBID.contains(&root)) {
            let code: String = source::code_only(&file.text).split_whitespace().collect();
            if !code.contains("#![forbid(unsafe_code)]") {
                findings.push(Finding::new(&file.path, "expected #![forbid(unsafe_code)]"));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> Vec<String> {
        check(&[RepoFile { path: path.into(), text: text.into() }]).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn unsafe_stands_only_where_it_may() {
        let text = "fn f() {}\nfn g() { unsafe { h() } }\n";
        for path in [
            "crates/gosset-transform/src/arch/avx2.rs",
            "crates/gosset-codec/src/arch/avx2.rs",
            "crates/gosset-cuda/src/launch/gemv.rs",
            MEMORY_MAP,
            CANDLE_SEAM,
        ] {
            assert_eq!(findings(path, text), [""; 0], "{path}");
        }
        for path in [
            "crates/gosset-transform/src/fwht.rs",
            "crates/gosset-runtime/src/model.rs",
            "crates/gosset-runtime/src/candle_cuda/coded.rs",
            "crates/gosset-container/src/writer.rs",
            "benches/src/arch/x.rs",
            "tests/it/main.rs",
        ] {
            assert_eq!(findings(path, text), [format!("{path}:2: unsafe code outside the allow-list")]);
        }
        assert!(findings("tests/it/main.rs", "// unsafe\nconst A: &str = \"unsafe\";\n").is_empty());
    }

    #[test]
    fn the_forbid_attribute_must_be_code() {
        let with = "//! Docs.\n#![forbid(unsafe_code)]\nfn f() {}\n";
        assert!(findings("crates/gosset-eval/src/lib.rs", with).is_empty());
        assert!(findings("crates/gosset-transform/src/lib.rs", "fn f() {}\n").is_empty());
        for without in ["fn f() {}\n", "// #![forbid(unsafe_code)]\nfn f() {}\n"] {
            assert_eq!(findings("crates/gosset-eval/src/lib.rs", without).len(), 1);
        }
    }
}
