"""nano in torch and in MLX on the same processor: proposals, rounds and tokens a second.

    .venv-mlx/bin/python bench/nano_mlx.py            # after make test-mlx

For information: MLX is made for Apple's GPUs, and nobody would serve with its CPU kernels. Runs are interleaved: every
contestant drafts and answers a prompt before anybody sees the next. A proposal is one block behind the prompt, drafted
again and again; rounds and tokens are those of an answer, over its time with the prefill. "uncompiled" is MLX without
`mx.compile`. On a CPU time is what the processor worked for this process, which other programs do not lengthen.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter, process_time

import dspine  # noqa: F401  sets the threads before torch is imported

# isort: split
import mlx.core as mx
import torch
from rich.console import Console
from rich.table import Table

from dspine.checkpoint import load_drafter
from dspine.decode.engine import Engine
from dspine.decode.records import Completion
from dspine.decode.sampling import SamplingParams
from dspine.kernels.kv import Span
from dspine.kernels.law import Law as TorchLaw
from dspine.serve.mlx.engine import MlxEngine
from dspine.serve.mlx.law import Law
from dspine.serve.mlx.loading import load_mlx_pair
from dspine.target import load_target
from dspine.target.chat import render
from dspine.train.nano.corpus import prompts

CLOCK = process_time if mx.default_device() == mx.Device(mx.cpu) else perf_counter


@dataclass
class Contestant:
    """propose: makes a function that drafts one block behind a prompt. generate: answers a prompt."""

    name: str
    propose: Callable[[list[int]], Callable[[], object]]
    generate: Callable[[list[int]], Completion]
    compiled: bool = True
    proposals: list[float] = field(default_factory=list)
    rounds: list[float] = field(default_factory=list)
    tokens: list[float] = field(default_factory=list)

    def turn(self, prompt: list[int], repeats: int) -> Completion:
        """Draft and answer a prompt, and keep the rates."""
        (mx.enable_compile if self.compiled else mx.disable_compile)()
        draft = self.propose(prompt)
        draft()
        start = CLOCK()
        for _ in range(repeats):
            draft()
        self.proposals.append(repeats / (CLOCK() - start))
        start = CLOCK()
        completion = self.generate(prompt)
        seconds = CLOCK() - start
        self.rounds.append(len(completion.rounds) / seconds)
        self.tokens.append(len(completion.token_ids) / seconds)
        return completion


def torch_contestants(params: SamplingParams) -> list[Contestant]:
    target = load_target("nano", dtype=torch.float32)
    drafter = load_drafter("nano", target)

    @torch.inference_mode()
    def propose(prompt: list[int]) -> Callable[[], object]:
        ids, span = torch.tensor([prompt]), Span(0, (0,), len(prompt))
        features = target.forward(ids, target.new_cache(1), span, drafter.target_layer_ids).features
        assert features is not None
        cache, law = drafter.new_cache(1), TorchLaw.greedy_rows(1)
        drafter.observe(cache, span, features, (len(prompt),), ids)
        return torch.inference_mode()(lambda: drafter.propose(cache, 0, ids[:, -1], law, None))

    return [
        Contestant("torch", propose, lambda p: Engine(target, drafter, max_batch=1).generate([p], params)[0]),
        Contestant("torch, no drafter", propose, lambda p: Engine(target, max_batch=1).generate([p], params)[0]),
    ]


def mlx_contestants(params: SamplingParams) -> list[Contestant]:
    target, drafter = load_mlx_pair("nano", "nano", dtype=torch.float32)
    assert drafter is not None

    def propose(prompt: list[int]) -> Callable[[], object]:
        ids = mx.array(prompt)
        _, features = target.forward(ids, target.new_caches(), drafter.target_layer_ids)
        context = drafter.new_context()
        drafter.observe(context, features)
        return lambda: mx.eval(drafter.propose(context, ids[-1:], Law(), None).tokens)

    def drafted(prompt: list[int]) -> Completion:
        return MlxEngine(target, drafter).generate([prompt], params)[0]

    return [
        Contestant("mlx", propose, drafted),
        Contestant("mlx, uncompiled", propose, drafted, compiled=False),
        Contestant("mlx, no drafter", propose, lambda p: MlxEngine(target).generate([p], params)[0]),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    params = SamplingParams(max_new_tokens=args.max_new_tokens)
    contestants = [*torch_contestants(params), *mlx_contestants(params)]
    target = load_target("nano", dtype=torch.float32)
    asked = [render(target, row["messages"]) for row in prompts(21, args.prompts + 1)]
    for contestant in contestants:  # to warm up, on a prompt that does not count
        contestant.turn(asked[0], 1)
        contestant.proposals, contestant.rounds, contestant.tokens = [], [], []
    for prompt in asked[1:]:
        answers = {contestant.turn(prompt, args.repeats).token_ids for contestant in contestants}
        assert len(answers) == 1, "the contestants do not say the same"

    table = Table("contestant", "proposals/s", "rounds/s", "tokens/s", title="nano, float32, median of prompts")
    rows = []
    for c in contestants:
        proposals, rounds, tokens = (statistics.median(rates) for rates in (c.proposals, c.rounds, c.tokens))
        drafts = "-" if "no drafter" in c.name else f"{proposals:.0f}"
        table.add_row(c.name, drafts, f"{rounds:.0f}", f"{tokens:.0f}")
        rows.append({"contestant": c.name, "proposals": proposals, "rounds": rounds, "tokens": tokens})
    facts = {
        "device": str(mx.default_device()),
        "clock": CLOCK.__name__,
        "mlx": mx.__version__,
        "torch": torch.__version__,
    }
    facts |= {"threads": torch.get_num_threads(), "prompts": args.prompts, "max_new_tokens": args.max_new_tokens}
    Console().print(table, facts)
    if args.json is not None:
        args.json.write_text(json.dumps({"facts": facts, "rates": rows}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
