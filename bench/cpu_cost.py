"""What it costs to verify n tokens at once, `t_verify(n) / t(1)`, and the speed-up that follows from it.

    python bench/cpu_cost.py

t(1) is one forward of one new token with the head, as plain decoding does it; t_verify(n) one forward of n new tokens
with the head and the layers that the drafter taps; both at the same context, in turn, the median of --repeats. One
process for each type and thread count. `cpu.py` measures the same and prints the prediction beside what it measured.

With acceptance length tau and M candidates, decoding is predicted to be tau / (t_verify(M+1)/t(1)) times as fast as
plain decoding, and tau / ((t_verify(M+1) + t_draft)/t(1)) times with the draft's own time. Rounds may verify different
numbers of candidates, so the sums run over rounds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cpu_process import Worker
    from dspine.target.model import Target

WIDTHS = tuple(range(1, 65))
SHOWN = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 48, 64)
CONTEXT = 300
REPEATS = 7
PLAIN_TIMES = 8  # t(1) divides everything, so it is measured oftener
PREFILL = 256

Kind = tuple[int, bool]  # new tokens of a forward, and whether it reads the tapped layers


# ---------------------------------------------------------------- in the process that is measured


def forward_seconds(
    target: Target, ids: Sequence[int], kinds: Sequence[Kind], repeats: int, taps: Sequence[int]
) -> list[list[float]]:
    """Seconds of target forwards with the head, `repeats` of each kind.

    Args:
        ids: the context, which is run first, and then at least as many tokens as the widest forward takes.
        kinds: each repeat runs all of them, in another order.
        taps: the layers that a tapped forward reads.
    """
    import torch

    from dspine.kernels.kv import Span

    context = len(ids) - max(width for width, _ in kinds)
    seconds: list[list[float]] = [[] for _ in kinds]
    chance = random.Random(0)
    with torch.inference_mode():
        cache = target.new_cache(1)
        row = torch.tensor([list(ids)])
        for start in range(0, context, PREFILL):
            chunk = row[:, start : min(start + PREFILL, context)]
            target.forward(chunk, cache, Span(0, (start,), chunk.shape[1]))
        cache.rows.commit(0, context)
        for repeat in range(repeats + 1):  # the first is a warm-up
            for place in chance.sample(range(len(kinds)), len(kinds)):
                width, tapped = kinds[place]
                fed = row[:, context : context + width]
                began = perf_counter()
                out = target.forward(fed, cache, Span(0, (context,), width), taps if tapped else ())
                target.logits(out.hidden)
                if repeat:
                    seconds[place].append(perf_counter() - began)
    return seconds


# ---------------------------------------------------------------- what is made of it


@dataclass(frozen=True)
class Cost:
    """Median seconds: t(1) of plain decoding, t_verify by its number of tokens, and drafting, observing included."""

    plain: float
    verify: Mapping[int, float]
    draft: float
    stages: Mapping[str, float]

    def ratio(self, width: int) -> float:
        return self.verify[width] / self.plain

    @property
    def forward_share(self) -> float:
        """Share of a round, as it was measured by stage, that the target's forward and head take."""
        return sum(map(self.stages.__getitem__, ("verify/forward", "verify/head"))) / sum(self.stages.values())


def measure_cost(
    worker: Worker, prompts: Sequence[Sequence[int]], cap: int, context: int, repeats: int, verify: str = "full"
) -> Cost:
    """Ask a `dspine` worker.

    Args:
        prompts: for the stages of real rounds, and as text to fill the context with.
        cap: new tokens of each prompt's answer for the stages.
        verify: of the rounds whose stages are measured.
    """
    kinds = [*((width, True) for width in WIDTHS), *[(1, False)] * PLAIN_TIMES]
    seconds = worker.ask("cost", ids=_text(prompts, context), kinds=kinds, repeats=repeats)["seconds"]
    stages = worker.ask("stages", prompts=[list(prompt) for prompt in prompts], cap=cap, verify=verify)
    by_round = {name: spent / stages["rounds"] for name, spent in stages["seconds"].items()}
    return Cost(
        plain=statistics.median(each for kind in seconds[len(WIDTHS) :] for each in kind),
        verify={width: statistics.median(each) for width, each in zip(WIDTHS, seconds, strict=False)},
        draft=sum(spent for name, spent in by_round.items() if name.startswith("draft") or name == "commit/observe"),
        stages=by_round,
    )


