"""Targets and drafters of 4 and 8 bits: the drafted answer is the plain one of the same rounded target."""

from __future__ import annotations

import pytest
import torch

from dspine.decode.sampling import SamplingParams
from dspine.errors import TargetError
from dspine.serve.mlx.engine import MlxEngine
from dspine.serve.mlx.loading import load_mlx_pair

GREEDY = SamplingParams(max_new_tokens=48)


@pytest.mark.parametrize(("bits", "drafter_bits"), [(4, 4), (8, 8), (None, 4), (8, None)])
def test_the_drafter_changes_no_token(asked, torch_pair, bits, drafter_bits):
    target, drafter = load_mlx_pair("nano", "nano", dtype=torch.float32, bits=bits, drafter_bits=drafter_bits)
    plain, drafted = (MlxEngine(target, one).generate(asked[:3], GREEDY) for one in (None, drafter))
    assert [c.token_ids for c in drafted] == [c.token_ids for c in plain]
    rounds = [r for c in drafted for r in c.rounds]
    assert sum(r.kept for r in rounds) / len(rounds) > 2  # rounded weights still draft
    assert hasattr(target.embedding, "scales") == (bits is not None)
    assert target.head_digest == torch_pair[0].head_digest


def test_bits_that_are_not_there_and_rounding_twice_are_refused(fresh):
    target = fresh()
    with pytest.raises(TargetError, match="3 bits"):
        target.quantise(3)
    target.quantise(8)
    with pytest.raises(TargetError, match="quantised already"):
        target.quantise(4)
