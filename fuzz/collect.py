"""Sums up runs of fuzz/run.sh into docs/results/fuzz.json: python3 fuzz/collect.py RESULTS... ; findings are kept as they are there."""

import json
import pathlib
import sys

RESULTS = pathlib.Path(__file__).parent.parent / "docs/results/fuzz.json"


def main():
    old = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    findings = old.get("findings", [])
    targets = {}
    for folder in map(pathlib.Path, sys.argv[1:]):
        for line in (folder / "stats.json").read_text().splitlines():
            run = json.loads(line)
            t = targets.setdefault(run["target"], {"target": run["target"], "seconds": 0, "executions": 0, "edges": 0, "peak_rss_mb": 0})
            t["seconds"] += run["seconds"]
            t["executions"] += run["executions"]
            t["edges"] = max(t["edges"], run["edges"])
            t["peak_rss_mb"] = max(t["peak_rss_mb"], run["peak_rss_mb"])
            corpus = folder / "corpus" / run["target"]
            if corpus.is_dir():
                t["corpus"] = max(t.get("corpus", 0), sum(1 for _ in corpus.iterdir()))
    for t in targets.values():
        t.setdefault("corpus", 0)
        t["findings"] = sum(f["target"] == t["target"] for f in findings)
    setting = old.get("setting", "libFuzzer (libfuzzer-sys 0.4.13), counters at every edge and compared values, one process for each target:")
    out = {"setting": setting, "targets": list(targets.values()), "findings": findings}
    RESULTS.write_text(json.dumps(out, indent=2, ensure_ascii=False) + "\n")


main()
