#!/usr/bin/env bash
# Builds every fuzz target as a static program into the folder OUT, with the corpora and run.sh: build.sh OUT
set -euo pipefail
cd "$(dirname "$0")"
out="$(mkdir -p "$1" && cd "$1" && pwd)"
triple=x86_64-unknown-linux-gnu
coverage="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters"
coverage="$coverage -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares"
RUSTFLAGS="$coverage --cfg fuzzing -Ctarget-feature=+crt-static" cargo +nightly build --release --target "$triple" --bins
for target in fuzz_targets/*.rs; do
  name="$(basename "$target" .rs)"
  strip -o "$out/$name" "${CARGO_TARGET_DIR:-target}/$triple/release/$name"
done
cp -r corpus "$out/"
cp run.sh "$out/"
