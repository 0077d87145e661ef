"""EAGLE-3 in the engine: its chains in ragged rounds are those of a sequence drafted from nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch
from tests.support.oracle import OracleCache, OracleDrafter, features_of, oracle
from tests.support.parallel import over
from tests.support.tiny_target import tiny_target
from torch import Tensor

from dspine.decode.engine import Engine
from dspine.decode.sampling import SamplingParams
from dspine.drafter.eagle3 import Eagle3
from dspine.drafter.proposal import Proposal
from dspine.kernels.kv import RowCache, Span
from dspine.kernels.law import Law
from dspine.target.model import Target

PROMPTS = [tuple(b"a prompt"), tuple(b"another, somewhat longer prompt"), tuple(b"3")]
SCRIPTS = [(3, 0, 5, 1), (0, 0, 4), (5, 2, 1, 0, 3)]
TAPS = (0, 1, 2)


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target(dtype=torch.float64, num_hidden_layers=4)


class Twin(OracleCache):
    """The oracle's notes and the real drafter's cache, moved together."""

    def __init__(self, real: RowCache) -> None:
        super().__init__(real.rows)
        self.real = real

    def move(self, source: int, target: int) -> None:
        super().move(source, target)
        self.real.move(source, target)


@dataclass
class Scripted:
    """Drafts with EAGLE-3 in every round and notes it, but proposes what the oracle says: so accept lengths vary."""

    eagle: Eagle3
    oracle: OracleDrafter
    chains: list[tuple[int, int, list[int]]] = field(default_factory=list)  # anchor's position, anchor, candidates

    def __getattr__(self, name: str) -> object:
        return getattr(self.eagle, name)  # sizes

    def new_cache(self, rows: int) -> Twin:
        return Twin(self.eagle.new_cache(rows))

    def observe(self, cache: Twin, span: Span, features: Tensor, counts: Sequence[int], tokens: Tensor) -> None:
        self.oracle.observe(cache, span, features, counts, tokens)
        self.eagle.observe(cache.real, span, features, counts, tokens)

    def propose(self, cache: Twin, first: int, anchors: Tensor, law: Law, uniforms: Tensor | None) -> Proposal:
        drafted = self.eagle.propose(cache.real, first, anchors, law, uniforms).tokens.tolist()
        for row, (anchor, candidates) in enumerate(zip(anchors.tolist(), drafted, strict=True)):
            self.chains.append((cache.lengths[first + row], anchor, candidates))
        return self.oracle.propose(cache, first, anchors, law, uniforms)


def drafted_from_nothing(eagle: Eagle3, features: Tensor, tokens: list[int], anchor: int) -> list[int]:
    """The greedy candidates behind position `anchor` of a sequence, from its features before it."""
    candidates: list[int] = []
    for step in range(eagle.candidates):
        ids = torch.tensor([tokens[: anchor + 1] + candidates])
        shown = torch.zeros(1, ids.shape[1], features.shape[1], dtype=features.dtype)
        shown[0, :anchor] = features[:anchor]
        state = eagle.unroll(shown, ids, step + 1)[step, 0, anchor - 1]
        candidates.append(int(eagle.logits(state).argmax()))
    return candidates


@pytest.mark.parametrize("chunk", [4, 256])
def test_the_engines_chains_are_those_of_the_sequence(target: Target, chunk: int) -> None:
    eagle = over(target, "eagle3", target_layer_ids=TAPS, block_size=6)
    knowing = oracle(target, PROMPTS, SCRIPTS, block_size=6, taps=TAPS)
    drafter = Scripted(eagle, knowing)
    asked = [SamplingParams(max_new_tokens=cap) for cap in (24, 9, 20)]
    got = Engine(target, drafter, max_batch=2, prefill_chunk=chunk).generate(PROMPTS, asked)
    compared, distinct = 0, set()
    for completion in got:
        tokens = [*completion.prompt_ids, *completion.token_ids]
        features = features_of(target, tokens, TAPS)
        position = len(completion.prompt_ids)
        for record in completion.rounds:
            if record.proposed:
                expected = drafted_from_nothing(eagle, features, tokens, position)
                assert (position, tokens[position], expected) in drafter.chains
                distinct.add(tuple(expected))
                compared += 1
            position += record.kept
    assert compared > 15
    assert len(distinct) > compared // 2
