"""The optional confidence head of every drafter: admissible, off unless asked for, beside the rest of the network."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.support.parallel import OWN, over
from tests.support.tiny_drafter import tiny_drafter
from tests.support.tiny_target import tiny_target

from dspine.decode.sampling import SamplingParams, law_of
from dspine.drafter.proposal import Proposal
from dspine.drafter.registry import KINDS, Network
from dspine.kernels.kv import Span
from dspine.target.model import Target

CASES: dict[str, dict[str, Any]] = {
    "dspine": {},
    "dspine, unrefined": {"refined": False},
    "dflash": {},
    "domino": {},
    "dspark": {},
    "dflash2": {},
    "eagle3": {},
}
ROWS, SEEN = 3, 4


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target(num_hidden_layers=4, dtype=torch.float64)


def made(target: Target, case: str, **sizes: Any) -> Network:
    kind = case.split(",")[0]
    if kind == "dspine":
        drafter = tiny_drafter(
            target, lively=True, target_layer_ids=(0, 2), dtype=torch.float64, block_size=6, **CASES[case], **sizes
        )
        return drafter.eval().requires_grad_(False)
    return over(target, kind, **{**OWN[kind], "block_size": 6, **sizes})


@torch.no_grad()
def propose(drafter: Network, uniforms: torch.Tensor) -> Proposal:
    torch.manual_seed(3)
    features = torch.randn(ROWS, SEEN, drafter.config.feature_size, dtype=drafter.dtype)
    cache = drafter.new_cache(ROWS)
    tokens = torch.arange(ROWS * SEEN).view(ROWS, SEEN)
    drafter.observe(cache, Span(0, (0,) * ROWS, SEEN), features, (SEEN,) * ROWS, tokens)
    law = law_of([SamplingParams(temperature=5.0)] * ROWS)
    return drafter.propose(cache, 0, torch.tensor([5, 6, 7]), law, uniforms)


@pytest.mark.parametrize("case", CASES)
def test_it_knows_the_tokens_before_a_place_and_not_the_one_at_it(target: Target, case: str) -> None:
    drafter = made(target, case, confidence=True)
    assert drafter.confident
    places = drafter.candidates
    torch.manual_seed(1)
    uniforms = torch.rand(ROWS, places)
    first = propose(drafter, uniforms)
    assert first.confidence is not None
    assert first.confidence.shape == (ROWS, places)
    assert bool(((first.confidence > 0) & (first.confidence < 1)).all())
    heard = False
    for place in range(places):
        other = uniforms.clone()
        other[:, place] = (other[:, place] + 0.5) % 1
        second = propose(drafter, other)
        changed = second.tokens[:, place] != first.tokens[:, place]
        assert bool(changed.any())
        assert torch.equal(first.tokens[:, :place], second.tokens[:, :place])
        assert torch.equal(first.confidence[:, : place + 1], second.confidence[:, : place + 1])
        heard |= place + 1 < places and bool((first.confidence != second.confidence)[changed, place + 1].any())
    assert heard or case == "dspine, unrefined"  # whose rows know no chosen token


@pytest.mark.parametrize("case", CASES)
def test_it_is_off_unless_asked_for_and_changes_nothing_else(target: Target, case: str) -> None:
    kind = case.split(",")[0]
    off = {} if kind != "dspark" else {"confidence": False}
    without, beside = made(target, case, **off), made(target, case, confidence=True)
    assert not without.confident
    assert KINDS[kind].config().confidence == (kind == "dspark")
    names = {name for name, _ in without.named_parameters()}
    added = {name.removeprefix("selection.") for name, _ in beside.named_parameters() if name not in names}
    assert added == {"confidence_head.proj.weight", "confidence_head.proj.bias"}
    beside.load_state_dict(without.state_dict(), strict=False)
    uniforms = torch.rand(ROWS, without.candidates, generator=torch.Generator().manual_seed(2))
    one, other = propose(without, uniforms), propose(beside, uniforms)
    assert one.confidence is None
    assert torch.equal(one.tokens, other.tokens)
    assert one.probs is not None
    assert torch.equal(one.probs, other.probs)


@pytest.mark.parametrize("kind", ["dspine", "dflash", "eagle3"])
def test_untrained_weights_are_the_same_with_it(target: Target, kind: str) -> None:
    """The head is made last, so the same seed begins with the same drafter."""
    states = []
    for confidence in (False, True):
        overrides = {"num_hidden_layers": 1 if kind == "eagle3" else 2, "target_layer_ids": (0, 2)}
        config = KINDS[kind].config.for_target(target.facts, 319, confidence=confidence, **overrides)
        torch.manual_seed(0)
        states.append(KINDS[kind].build(config, target.embedding, target.head_weight.detach(), None).state_dict())
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
