"""A tree of candidates, grown from one block's transitions.

One rule: the nodes are the likeliest paths by the drafter's own law, so no network runs for a branch: a block that was
drafted in one pass knows what it would say after every candidate. What is likeliest after what is likeliest, from the
anchor on, is the tree's line, the walk of greedy drafting. Sources: the transition cache of DSpine (arXiv 2609.36173);
growth by the probability of the path as in EAGLE-2 (arXiv 2406.16858).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dspine.drafter.transitions import Transitions


@dataclass(frozen=True)
class Tree:
    """Candidates of one row's round.

    tokens: of the nodes, the line first, then the side branches, each behind what it follows.
    parents: the node that each follows; -1: the anchor.
    line: nodes in line.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    line: int = 0

    @classmethod
    def in_line(cls, tokens: Sequence[int]) -> Tree:
        """The tree that has no side branch."""
        return cls(tuple(tokens), tuple(range(-1, len(tokens) - 1)), len(tokens))

    @property
    def places(self) -> int:
        """Places that the deepest path reaches."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return max(depths, default=0)


def grown(transitions: Transitions, sizes: Sequence[int], places: Sequence[int]) -> list[Tree]:
    """A tree a row, of the likeliest nodes.

    Args:
        transitions: of B rows.
        sizes: the most nodes of each row's tree.
        places: how many places it may reach.
    """
    law = torch.log_softmax(transitions.scores.float(), dim=-1)
    best, order = (-law).sort(dim=-1, stable=True)
    tables = zip(best.tolist(), order.tolist(), transitions.candidates.tolist(), strict=True)
    return [_grown(*table, size, place) for table, size, place in zip(tables, sizes, places, strict=True)]


def _grown(
    costs: list[list[list[float]]], order: list[list[list[int]]], candidates: list[list[int]], size: int, places: int
) -> Tree:
    """The tree of one row.

    Args:
        costs: [t][i] is what each of the K candidates at place t costs after predecessor i, cheapest first.
        order: [t][i] is which candidates they are.
    """
    if not size or not places:
        return Tree()
    nodes: list[tuple[int, int, bool]] = []  # parent, token, whether it is in line
    # Cost of the path, of the path before it; place; row of the table; rank in it; parent; whether that is in line.
    open_ends = [(costs[0][0][0], 0.0, 0, 0, 0, -1, True)]
    while open_ends and len(nodes) < size:
        cost, before, place, row, rank, parent, in_line = heapq.heappop(open_ends)
        choice = order[place][row][rank]
        inside = in_line and rank == 0
        nodes.append((parent, candidates[place][choice], inside))
        if rank + 1 < len(costs[place][row]):
            sibling = before + costs[place][row][rank + 1]
            heapq.heappush(open_ends, (sibling, before, place, row, rank + 1, parent, in_line))
        if place + 1 < places:
            after = 0 if len(costs[place + 1]) == 1 else choice
            child = cost + costs[place + 1][after][0]
            heapq.heappush(open_ends, (child, cost, place + 1, after, 0, len(nodes) - 1, inside))
    return _arranged(nodes)


def _arranged(nodes: list[tuple[int, int, bool]]) -> Tree:
    """The nodes with the line first; their order is kept otherwise, in which each stands behind its parent."""
    order = sorted(range(len(nodes)), key=lambda index: not nodes[index][2])
    moved = {index: at for at, index in enumerate(order)} | {-1: -1}
    return Tree(
        tokens=tuple(nodes[index][1] for index in order),
        parents=tuple(moved[nodes[index][0]] for index in order),
        line=sum(inside for _, _, inside in nodes),
    )
