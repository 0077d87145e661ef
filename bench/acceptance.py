"""Acceptance length of a drafter by prompt family, and whether drafting changed the output.

    python bench/acceptance.py --data-dir DATA --count 20 --max-new-tokens 128

tau = kept tokens / rounds, pooled over the requests of a family; the interval is a bootstrap over requests (95 %).
The plain run of the same prompts is the reference: a first difference is counted, with the target's margin there.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

from rich.console import Console
from rich.table import Table

import dspine  # noqa: F401  sets the threads before torch is imported
from dspine.checkpoint import drafter_digest, load_drafter
from dspine.decode.engine import Engine
from dspine.decode.records import Completion
from dspine.decode.sampling import SamplingParams
from dspine.demo import first_margin
from dspine.target import load_target
from dspine.target.chat import render
from prompts import FAMILIES, digest, family_prompts


def tau_of(completions: list[Completion]) -> float:
    rounds = [r for c in completions for r in c.rounds]
    return sum(r.kept for r in rounds) / max(1, len(rounds))


def interval(completions: list[Completion], draws: int = 2000) -> tuple[float, float]:
    chance = random.Random(0)
    values = sorted(tau_of(chance.choices(completions, k=len(completions))) for _ in range(draws))
    return values[int(0.025 * draws)], values[int(0.975 * draws)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("--drafter", default="smollm2-135m-dspine")
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--no-plain", action="store_true", help="skip the comparison with the plain output")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    target = load_target(args.target)
    drafter = load_drafter(args.drafter, target)
    drafted, plain = Engine(target, drafter, max_batch=args.batch), Engine(target, max_batch=args.batch)
    params = SamplingParams(max_new_tokens=args.max_new_tokens)
    table = Table("family", "prompts", "digest", "tau", "95 %", "tau by request", "rounds", "same output", "margins")
    report: list[dict[str, object]] = []
    for family in args.families.split(","):
        texts = family_prompts(args.data_dir, family, args.count)
        ids = [render(target, [{"role": "user", "content": text}]) for text in texts]
        answers = drafted.generate(ids, params)
        margins: list[float] = []
        if not args.no_plain:
            for prompt, ours, theirs in zip(ids, answers, plain.generate(ids, params), strict=True):
                margin = first_margin(target, prompt, ours.token_ids, theirs.token_ids)
                if margin is not None:
                    margins.append(margin)
        low, high = interval(answers)
        by_request = sum(c.tau for c in answers) / len(answers)
        row = {
            "family": family,
            "prompts": len(ids),
            "digest": digest(texts),
            "tau": round(tau_of(answers), 3),
            "interval": [round(low, 3), round(high, 3)],
            "tau_by_request": round(by_request, 3),
            "rounds": sum(len(c.rounds) for c in answers),
            "same_output": None if args.no_plain else len(ids) - len(margins),
            "margins": margins,
        }
        report.append(row)
        same = "-" if args.no_plain else f"{row['same_output']}/{len(ids)}"
        table.add_row(
            family, str(len(ids)), str(row["digest"]), f"{row['tau']:.2f}", f"{low:.2f}-{high:.2f}",
            f"{by_request:.2f}", str(row["rounds"]), same, ", ".join(f"{m:.1e}" for m in margins) or "-",
        )  # fmt: skip
    facts = {
        "target": target.name,
        "head_digest": target.head_digest[:12],
        "drafter": drafter_digest(args.drafter)[:12],
        "dtype": str(target.dtype),
        "device": str(target.device),
        "temperature": 0,
        "max_new_tokens": args.max_new_tokens,
        "tau": "sum of kept tokens / sum of rounds, prefill excluded",
    }
    Console().print(table, facts)
    if args.json is not None:
        args.json.write_text(json.dumps({"facts": facts, "families": report}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
