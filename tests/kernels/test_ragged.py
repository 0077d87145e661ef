"""Rows of different widths as one line of tokens, and back."""

from __future__ import annotations

import pytest
import torch

from dspine.kernels.ragged import Ragged


@pytest.mark.parametrize("counts", [(3, 1, 4, 2), (1, 4), (4, 4), (1,), (2, 2)])
def test_the_line_holds_the_rows_tokens_and_they_come_back_to_their_places(counts: tuple[int, ...]) -> None:
    layout = Ragged(counts, 4)
    x = torch.arange(len(counts) * 4 * 3).view(-1, 4, 3)
    line = layout.line(x)
    assert torch.equal(line, torch.cat([x[row, :count] for row, count in enumerate(counts)]))
    back = layout.rows(line)
    assert back.shape == x.shape
    for row, count in enumerate(counts):
        assert torch.equal(back[row, :count], x[row, :count])
        assert torch.equal(line[layout.row(row)], x[row, :count])
        assert layout.starts[row] == layout.row(row).start
    assert layout.even == (set(counts) == {4})


def test_filling_holds_no_number_that_was_not_there() -> None:
    """A NaN behind a row's end would spread through whatever multiplies it by 0."""
    layout = Ragged([1, 3], 3)
    assert not layout.rows(layout.line(torch.tensor([[1.0, torch.nan, torch.nan], [2.0, 3.0, 4.0]]))).isnan().any()


def test_rows_that_fill_the_rectangle_are_not_copied() -> None:
    layout, x = Ragged([2, 2], 2), torch.randn(2, 2, 3)
    assert layout.line(x).data_ptr() == x.data_ptr()
    assert layout.rows(layout.line(x)).data_ptr() == x.data_ptr()


def test_some_of_the_rows() -> None:
    part = Ragged([3, 1, 2], 3).part([2, 0])
    assert (part.counts, part.starts, part.width) == ([2, 3], [0, 2], 3)
