"""Parts of a proposal: every field follows, none is lost."""

from __future__ import annotations

import torch

from dspine.drafter import Proposal


def test_rows_and_places_take_every_field_along():
    whole = Proposal(
        tokens=torch.arange(6).view(2, 3),
        support=torch.arange(12).view(2, 3, 2),
        probs=torch.rand(2, 3, 2),
        confidence=torch.rand(2, 3),
    )
    for part, pick in ((whole.rows([1]), lambda t: t[[1]]), (whole.places(2), lambda t: t[:, :2])):
        for name in ("tokens", "support", "probs", "confidence"):
            assert torch.equal(getattr(part, name), pick(getattr(whole, name)))


def test_fields_that_are_not_there_stay_away():
    part = Proposal(torch.arange(6).view(2, 3)).places(1)
    assert part.tokens.tolist() == [[0], [3]]
    assert part.support is part.probs is part.confidence is None
