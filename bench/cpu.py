"""Decoding on a CPU, one request at a time, greedy: our engine beside transformers and llama.cpp, on named prompts.

    python bench/cpu.py --data-dir DATA --json runs/cpu.json

Every contestant answers the same token ids with the same cap, at its best of --threads and of its own options, which is
found beforehand on prompts that are not measured. Runs are interleaved: every contestant answers a prompt before
anybody sees the next, each in a process of its own that has loaded its weights and answered once. "decode" leaves out
the prefill and the tokens that came with it, "whole" is the time from the prompt to the last token, prefill included;
loading is in neither. Ratios are taken prompt by prompt: median (quartiles).

Then the cost table of `cpu_cost.py`, and the speed-up that acceptance and this table predict, beside the measured one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cpu_contestants import CONTESTANTS, DEFAULT, PLAIN_OF, Contestant, Setting, settings
from cpu_cost import CONTEXT, REPEATS, Cost, cost_rows, measure_cost, plain_seconds, predicted
from cpu_figures import (
    Answer,
    Spread,
    decode_rates,
    decode_ratios,
    markdown,
    pooled_decode_rate,
    said,
    same_tokens,
    tau_of,
    whole_rate,
    whole_ratios,
)
from cpu_process import Pool
from cpu_setup import gguf_files, look_up
from dspine.errors import DspineError
from dspine.evaluate.prompts import texts_digest
from dspine.evaluate.sources import Source, task_prompts
from dspine.evaluate.tasks import TASKS, find_task

Answers = dict[str, list[Answer]]


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# ---------------------------------------------------------------- measuring


def best_settings(
    pool: Pool, contestants: Sequence[Contestant], threads: Sequence[int], prompts: Sequence[list[int]], cap: int
) -> tuple[dict[str, Setting], list[dict[str, Any]]]:
    """Each contestant's fastest setting by decoding, and what was measured of all of them."""
    tried = [setting for contestant in contestants for setting in settings(contestant, threads)]
    rates: list[list[float]] = [[] for _ in tried]
    for ids in prompts:
        for place, setting in enumerate(tried):
            rates[place] += decode_rates([pool.answer(setting, ids, cap)])
    report: list[dict[str, Any]] = []
    chosen: dict[str, Setting] = {}
    best: dict[str, float] = {}
    for setting, measured in zip(tried, rates, strict=True):
        name, rate = setting.contestant.name, statistics.median(measured) if measured else 0.0
        report.append({"contestant": name, "setting": setting.label, "decode": rate})
        note(f"tuning: {name}, {setting.label}: {rate:.1f} tokens/s")
        if rate > best.get(name, -1.0):
            chosen[name], best[name] = setting, rate
    return chosen, report


def take_turns(
    pool: Pool, chosen: Mapping[str, Setting], prompts: Sequence[list[int]], cap: int, save: Callable[[Answers], None]
) -> Answers:
    """Every prompt by every contestant before the next prompt; who begins changes, and every prompt is saved."""
    names = list(chosen)
    answers: Answers = {name: [] for name in names}
    for number, ids in enumerate(prompts):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            answers[name].append(pool.answer(chosen[name], ids, cap))
        medians = {name: statistics.median(decode_rates(each) or [0.0]) for name, each in answers.items()}
        so_far = ", ".join(f"{name} {rate:.1f}" for name, rate in medians.items())
        note(f"prompt {number + 1} of {len(prompts)}, median decode tokens/s so far: {so_far}")
        save(answers)
    return answers


# ---------------------------------------------------------------- telling


def contest_rows(
    answers: Answers, chosen: Mapping[str, Setting], reference: str, eos: Sequence[int]
) -> tuple[list[str], list[list[str]]]:
    head = ["contestant", "at its best", "decode tokens/s", "whole tokens/s", f"{reference} is faster by (decode)",
            f"{reference} is faster by (whole)", "tau", "same tokens as the first"]  # fmt: skip
    ours, rows = answers[reference], []
    for name, theirs in answers.items():
        tau = tau_of(theirs)
        equal = sum(same_tokens(a, b, eos) for a, b in zip(ours, theirs, strict=True))
        rows.append([
            name,
            chosen[name].label,
            said(Spread.of(decode_rates(theirs)), 1),
            said(Spread.of([whole_rate(answer) for answer in theirs]), 1),
            said(Spread.of(decode_ratios(ours, theirs)), 2),
            said(Spread.of(whole_ratios(ours, theirs)), 2),
            "-" if tau is None else f"{tau:.2f}",
            f"{equal} of {len(theirs)}",
        ])  # fmt: skip
    return head, rows


