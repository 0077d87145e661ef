"""Memory over thousands of rounds: resident size of the process, and storage that the engine reports.

    python bench/memory.py --rounds 5000

Requests of mixed lengths, greedy and sampled, come and go in a batch of four; every tenth is aborted. Libraries keep
some memory for each shape that they meet, so what is held must settle in the first half of the rounds and stay.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from itertools import count
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import dspine  # noqa: F401  sets the threads before torch is imported
from dspine.checkpoint import load_drafter
from dspine.decode.engine import Engine
from dspine.decode.sampling import SamplingParams
from dspine.demo import PROMPTS
from dspine.target import load_target
from dspine.target.chat import render

PAGE = os.sysconf("SC_PAGE_SIZE")


def resident_mb() -> float:
    """Resident size of this process now (Linux), in units of 1e6 bytes."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * PAGE / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="nano")
    parser.add_argument("--drafter", default="nano")
    parser.add_argument("--verify", default="auto")
    parser.add_argument("--rounds", type=int, default=5000)
    parser.add_argument("--max-new-tokens", type=int, default=200)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    target = load_target(args.target)
    verify = int(args.verify) if args.verify.isdigit() else args.verify
    engine = Engine(target, load_drafter(args.drafter, target), max_batch=4, verify=verify)
    prompts = [render(target, [{"role": "user", "content": text}]) for text in PROMPTS.values()]
    chance, numbers = random.Random(0), count()
    table = Table("rounds", "resident MB", "engine MB")
    rows: list[dict[str, float]] = []
    for done in range(args.rounds + 1):
        while engine.pending < 6:
            longest = chance.randint(args.max_new_tokens // 4, args.max_new_tokens)
            sampled = {"temperature": 0.8, "top_p": 0.9} if chance.random() < 0.5 else {}
            params = SamplingParams(max_new_tokens=longest, ignore_eos=True, **sampled)
            number = engine.add(chance.choice(prompts), params)
            if next(numbers) % 10 == 9:
                engine.abort(number - 2)
        engine.step()
        if done % (args.rounds // 10) == 0:
            rows.append({"rounds": done, "resident": round(resident_mb(), 1), "engine": round(engine.bytes / 1e6, 2)})
            table.add_row(*map(str, rows[-1].values()))
    settled = rows[len(rows) // 2 :]
    facts = {
        "target": target.name,
        "drafter": args.drafter,
        "verify": args.verify,
        "dtype": str(target.dtype),
        "threads": torch.get_num_threads(),
        "growth_mb_second_half": round(settled[-1]["resident"] - settled[0]["resident"], 1),
        "engine_growth_mb_second_half": round(settled[-1]["engine"] - settled[0]["engine"], 2),
    }
    Console().print(table, facts)
    if args.json is not None:
        args.json.write_text(json.dumps({"facts": facts, "rows": rows}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
