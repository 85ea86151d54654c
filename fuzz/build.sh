#!/usr/bin/env bash
# Builds all fuzz targets as one static program into the folder OUT, beside the corpora and run.sh: build.sh OUT
set -euo pipefail
cd "$(dirname "$0")"
out="$(mkdir -p "$1" && cd "$1" && pwd)"
triple=x86_64-unknown-linux-gnu
coverage="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters"
coverage="$coverage -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares"
export RUSTFLAGS="$coverage --cfg fuzzing -Ctarget-feature=+crt-static"
build() { cargo +nightly build --release --target "$triple" "$@"; }
# libFuzzer looks its interceptors of memcmp and the like up at run time, which a static program cannot: they go.
build --package libfuzzer-sys
for library in "${CARGO_TARGET_DIR:-target}/$triple"/release/deps/liblibfuzzer_sys-*.rlib; do
  member="$(ar t "$library" | grep FuzzerInterceptors || true)"
  [ -z "$member" ] || ar d "$library" "$member"
done
build --bin all
strip -o "$out/all" "${CARGO_TARGET_DIR:-target}/$triple/release/all"
cp -r corpus "$out/"
cp run.sh "$out/"
