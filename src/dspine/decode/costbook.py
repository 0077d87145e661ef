"""Cost tables: measured on this machine, kept in the user's cache folder.

One rule: what a table was measured on is its name. Target, drafter, number format, device, kernels, threads and
versions make up the file's digest, so a table is never taken for another set-up's. A count of rows that is not in it is
measured when it is first asked for, in about a second for a small model. What was measured on a machine that was too
busy to be believed serves this process only.

    <cache folder>/costs/<digest>.json
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import transformers
from torch import nn

from dspine import __version__
from dspine.cache_folder import cache_root
from dspine.decode.cost import Costs, Runs
from dspine.drafter.captured import CapturedDraft
from dspine.drafter.proposal import Drafter, Fusable
from dspine.kernels.kv import Span
from dspine.kernels.law import Law, likeliest
from dspine.kernels.ragged import Ragged
from dspine.stages import stage
from dspine.target.captured import CapturedForward
from dspine.target.model import Forward, Target

CONTEXT = 64  # tokens before the block; a longer context makes plain and drafted rounds dearer alike
RUNS = 3  # of each size at least, in turn, so that a disturbance meets all sizes
LIMIT_S = 2.0  # no further run after so many seconds
DRAFT, WIDE = 0.0, -1.0  # sizes of no block: stand among the sizes for drafting, and for one wide row among others
KEPT = 2  # tokens a row that a drafted round shows the drafter: part of what drafting costs
STEADY = 1.1  # the two quickest runs of a size may differ by so much


class CostBook:
    """What rounds of a target and its drafter cost here.

    Args:
        target, drafter: the models.
        capacity: most rows of a batch.
        anew: measure again what the cache folder already knows.
        forward: how the target goes over blocks; None: `target.forward`.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        *,
        capacity: int,
        anew: bool = False,
        forward: Forward | None = None,
    ) -> None:
        self._target = target
        self._drafter = drafter
        self._forward = forward or target.forward
        self._capacity = capacity
        self.facts = facts_of(target, drafter, self._forward)
        self.file = cache_root() / "costs" / f"{_digest(self.facts)}.json"
        self._costs = replace(Costs() if anew else _read(self.file), ragged=target.ragged)
        self._keep = True

    @property
    def kept(self) -> bool:
        """Whether what was measured was steady enough to be kept for other processes."""
        return self._keep

    def covering(self, rows: int) -> Costs:
        """The table, with `rows` rows in it: measured now if nobody did before."""
        if self._costs.covers(rows):
            return self._costs
        return self.measured(min(1 << (rows - 1).bit_length(), self._capacity))  # powers of two: each covers its half

    def measured(self, rows: int) -> Costs:
        """The table, with exactly `rows` rows measured now."""
        with stage("measure"):
            runs = measure(self._target, self._drafter, rows, self._forward)
        self._costs = self._costs.extended(rows, runs)
        self._keep = self._keep and all(map(steady, runs.each))
        if self._keep:
            _write(self.file, {"facts": self.facts, **self._costs.numbers()})
        return self._costs


@torch.inference_mode()
def measure(target: Target, drafter: Drafter, rows: int, forward: Forward | None = None) -> Runs:
    """Seconds of verifying blocks of several widths and of drafting a block.

    The caches are its own and are gone afterwards; nothing else is touched.
    """
    forward = forward or target.forward
    block, taps, device = drafter.block_size, drafter.target_layer_ids, target.device
    before = max(1, min(CONTEXT, target.context_limit - block, drafter.max_positions - block))
    cache, context = target.new_cache(rows), drafter.new_cache(rows)
    ids = torch.arange(rows * max(block, before), device=device).remainder(target.decodable).view(rows, -1)
    blank = torch.zeros(rows, before, len(taps) * target.hidden_size, dtype=target.dtype, device=device)
    drafter.observe(context, Span(0, (0,) * rows, before), blank, [before] * rows, ids[:, :before])
    if target.stateful:  # a state cannot begin in the middle; slots can
        target.forward(ids[:, :before], cache, Span(0, (0,) * rows, before, whole=True))
    law, kept = Law.greedy_rows(rows, device), min(KEPT, before)

    def verify(counts: Sequence[int]) -> None:
        span = Span.of(0, (before,) * rows, counts)
        hidden = forward(ids[:, : span.width], cache, span, taps).hidden
        line = Ragged(span.each, span.width, device).line(hidden)
        likeliest(target.logits(line)).tolist()  # on the host: what an accelerator has queued is done then

    def draft() -> None:
        drafter.propose(context, 0, ids[:, 0], law, None).tokens.tolist()
        drafter.observe(context, Span(0, (before,) * rows, kept), blank[:, :kept], [kept] * rows, ids[:, :kept])
        for row in range(rows):
            context.commit(row, before)

    works: dict[float, Callable[[], None]] = {
        width: partial(verify, evenly(round(rows * width), rows)) for width in widths(rows, block, target.alike)
    }
    works[DRAFT] = draft
    if target.ragged and rows > 1:
        works[WIDE] = partial(verify, [1] * (rows - 1) + [block])
    for work in works.values():  # pays for set-up, and does not count
        _seconds(work)
    times = {float(size): list[float]() for size in works}
    deadline = perf_counter() + LIMIT_S
    while not times[DRAFT] or (_wanting(times.values()) and perf_counter() < deadline):
        for size, work in works.items():
            times[size].append(_seconds(work))
    drafts, wide = times.pop(DRAFT), times.pop(WIDE, [])
    return Runs(times, drafts, wide)


