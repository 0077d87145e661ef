"""Side branches of a row: tokens that follow one of the row's new tokens, beside the line that the others are.

One rule: a side branch stands at the position behind what it follows and sees that path alone, back to the committed
tokens; the slot that it lies in says nothing. So a tree of candidates goes through one forward, and what is in line is
computed as if there were no branches. Source: the ancestor masks of tree verification (SpecInfer, arXiv 2305.09781;
EAGLE, arXiv 2401.15077), over the cache of DSpine's rounds.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def branch_positions(start: int, count: int, parents: Sequence[int]) -> list[int]:
    """Absolute position of each of a row's `count` new tokens, the last of which are side branches.

    Args:
        start: of the first.
        parents: the place, among the new tokens, of what each side branch follows; always an earlier one.
    """
    line = count - len(parents)
    positions = list(range(start, start + line))
    for parent in parents:
        positions.append(positions[parent] + 1)
    return positions


def branch_sight(start: int, line: int, parents: Sequence[int], limit: int, window: int | None = None) -> Tensor:
    """Which slots the side branches of a row see: bool (n, limit), True = visible.

    Args:
        start: slot and position of the row's first new token.
        line: new tokens in line; side branch j lies in slot start + line + j.
        parents: as in `branch_positions`.
        limit: slots.
        window: how many positions a token sees, itself included; None: all.
    """
    positions = branch_positions(start, line + len(parents), parents)
    sight = torch.zeros(len(parents), limit, dtype=torch.bool)
    for index, parent in enumerate(parents):
        if parent < line:  # it follows the line: the committed tokens, and the line as far as there
            sight[index, : start + parent + 1] = True
        else:
            sight[index] = sight[parent - line]
        sight[index, start + line + index] = True
    if window is not None:
        where = torch.arange(limit)
        where[start : start + len(positions)] = torch.tensor(positions)
        own = torch.tensor(positions[line:])
        sight &= where > own[:, None] - window
    return sight
