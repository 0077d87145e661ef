"""A tree through the target in one forward, against each of its paths alone."""

from __future__ import annotations

import pytest
import torch
from tests.support.hybrid_target import hybrid_target
from tests.support.tiny_target import tiny_target

from dspine.errors import TargetError
from dspine.kernels.kv import Span
from dspine.target.model import Target

PROMPTS = ([11, 50, 3, 90, 7, 23, 42], [8, 9, 10, 60])
TREES = ([5, 80, 31, 12, 44, 99, 70, 18], [61, 62, 63])  # of three known tokens, the line goes on by none, or one
PARENTS = ((0, 3, 1, 2, 4), (0,))
PATHS = (
    {0: (0,), 1: (0, 1), 2: (0, 1, 2), 3: (0, 3), 4: (0, 3, 4), 5: (0, 1, 5), 6: (0, 1, 2, 6), 7: (0, 3, 4, 7)},
    {0: (0,), 1: (0, 1), 2: (0, 2)},
)
KINDS = {
    "qwen3": lambda: tiny_target(dtype=torch.float64),
    "llama": lambda: tiny_target("llama", dtype=torch.float64),
    "sliding": lambda: tiny_target(dtype=torch.float64, window=6, full_layers=2),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_node_is_what_its_path_gives_alone(kind: str) -> None:
    target = KINDS[kind]()
    out = _through(target, (1, 2))
    for row, (prompt, tree) in enumerate(zip(PROMPTS, TREES, strict=True)):
        for node, path in PATHS[row].items():
            tokens = [*prompt, *(tree[step] for step in path)]
            cache = target.new_cache(1)
            alone = target.forward(torch.tensor([tokens]), cache, Span(0, (0,), len(tokens)), (1, 2))
            assert torch.allclose(out.hidden[row, node], alone.hidden[0, -1], atol=1e-10), (row, node)
            assert out.features is not None
            assert alone.features is not None
            assert torch.allclose(out.features[row, node], alone.features[0, -1], atol=1e-10), (row, node)


def test_a_target_with_states_takes_no_branches() -> None:
    with pytest.raises(TargetError, match="no branches"):
        _through(hybrid_target("qwen3_5"), ())


def _through(target: Target, taps: tuple[int, ...]):
    cache = target.new_cache(2)
    for row, prompt in enumerate(PROMPTS):
        target.forward(torch.tensor([prompt]), cache, Span(row, (0,), len(prompt)))
    width = max(map(len, TREES))
    ids = torch.tensor([tree + [0] * (width - len(tree)) for tree in TREES])
    starts = tuple(map(len, PROMPTS))
    return target.forward(ids, cache, Span(0, starts, width, counts=(8, 3), parents=PARENTS), taps)
