"""Who takes part in `cpu.py`, and the settings among which each may choose its best.

One rule: what a rival offers to be tuned with is tuned, on prompts that are not measured; nobody runs at a default
that slows it down on a small CPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

LOOKUP_TOKENS = (3, 5, 10)
# No smaller model with this tokenizer is at hand, so transformers drafts with the target's own lower layers; none of
# its layers was trained to be read out, which is why nothing lower than this ever matches.
EARLY_EXITS = ((20, 1), (24, 1), (24, 3))
VERIFY = ("full", "tree:4", "tree:4+lookup", "tree:6+lookup")


@dataclass(frozen=True)
class Contestant:
    """One way to decode.

    kind: which class of `cpu_worker.py` runs it.
    weights: "float32", "bfloat16", "F32" or "Q4_1" (the latter two are GGUF files).
    options: what the worker is told with every prompt, one a variant.
    """

    name: str
    kind: str
    weights: str
    options: tuple[Mapping[str, Any], ...] = field(default=({},))


@dataclass(frozen=True)
class Setting:
    """A contestant at one thread count with one variant of its options."""

    contestant: Contestant
    threads: int
    options: Mapping[str, Any]

    @property
    def label(self) -> str:
        said = "".join(f", {key} {value}" for key, value in self.options.items() if not isinstance(value, bool))
        return f"{self.threads} thread{'s' * (self.threads > 1)}{said}"


def settings(contestant: Contestant, threads: Sequence[int]) -> list[Setting]:
    """Everything that a contestant may run at."""
    return [Setting(contestant, count, options) for count in threads for options in contestant.options]


def _dspine(name: str, weights: str, drafted: bool) -> Contestant:
    return Contestant(name, "dspine", weights, tuple({"verify": word} for word in VERIFY) if drafted else ({},))


def _transformers(weights: str, suffix: str) -> list[Contestant]:
    lookup = tuple({"prompt_lookup_num_tokens": count} for count in LOOKUP_TOKENS)
    assisted = tuple({"assistant_early_exit": exit_at, "num_assistant_tokens": n} for exit_at, n in EARLY_EXITS)
    return [
        Contestant(f"transformers{suffix}", "transformers", weights),
        Contestant(f"transformers-lookup{suffix}", "transformers", weights, lookup),
        Contestant(f"transformers-assisted{suffix}", "transformers", weights, assisted),
    ]


_ALL = [
    _dspine("dspine", "float32", drafted=True),
    _dspine("dspine-plain", "float32", drafted=False),
    *_transformers("float32", ""),
    Contestant("llama.cpp-F32", "llama.cpp", "F32"),
    Contestant("llama.cpp-Q4_1", "llama.cpp", "Q4_1"),
    _dspine("dspine-bf16", "bfloat16", drafted=True),
    _dspine("dspine-plain-bf16", "bfloat16", drafted=False),
    *_transformers("bfloat16", "-bf16"),
]
CONTESTANTS = {contestant.name: contestant for contestant in _ALL}
DEFAULT = tuple(name for name in CONTESTANTS if "bf16" not in name)
# Drafted contestants, and the plain path of the same engine and weights.
PLAIN_OF = {"dspine": "dspine-plain", "dspine-bf16": "dspine-plain-bf16"}