def plain_seconds(worker: Worker, prompts: Sequence[Sequence[int]], context: int, repeats: int) -> float:
    """t(1) of a `dspine` worker: for plain decoding whose best is another thread count."""
    kinds = [(1, False)] * PLAIN_TIMES
    seconds = worker.ask("cost", ids=_text(prompts, context), kinds=kinds, repeats=repeats)["seconds"]
    return statistics.median(each for kind in seconds for each in kind)


def _text(prompts: Sequence[Sequence[int]], context: int) -> list[int]:
    """`context` tokens and those that the widest forward takes: the prompts, again and again."""
    tokens = itertools.cycle(token for prompt in prompts for token in prompt)
    return list(itertools.islice(tokens, context + max(WIDTHS)))


def predicted(cost: Cost, plain: float, rounds: Sequence[Sequence[int]], *, with_draft: bool) -> float:
    """The speed-up over plain decoding that acceptance and the table predict.

    Args:
        plain: t(1), in seconds, of the plain path that it is compared with, which may run at another thread count.
        rounds: [verified candidates, kept tokens] each.
    """
    kept = sum(tokens for _, tokens in rounds)
    verifying = sum(cost.verify[candidates + 1] for candidates, _ in rounds)
    drafting = cost.draft * sum(candidates > 0 for candidates, _ in rounds) if with_draft else 0.0
    return kept * plain / (verifying + drafting)


def cost_rows(costs: Mapping[str, Cost]) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the table, a column for each cost."""
    head = ["n", *costs]
    rows = [[str(n), *(f"{cost.ratio(n):.2f}" for cost in costs.values())] for n in SHOWN]
    rows.append(["t(1), ms", *(f"{1e3 * cost.plain:.1f}" for cost in costs.values())])
    rows.append(["t_draft, ms", *(f"{1e3 * cost.draft:.1f}" for cost in costs.values())])
    rows.append(["target's share of a round", *(f"{100 * cost.forward_share:.0f} %" for cost in costs.values())])
    return head, rows


def main() -> None:
    from cpu_contestants import CONTESTANTS
    from cpu_figures import markdown
    from cpu_process import Pool
    from cpu_setup import look_up
    from dspine.demo import PROMPTS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("--drafter", default="smollm2-135m-dspine")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--context", type=int, default=CONTEXT)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--max-new-tokens", type=int, default=96, help="for the stages of a round")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    setup = look_up(args.target, args.drafter, list(PROMPTS.values()))
    facts = dict(setup.facts)
    of_dtype = {CONTESTANTS[name].weights: CONTESTANTS[name] for name in ("dspine", "dspine-bf16")}
    costs: dict[str, Cost] = {}
    for dtype in args.dtypes.split(","):
        for threads in map(int, args.threads.split(",")):
            with Pool(setup.places, {}) as pool:
                worker = pool.worker(of_dtype[dtype], threads)
                label = f"{dtype}, {threads} thread{'s' * (threads > 1)}"
                costs[label] = measure_cost(worker, setup.ids, args.max_new_tokens, args.context, args.repeats)
                facts |= pool.facts
    facts |= {"context": args.context, "repeats": args.repeats}
    print(markdown(*cost_rows(costs)))
    print(", ".join(f"{key} {value}" for key, value in facts.items()))
    if args.json is not None:
        report = {"facts": facts, "costs": {label: asdict(cost) for label, cost in costs.items()}}
        args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
