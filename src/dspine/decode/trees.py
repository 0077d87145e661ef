"""A round in which candidates are a tree a row.

One rule: it leaves what a round of lines leaves (`decode/lines.py`), but that the target's cache may hold less than
the anchor's position: keys of side branches were summed in another order, so what is between goes through the target
again, in line. What a tree is to the target is told in `decode/branching.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from dspine.decode.active import Active
from dspine.decode.branching import Block, along, ids_of, judged, span_of
from dspine.drafter.transitions import tabulating
from dspine.drafter.tree import Tree, grown
from dspine.stages import stage


def advance(active: Active, nodes: int | None) -> None:
    """Run one round.

    Args:
        nodes: of a row's tree, as far as its block holds nothing else behind the anchor's place; None: as many as the
            schedule says of candidates.
    """
    rows, known, held = active.rows, active.known, active.held
    starts = [row.position for row in rows]
    offers = active.offers.made(rows, known)
    found, seats = active.offers.followed(offers, active.seats)
    sizes = active.schedule.lengths(seats) if nodes is None else [nodes] * len(rows)
    drafted = _grow(active, known, sizes, [seat.room for seat in seats])
    trees = [Tree.in_line(tokens) if tokens else tree for tokens, tree in zip(found, drafted, strict=True)]
    blocks = [Block(*pair) for pair in zip(known, trees, strict=True)]
    with stage("verify/forward"):
        ids = ids_of(blocks, active.target.device)
        out = active.forward(ids, active.cache, span_of(blocks, held), active.taps)
    paths = judged(active.target, rows, active.mixture, out.hidden, blocks)
    with stage("commit/observe"):
        if out.features is not None:
            shown, features = along(paths, ids, out.features)
            asked = any(tree.tokens for tree in drafted)
            active.observe(shown, features, [len(path.steps) for path in paths], drafted=asked)
    with stage("commit/text"):
        for index, path in enumerate(paths):
            size, looked_up = len(drafted[index].tokens), bool(found[index])
            active.keep(index, held[index] + path.stands, path.ruling, path.places, size, looked_up=looked_up)
    if nodes is None:
        active.learn(seats, sizes, found, [path.ruling for path in paths])
    active.offers.learn(offers, rows, starts)


def _grow(active: Active, known: Sequence[Sequence[int]], sizes: Sequence[int], places: Sequence[int]) -> list[Tree]:
    """Draft a block a row, and make a tree of it.

    Args:
        known: of each row, the tokens that go through the target before its tree.
        sizes: nodes of each tree, less what is known behind the anchor's place.
        places: how many a tree may reach.
    """
    most, context = [size + 1 for size in sizes], active.context
    if active.target.alike is not None:  # more would go through in another order of summation
        most = [min(size, active.target.alike) for size in most]
    left = [max(0, size - len(tokens)) for size, tokens in zip(most, known, strict=True)]
    wanted = any(size and place for size, place in zip(left, places, strict=True))
    if not wanted or context is None or not tabulating(drafter := context.drafter):
        return [Tree()] * len(active.rows)
    context.catch_up(active.rows)
    transitions = drafter.transitions(context.cache, 0, active.anchors)
    with stage("draft/tree"):
        return grown(transitions, left, places)