def evenly(tokens: int, rows: int) -> list[int]:
    """Tokens of each row, where they are as many as can be alike."""
    return [tokens // rows + (row < tokens % rows) for row in range(rows)]


def steady(runs: Sequence[float]) -> bool:
    """Whether the quickest run can be believed: another one was about as quick."""
    quickest = sorted(runs)[:2]
    return len(quickest) == 2 and quickest[1] <= STEADY * quickest[0]


def _wanting(times: Iterable[Sequence[float]]) -> bool:
    """Whether more runs are needed."""
    return any(len(runs) < RUNS or not steady(runs) for runs in times)


def widths(rows: int, block: int, piece: int | None = None) -> list[float]:
    """Tokens a row to measure: powers of two, the whole block, and where a forward of so many rows jumps in cost.

    Args:
        piece: most tokens that go through the target in one piece, see `Target.alike`; None: all do.
    """
    powers = [1 << power for power in range(block.bit_length()) if 1 << power <= block]
    edges = range(piece, rows * block, piece) if piece else ()
    jumps = (tokens / rows for edge in edges for tokens in (edge, edge + 1) if edge >= rows)
    return sorted({*map(float, powers), float(block), *jumps})


def facts_of(target: Target, drafter: Drafter, forward: Forward | None = None) -> dict[str, Any]:
    """What the costs of a target and its drafter depend on."""
    device = target.device
    network = drafter.network if isinstance(drafter, CapturedDraft) else drafter
    recorded = {"draft": network is not drafter, "forward": isinstance(forward, CapturedForward)}
    # The module of one of them tells the definitions, the CPU's and the GPU's kernels apart.
    kernels = network.kernels.walk.__module__ if isinstance(network, Fusable) else None
    return {
        "head_digest": target.head_digest,
        "target_modules": _modules(target.model),
        "dtype": str(target.dtype),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "host": platform.node(),
        "processor": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "drafter_modules": _modules(network),
        "drafter_kernels": kernels,
        "drafter_taps": list(drafter.target_layer_ids),
        "block_size": drafter.block_size,
        "context": CONTEXT,
        "kept": KEPT,
        "piece": target.alike,
        "versions": {"dspine": __version__, "torch": torch.__version__, "transformers": transformers.__version__},
    } | ({"recorded": recorded} if any(recorded.values()) else {})


def _modules(network: object) -> dict[str, Any]:
    """Kinds of layers and how many, and the parameters' bytes: other weights' layouts have other costs."""
    if not isinstance(network, nn.Module):
        return {"kind": type(network).__name__}
    kinds = Counter(type(module).__name__ for module in network.modules())
    return {
        "kinds": dict(sorted(kinds.items())),
        "bytes": sum(p.numel() * p.element_size() for p in network.parameters()),
    }


def _digest(facts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _seconds(work: Callable[[], None]) -> float:
    start = perf_counter()
    work()
    return perf_counter() - start


def _read(file: Path) -> Costs:
    """The table of a file; an empty one if there is none, or none that makes sense: it is measured again then."""
    try:
        return Costs.from_numbers(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Costs()


def _write(file: Path, content: dict[str, Any]) -> None:
    # A cache folder that cannot be written is no fault: the next process measures again.
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        aside = file.with_name(f".{file.name}.{os.getpid()}")
        aside.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        os.replace(aside, file)
