"""What verifying costs where rows verify different numbers of candidates: end to end, and as a rectangle.

    python bench/ragged.py --dtype bfloat16 --cpu-time

Eight rows on caches of different lengths; the target's forward with taps, its head, and the argmax. Both ways take
turns in random order, the quickest of several runs counts. The clock is the wall's, or with `--cpu-time` (one thread on
a busy machine) that of the process.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter, process_time

import torch
from rich.console import Console
from rich.table import Table

import dspine  # noqa: F401  sets the threads before torch is imported
from dspine.kernels.kv import Span
from dspine.kernels.law import likeliest
from dspine.kernels.ragged import Ragged
from dspine.target import load_target
from dspine.target.cache import TargetCache
from dspine.target.model import Target

STARTS = (64, 60, 50, 64, 30, 64, 20, 64)
SIZES: dict[str, tuple[int, ...]] = {
    "1 each": (1,) * 8,
    "2 each": (2,) * 8,
    "4 each": (4,) * 8,
    "8 each": (8,) * 8,
    "one of 8, others 1": (8, *(1,) * 7),
    "two of 8, others 1": (8, 8, *(1,) * 6),
    "one of 8, others 2": (8, *(2,) * 7),
    "1, 2, ... 8": tuple(range(1, 9)),
}


@torch.inference_mode()
def prefilled(target: Target) -> TargetCache:
    cache, longest = target.new_cache(len(STARTS)), max(STARTS)
    ids = torch.arange(len(STARTS) * longest).remainder(target.decodable).view(len(STARTS), longest)
    target.forward(ids, cache, Span(0, (0,) * len(STARTS), longest))
    return cache


@torch.inference_mode()
def verify(target: Target, cache: TargetCache, counts: Sequence[int], taps: Sequence[int]) -> None:
    """A verification of anchors and candidates: so many tokens of each row."""
    width = max(counts)
    ids = torch.arange(len(counts) * width).remainder(target.decodable).view(len(counts), width)
    hidden = target.forward(ids, cache, Span.of(0, STARTS, counts), taps).hidden
    likeliest(target.logits(Ragged(counts, width).line(hidden))).tolist()


def measured(
    target: Target, taps: Sequence[int], runs: int, clock: Callable[[], float]
) -> dict[str, tuple[float, float]]:
    """Seconds end to end and as a rectangle, by the name of the sizes."""
    cache = prefilled(target)
    works = {(name, 0): counts for name, counts in SIZES.items()}
    works |= {(name, 1): (max(counts),) * len(counts) for name, counts in SIZES.items()}
    seconds: dict[tuple[str, int], list[float]] = {key: [] for key in works}
    turns = random.Random(0)
    for _ in range(runs + 1):  # the first pays for set-up
        for key in turns.sample(list(works), len(works)):
            start = clock()
            verify(target, cache, works[key], taps)
            seconds[key].append(clock() - start)
    return {name: (min(seconds[name, 0][1:]), min(seconds[name, 1][1:])) for name in SIZES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("--dtype", default="bfloat16", choices=("float32", "bfloat16"))
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    clock = process_time if args.cpu_time else perf_counter
    target = load_target(args.target, dtype=getattr(torch, args.dtype))
    taps = sorted({1, target.num_layers // 2, target.num_layers - 3} & set(range(target.num_layers - 1)))
    found = measured(target, taps, args.runs, clock)
    table = Table("tokens of eight rows", "together", "end to end ms", "rectangle ms", "ratio")
    for name, (line, rectangle) in found.items():
        table.add_row(
            name, str(sum(SIZES[name])), f"{1e3 * line:.1f}", f"{1e3 * rectangle:.1f}", f"{line / rectangle:.2f}"
        )
    facts = {
        "target": target.name,
        "dtype": str(target.dtype),
        "threads": torch.get_num_threads(),
        "clock": clock.__name__,
        "runs": args.runs,
        "ragged": target.ragged,
        "piece": target.alike,
    }
    Console().print(table, facts)
    if args.json is not None:
        rows = {name: {"line": line, "rectangle": rectangle} for name, (line, rectangle) in found.items()}
        args.json.write_text(json.dumps({"facts": facts, "seconds": rows}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