def prediction(answers: Answers, name: str, cost: Cost, plain: float) -> dict[str, float]:
    """Predicted and measured speed-up of a drafted contestant over its plain path, decode only, all prompts pooled.

    Args:
        cost: at the drafted contestant's setting.
        plain: t(1) at the plain one's.
    """
    rounds = [r for answer in answers[name] for r in answer["rounds"]]
    measured = pooled_decode_rate(answers[name]) / pooled_decode_rate(answers[PLAIN_OF[name]])
    without = predicted(cost, plain, rounds, with_draft=False)
    return {
        "tau": tau_of(answers[name]) or 0.0,
        "predicted": without,
        "predicted_with_draft": predicted(cost, plain, rounds, with_draft=True),
        "measured": measured,
        "measured_of_predicted": measured / without,
    }


def prediction_rows(predictions: Mapping[str, Mapping[str, float]]) -> tuple[list[str], list[list[str]]]:
    head = ["contestant", "tau", "predicted", "predicted, draft included", "measured", "measured / predicted"]
    return head, [[name, *(f"{value:.2f}" for value in row.values())] for name, row in predictions.items()]


def write(path: Path | None, report: Mapping[str, Any]) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.{os.getpid()}")
        aside.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        os.replace(aside, path)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--task", default="gsm8k", choices=TASKS)
    parser.add_argument("--count", type=int, default=50, help="prompts that are measured")
    parser.add_argument("--max-new-tokens", type=int, default=256)
    parser.add_argument("--tune-count", type=int, default=3, help="other prompts, to find everybody's best setting on")
    parser.add_argument("--tune-tokens", type=int, default=96, help="most new tokens of these")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--contestants", default=",".join(DEFAULT), help=f"of {', '.join(CONTESTANTS)}")
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("--drafter", default="smollm2-135m-dspine")
    parser.add_argument("--context", type=int, default=CONTEXT, help="of the cost table, in tokens")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="of the cost table")
    parser.add_argument("--no-cost", action="store_true", help="skip the cost table and the prediction")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    unknown = [name for name in args.contestants.split(",") if name not in CONTESTANTS]
    if unknown:
        parser.error(f"no such contestants: {', '.join(unknown)}; known are {', '.join(CONTESTANTS)}")
    return args


def main() -> None:
    args = options()
    contestants = [CONTESTANTS[name] for name in args.contestants.split(",")]
    threads = [int(count) for count in args.threads.split(",")]
    measured = task_prompts(find_task(args.task), Source("folder", args.data_dir), "report", args.count)
    tuning = task_prompts(find_task(args.task), Source("folder", args.data_dir), "tune", args.tune_count)
    files = gguf_files(args.target) if any(c.kind == "llama.cpp" for c in contestants) else {}
    setup = look_up(args.target, args.drafter, [prompt.text for prompt in measured + tuning])
    ids, tuning_ids = setup.ids[: args.count], setup.ids[args.count :]
    cap = max(args.max_new_tokens, args.tune_tokens)
    context = -(-(max(map(len, setup.ids)) + cap) // 256) * 256
    asked = {"task": args.task, "prompts": args.count, "digest": texts_digest(measured)}
    report: dict[str, Any] = {"facts": setup.facts | asked | {"max_new_tokens": args.max_new_tokens}}

    with Pool({**setup.places, "context": context}, files) as pool:
        chosen, report["tuning"] = best_settings(pool, contestants, threads, tuning_ids, args.tune_tokens)
        report["settings"] = {name: setting.label for name, setting in chosen.items()}
        pool.keep(list(chosen.values()))
        report["facts"] |= pool.facts
        answers = take_turns(
            pool, chosen, ids, args.max_new_tokens, lambda made: write(args.json, {**report, "answers": made})
        )
        report["answers"] = answers
        print(markdown(*contest_rows(answers, chosen, contestants[0].name, setup.places["eos"])))
        drafted = [] if args.no_cost else [name for name in PLAIN_OF if {name, PLAIN_OF[name]} <= chosen.keys()]
        costs, predictions = {}, {}
        for name in drafted:
            note(f"cost table of {name}, {chosen[name].label}")
            workers = [pool.worker(chosen[each].contestant, chosen[each].threads) for each in (name, PLAIN_OF[name])]
            verify = chosen[name].options["verify"]
            cost = measure_cost(workers[0], tuning_ids, args.tune_tokens, args.context, args.repeats, verify)
            alike = workers[0] is workers[1]
            plain = cost.plain if alike else plain_seconds(workers[1], tuning_ids, args.context, args.repeats)
            costs[f"t_verify(n) / t(1), {name}, {chosen[name].label}"] = cost
            predictions[name] = prediction(answers, name, cost, plain)
    if costs:
        print(markdown(*cost_rows(costs)))
        print(markdown(*prediction_rows(predictions)))
        report["costs"] = {label: asdict(cost) for label, cost in costs.items()}
        report["predictions"] = predictions
        write(args.json, report)
    print(", ".join(f"{key} {value}" for key, value in report["facts"].items()))


if __name__ == "__main__":
    try:
        main()
    except DspineError as error:
        sys.exit(f"error: {error}")
