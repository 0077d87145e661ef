"""Trees grown from transitions, against all paths written out."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from dspine.drafter.transitions import Transitions
from dspine.drafter.tree import Tree, grown

PLACES, K = 4, 3


def transitions(seed: int, rows: int = 1, *, independent: bool = False) -> Transitions:
    generator = torch.Generator().manual_seed(seed)
    candidates = torch.stack([torch.randperm(100, generator=generator)[:K] for _ in range(rows * PLACES)])
    scores = torch.randn(rows, PLACES, 1 if independent else K, K, generator=generator)
    if not independent:
        scores[:, 0] = scores[:, 0, :1]  # the first place has one predecessor
    return Transitions(candidates.view(rows, PLACES, K), scores)


def chances(made: Transitions, row: int = 0) -> dict[tuple[int, ...], float]:
    """The drafter's own chance of every path, by its tokens."""
    law = made.scores[row].double().softmax(-1)
    found = {}
    for depth in range(1, PLACES + 1):
        for path in itertools.product(range(K), repeat=depth):
            before = (0, *path[:-1]) if made.scores.shape[2] > 1 else (0,) * depth
            chance = math.prod(float(law[t, i, j]) for t, (i, j) in enumerate(zip(before, path, strict=True)))
            found[tuple(int(made.candidates[row, t, j]) for t, j in enumerate(path))] = chance
    return found


def paths(tree: Tree) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        found.append((*(() if parent < 0 else found[parent]), token))
    return found


@pytest.mark.parametrize("independent", [False, True])
@pytest.mark.parametrize("size", [1, 2, 7, 20, 500])
def test_the_nodes_are_the_likeliest_paths(size: int, independent: bool) -> None:
    for seed in range(5):
        made = transitions(seed, independent=independent)
        [tree] = grown(made, [size], [PLACES])
        every = chances(made)
        best = sorted(every, key=lambda path: -every[path])[:size]
        assert sorted(paths(tree)) == sorted(best)
        assert tree.places == max(map(len, best))


def test_the_line_is_the_walk_and_comes_first() -> None:
    for seed in range(5):
        made = transitions(seed)
        [tree] = grown(made, [12], [PLACES])
        choice, walk = 0, []
        for place in range(PLACES):
            choice = int(made.scores[0, place, choice].argmax())
            walk.append(int(made.candidates[0, place, choice]))
        line = paths(tree)[: tree.line]
        assert line == [tuple(walk[: depth + 1]) for depth in range(tree.line)]
        assert tuple(walk[: tree.line + 1]) not in paths(tree)[tree.line :]
        assert all(parent < node for node, parent in enumerate(tree.parents))


def test_rows_have_sizes_and_depths_of_their_own() -> None:
    made = transitions(3, rows=4)
    trees = grown(made, [5, 0, 9, 30], [PLACES, PLACES, 0, 2])
    assert [len(tree.tokens) for tree in trees] == [5, 0, 0, K + K * K]
    assert [tree.places for tree in trees][1:] == [0, 0, 2]
    alone = Transitions(made.candidates[3:], made.scores[3:])
    assert grown(alone, [30], [2]) == trees[3:]
