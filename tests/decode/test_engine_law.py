"""Sampling through whole rounds: where the target's law is always the same, so is what the engine emits.

`verify` alone is tested elsewhere; this is about its noise. Noise that repeats between rounds or requests, or that
drafting shares with the verdict, gives tokens of another frequency, or tokens that depend on each other.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from tests.support.tiny_target import tiny_target
from torch import Tensor

from dspine.decode.engine import Engine
from dspine.decode.sampling import SamplingParams
from dspine.drafter.proposal import Proposal
from dspine.kernels.kv import RowCache, Span
from dspine.kernels.law import Law, draw
from dspine.target.model import Target

PROMPT = tuple(b"x")
P = torch.tensor([0.35, 0.30, 0.20, 0.10, 0.05])  # of ids 0..4, at every position
Q = torch.tensor([0.10, 0.20, 0.40, 0.20, 0.10])
ROWS, LENGTH = 8, 300


class ConstantDrafter:
    """Draws every candidate from Q."""

    block_size, candidates, target_layer_ids, max_positions, confident = 5, 4, (0,), 1 << 20, False

    def new_cache(self, rows: int) -> RowCache:
        return RowCache(1, rows)

    def observe(self, cache: RowCache, span: Span, features: Tensor, counts: Sequence[int], tokens: Tensor) -> None:
        cache.reserve(span.limit)
        for index, (start, count) in enumerate(zip(span.starts, counts, strict=True)):
            cache.commit(span.first + index, start + count)

    def propose(self, cache: RowCache, first: int, anchors: Tensor, law: Law, uniforms: Tensor | None) -> Proposal:
        assert uniforms is not None
        probs = Q.expand(len(anchors), self.candidates, -1)
        return Proposal(draw(probs, uniforms), support=torch.arange(5).expand(probs.shape), probs=probs)


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Target:
    target = tiny_target(num_hidden_layers=2)
    row = torch.full((target.vocab_size,), -torch.inf)
    row[:5] = P.log()
    monkeypatch.setattr(target, "logits", lambda hidden: row.expand(*hidden.shape[:-1], -1).clone())
    return target


def chi_square(counts: Tensor, expected: Tensor) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize(
    ("drafted", "verify"),
    [(False, "full"), (True, "full"), (False, "full+lookup:1"), (True, "full+lookup:2"), (True, "3+lookup:1")],
)
def test_tokens_are_independent_draws_from_the_targets_law(target: Target, drafted: bool, verify: str) -> None:
    asked = [SamplingParams(temperature=1.0, seed=seed, max_new_tokens=LENGTH) for seed in range(ROWS)]
    got = Engine(target, ConstantDrafter() if drafted else None, verify=verify).generate([PROMPT] * ROWS, asked)
    tokens = torch.tensor([c.token_ids for c in got])  # (ROWS, LENGTH)
    pairs = P[:, None] * P

    single = torch.bincount(tokens.flatten(), minlength=5)
    assert chi_square(single, P * tokens.numel()) < 18.5  # df 4, 0.1 %
    for first, second in (
        (tokens[:, 0::2], tokens[:, 1::2]),  # neighbours
        (tokens[:, 0::5], tokens[:, 4::5]),  # a block apart
        (tokens[0::2], tokens[1::2]),  # the same position of two requests
    ):
        joint = torch.bincount((5 * first + second).flatten(), minlength=25).view(5, 5)
        assert chi_square(joint, pairs * first.numel()) < 51.2  # df 24, 0.1 %

    if "lookup" in verify:
        assert sum(r.accepted for c in got for r in c.rounds) > 100
    elif drafted:
        overlap = float(torch.minimum(P, Q).sum())
        rounds = [r for c in got for r in c.rounds if r.proposed == 4]
        expected = sum(overlap**place for place in range(1, 5))
        assert sum(r.accepted for r in rounds) / len(rounds) == pytest.approx(expected, abs=0.2)
