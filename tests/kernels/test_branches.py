"""Side branches: where they stand and what they see, against the path of each written out."""

from __future__ import annotations

import pytest
import torch

from dspine.kernels.branches import branch_positions, branch_sight
from dspine.kernels.kv import Span

# line: 0 1 2; 3 follows 0, 4 follows 3, 5 follows 1, 6 follows 2, 7 follows 4
PARENTS = (0, 3, 1, 2, 4)
PATHS = ((0, 3), (0, 3, 4), (0, 1, 5), (0, 1, 2, 6), (0, 3, 4, 7))
START, LINE = 5, 3


def test_positions_go_by_what_is_followed() -> None:
    assert branch_positions(START, 8, PARENTS) == [5, 6, 7, 6, 7, 7, 8, 8]


@pytest.mark.parametrize("window", [None, 1, 3, 4, 6])
def test_a_branch_sees_its_path_and_nothing_beside_it(window: int | None) -> None:
    sight = branch_sight(START, LINE, PARENTS, 16, window)
    for row, path in zip(sight.tolist(), PATHS, strict=True):
        at = START + len(path) - 1
        # Position of each slot on the path; committed slots are positions.
        seen = {slot: slot for slot in range(START)} | {START + new: START + d for d, new in enumerate(path)}
        wanted = {slot for slot, position in seen.items() if window is None or position > at - window}
        assert {slot for slot, visible in enumerate(row) if visible} == wanted


def test_a_span_tells_slots_from_positions_and_masks_rows_apart() -> None:
    span = Span(0, (START, 2), 8, counts=(8, 2), parents=(PARENTS, ()))
    assert span.slots().tolist() == [[5, 6, 7, 8, 9, 10, 11, 12, 2, 3]]
    assert span.positions().tolist() == [[5, 6, 7, 6, 7, 7, 8, 8, 2, 3]]
    mask = span.even.causal_mask()
    assert mask is not None
    assert mask.shape == (2, 1, 8, 13)
    assert torch.equal(mask[0, 0, 3:], branch_sight(START, LINE, PARENTS, 13))
    assert mask[0, 0, :3].sum(1).tolist() == [6, 7, 8]
    assert mask[1, 0, :2].sum(1).tolist() == [3, 4]
    assert span.even.positions()[0].tolist() == span.positions()[0, :8].tolist()
    ragged = span.causal_mask()
    assert ragged is not None
    assert torch.equal(ragged[0], mask[0])
    assert torch.equal(ragged[1, :, :2], mask[1, :, :2])


def test_groups_of_rows_keep_their_own_branches() -> None:
    span = Span(0, (5, 5, 5), 8, parents=(PARENTS, (), PARENTS), counts=(8, 2, 8))
    assert [part.parents for part in span.groups(10)] == [(PARENTS, ()), (PARENTS,)]
