#!/usr/bin/env bash
# Runs every fuzz target that lies beside this script (or those named after the time), all at once, and sums up what they did.
#   run.sh SECONDS OUT [TARGET...]      further runs go on from the corpora of the last one in OUT
# OUT gets: logs/, corpus/ (grown), artifacts/ (inputs that broke something), stats.json (one line for each target and run).
set -u
here="$(cd "$(dirname "$0")" && pwd)"
seconds="$1" out="$(mkdir -p "$2" && cd "$2" && pwd)"
shift 2
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(rice ans trellis shift columns unisvq kv_pages container safetensors folder gguf config tokenizer chat_template kv_spec)
length() {
  case "$1" in
    container) echo 16384 ;;
    gguf | folder) echo 32768 ;;
    safetensors | config | tokenizer | chat_template) echo 8192 ;;
    *) echo 4096 ;;
  esac
}
export RAYON_NUM_THREADS=1
mkdir -p "$out/logs" "$out/artifacts"
for t in "${targets[@]}"; do
  mkdir -p "$out/corpus/$t"
  [ -d "$here/corpus/$t" ] && cp -n "$here/corpus/$t"/* "$out/corpus/$t/" 2>/dev/null
  (
    cd "$out" || exit 1
    log="logs/$t.$(date +%s).log"
    # A finding ends libFuzzer; it starts again with what is left of the time.
    end=$(($(date +%s) + seconds)) executions=0 findings=0 cov=0 rss=0
    while left=$((end - $(date +%s))) && [ "$left" -gt 3 ]; do
      GOSSET_FUZZ_TARGET="$t" "$here/all" -max_total_time="$left" -max_len="$(length "$t")" -len_control=20 -timeout=30 -rss_limit_mb=6144 -print_final_stats=1 \
        -reload=0 -seed="$((RANDOM + 1))" -artifact_prefix="artifacts/$t-" "corpus/$t" >"$log.part" 2>&1
      rc=$?
      n=$(awk '/stat::number_of_executed_units/ {print $2}' "$log.part")
      [ -n "$n" ] || n=$(grep -oE '^#[0-9]+' "$log.part" | tail -1 | tr -d '#')
      executions=$((executions + ${n:-0}))
      c=$(grep -oE 'cov: [0-9]+' "$log.part" | tail -1 | cut -d' ' -f2)
      r=$(awk '/stat::peak_rss_mb/ {print $2}' "$log.part")
      cov=${c:-$cov} rss=${r:-$rss}
      tail -c 20000 "$log.part" >>"$log"
      rm -f "$log.part"
      [ "$rc" -eq 0 ] || findings=$((findings + 1))
      [ "$findings" -lt 40 ] || break
    done
    printf '{"target":"%s","seconds":%s,"executions":%s,"edges":%s,"peak_rss_mb":%s,"stops":%s}\n' \
      "$t" "$seconds" "$executions" "${cov:-0}" "${rss:-0}" "$findings" >>stats.json
  ) &
done
wait
rm -rf /dev/shm/gosset-fuzz-*
cat "$out/stats.json"
ls -l "$out/artifacts"
