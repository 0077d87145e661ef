"""The real tau of a drafter in training, by the real engine, on prompts that it never saw.

One rule: tau = Σ kept / Σ rounds over all prompts, greedy, as everywhere in this project; DSpine is measured with the
last-write refinement (what is shipped) and without it (the ordinary output's argmax), which shows what the
injection's last write adds. Source: DSpine (arXiv 2609.36173), acceptance length; ablation "no refinement".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from dspine.decode.agreement import Agreement
from dspine.decode.engine import Engine
from dspine.decode.records import Completion, pooled_tau
from dspine.decode.sampling import SamplingParams
from dspine.drafter.dspine import DSpine
from dspine.drafter.proposal import Drafter, Proposal
from dspine.drafter.registry import Network
from dspine.kernels.kv import RowCache, Span
from dspine.kernels.law import Law
from dspine.target.model import Target
from dspine.train.agreement import first_places
from dspine.train.objectives.objective import Objective


class Unrefined:
    """A DSpine drafter that proposes its ordinary output's likeliest token at every place (greedy only)."""

    def __init__(self, drafter: DSpine) -> None:
        self._drafter = drafter

    @property
    def block_size(self) -> int:
        return self._drafter.block_size

    @property
    def candidates(self) -> int:
        return self._drafter.candidates

    @property
    def target_layer_ids(self) -> tuple[int, ...]:
        return self._drafter.target_layer_ids

    @property
    def max_positions(self) -> int:
        return self._drafter.max_positions

    @property
    def confident(self) -> bool:
        return False

    def new_cache(self, rows: int) -> RowCache:
        return self._drafter.new_cache(rows)

    def observe(self, cache: RowCache, span: Span, features: Tensor, counts: Sequence[int], tokens: Tensor) -> None:
        self._drafter.observe(cache, span, features, counts, tokens)

    def propose(self, cache: RowCache, first: int, anchors: Tensor, law: Law, uniforms: Tensor | None) -> Proposal:
        states = self._drafter.draft_block(cache, first, anchors)
        return Proposal(tokens=self._drafter.top_candidates(states.hidden)[..., 0])


@dataclass(frozen=True)
class Acceptance:
    """Held-out acceptance: tau, and without refinement (None where there is none), over prompts and rounds.

    first_place: whether generation and the training forward agree; None where it was not asked for.
    """

    tau: float
    tau_unrefined: float | None
    prompts: int
    rounds: int
    first_place: Agreement | None = None


def measure_tau(
    target: Target,
    drafter: Network,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    objective: Objective | None = None,
) -> Acceptance:
    """Answer the prompts (token ids) greedily, with the drafter as it stands.

    Args:
        objective: over this very drafter, whose training forward is then compared with the answers.
    """
    params = SamplingParams(temperature=0.0, max_new_tokens=max_new_tokens)
    with _measuring(drafter):
        refined = _answer(target, drafter, prompts, params)
        ordinary = None
        if isinstance(drafter, DSpine) and drafter.refines:
            ordinary = pooled_tau(_answer(target, Unrefined(drafter), prompts, params))
        agreement = None
        if objective is not None:
            agreement = first_places(target, objective, drafter.target_layer_ids, drafter.candidates, refined)
    return Acceptance(pooled_tau(refined), ordinary, len(prompts), sum(len(c.rounds) for c in refined), agreement)


def _answer(
    target: Target, drafter: Drafter, prompts: Sequence[Sequence[int]], params: SamplingParams
) -> list[Completion]:
    return Engine(target, drafter).generate([list(prompt) for prompt in prompts], params)


@contextmanager
def _measuring(drafter: Network) -> Iterator[None]:
    training = drafter.training
    drafter.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        drafter.train(training)
