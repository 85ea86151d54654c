#!/usr/bin/env python3
"""Scores zero-shot tasks from the log-likelihoods that `cargo xtask eval --tasks ... --task-log DIR` wrote, from the definitions alone.

    score_tasks.py TASKS_FOLDER LOG_FOLDER [--limit N] [--write GOLDEN.json]

TASKS_FOLDER has a folder per task with `requests.jsonl.gz` in it (`cargo xtask fetch tasks` prints it); LOG_FOLDER is one row of the
task log, with a file `TASK.jsonl` per task. Questions, right options and lengths come from the task files; only log-likelihoods, in
nats, are taken from the log. For every task: how many of the chosen options are those that the log names, then acc and acc_norm with
their standard errors. Fails if fewer than 99 % of the choices of any task agree. `--write` leaves log-likelihoods and choices for the
tests of gosset-eval.

Definitions: acc takes the option with the largest sum of log-likelihoods; acc_norm divides by the number of characters of the option,
without the blank that parts it from the context; the first of equals wins. The standard error is the sample standard deviation over
the root of the number of questions. Standard library only.
"""

import argparse
import gzip
import json
import math
import pathlib
import statistics
import sys


def questions(path):
    """Options and the right one by document; copies without a context, from 1000000 on, are no questions."""
    found = {}
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            request = json.loads(line)
            if request["doc_id"] < 1_000_000:
                options, _ = found.setdefault(request["doc_id"], ([], request["label"]))
                assert request["idx"] == len(options), f"document {request['doc_id']}: options out of order"
                options.append(request["request"]["continuation"])
    return found


def largest(values):
    return max(range(len(values)), key=lambda i: (values[i], -i))


def accuracy(right):
    error = statistics.stdev(right) / math.sqrt(len(right)) if len(right) > 1 else 0.0
    return statistics.fmean(right), error


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", type=pathlib.Path)
    parser.add_argument("log", type=pathlib.Path)
    parser.add_argument("--limit", type=int, default=500, help="questions per task [500]")
    parser.add_argument("--write", type=pathlib.Path, help="write log-likelihoods and choices of the first questions")
    parser.add_argument("--write-limit", type=int, default=60, help="questions per task that are written [60]")
    args = parser.parse_args()
    golden, worst = {}, 1.0
    for log in sorted(args.log.glob("*.jsonl")):
        task = log.stem
        known = questions(args.tasks / task / "requests.jsonl.gz")
        agree, agree_norm, right, right_norm, rows = 0, 0, [], [], []
        for line in log.read_text(encoding="utf-8").splitlines()[: args.limit]:
            row = json.loads(line)
            options, gold = known[row["doc_id"]]
            scores = [option["ll"] for option in row["options"]]
            assert len(scores) == len(options), f"{task}, document {row['doc_id']}: {len(scores)} likelihoods"
            lengths = [len(option[1:] if option.startswith(" ") else option) for option in options]
            choice = largest(scores)
            choice_norm = largest([score / length for score, length in zip(scores, lengths)])
            agree += choice == row["choice"]
            agree_norm += choice_norm == row["choice_norm"]
            right.append(float(choice == gold))
            right_norm.append(float(choice_norm == gold))
            rows.append({"doc_id": row["doc_id"], "gold": gold, "ll": scores, "chars": lengths,
                         "choice": choice, "choice_norm": choice_norm})
        n = len(rows)
        (acc, acc_error), (norm, norm_error) = accuracy(right), accuracy(right_norm)
        print(f"{task:14} {n} questions, same choice {agree}, per character {agree_norm}; "
              f"acc {acc:.4f} +- {acc_error:.4f}, acc_norm {norm:.4f} +- {norm_error:.4f}")
        worst = min(worst, agree / n, agree_norm / n)
        rows = rows[: args.write_limit]
        (part_acc, part_error) = accuracy([float(row["choice"] == row["gold"]) for row in rows])
        (part_norm, part_norm_error) = accuracy([float(row["choice_norm"] == row["gold"]) for row in rows])
        golden[task] = {"acc": [part_acc, part_error], "acc_norm": [part_norm, part_norm_error], "questions": rows}
    if not golden:
        sys.exit(f"{args.log}: no task log")
    if args.write:
        tasks = ",\n".join(
            f'"{task}": {{"acc": {json.dumps(part["acc"])}, "acc_norm": {json.dumps(part["acc_norm"])}, "questions": [\n'
            + ",\n".join(json.dumps(row, separators=(",", ":")) for row in part["questions"]) + "]}"
            for task, part in golden.items())
        args.write.write_text("{\n" + tasks + "\n}\n", encoding="utf-8")
    if worst < 0.99:
        sys.exit(f"{worst:.2%} of the choices agree, expected at least 99 %")


if __name__ == "__main__":
    main()
