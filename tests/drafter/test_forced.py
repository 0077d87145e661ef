"""Teacher forcing chooses what drafting chooses, where the tokens before a place are those that drafting chose."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.support.blocks import VOCAB
from tests.support.parallel import small
from tests.support.tiny_drafter import tiny_drafter
from tests.support.tiny_target import tiny_target

from dspine.drafter.states import BlockStates
from dspine.kernels.law import Law

GREEDY = Law.of([0.0] * 7, [0] * 7, [1.0] * 7, [0.0] * 7)
CASES: dict[str, dict[str, Any]] = {
    "dflash": {},
    "domino": {},
    "dspark": {},
    "dspark, gated": {"markov_head": "gated"},
    "dspark, rnn": {"markov_head": "rnn"},
    "dspark, tabulated": {"tabulated": 3},
    "dflash2": {},
}


@pytest.mark.parametrize("ids", [None, torch.arange(0, VOCAB, 3)], ids=["whole", "restricted"])
@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_a_selection_forced_by_its_own_choices(case: str, ids: torch.Tensor | None) -> None:
    drafter = small(case.split(",")[0], draft_ids=ids, **CASES[case])
    hidden = torch.randn(7, drafter.candidates, drafter.config.hidden_size, dtype=drafter.dtype)
    anchors = torch.randint(0, VOCAB, (7,))
    proposal = drafter.selection.select(hidden, anchors, GREEDY, None)
    assert torch.equal(drafter.selection.forced(hidden, proposal.predecessors(anchors)), proposal.tokens)
    if case != "dflash":
        other = torch.randint(0, VOCAB, proposal.tokens.shape)
        assert not torch.equal(drafter.selection.forced(hidden, other), proposal.tokens), "what came before has a say"


@pytest.mark.parametrize("switches", [{}, {"refined": False}, {"reach": 2}], ids=["paper", "unrefined", "reach"])
@torch.no_grad()
def test_dspine_forced_by_its_own_choices(switches: dict[str, Any]) -> None:
    drafter = tiny_drafter(tiny_target(), lively=True, **switches)
    places, width = drafter.candidates, drafter.config.hidden_size
    farther = torch.randn(7, places, drafter.config.message_size) if drafter.config.reach > 1 else None
    states = BlockStates(torch.randn(7, places, width), torch.randn(7, places, width), farther, [], [])
    anchors = torch.randint(0, 250, (7,))
    proposal = drafter._chosen(states, anchors, GREEDY, None)
    assert torch.equal(drafter.forced(states, proposal.predecessors(anchors)), proposal.tokens)
