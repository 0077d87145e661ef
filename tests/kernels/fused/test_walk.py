"""The walk in one launch: the tokens and laws of the plain walk, greedy, sampled, truncated and mixed."""

from __future__ import annotations

import pytest
import torch
from tests.support.parallel import small

from dspine.kernels import reference
from dspine.kernels.arithmetic import REFERENCE
from dspine.kernels.choice import choose
from dspine.kernels.fused.walk import walk
from dspine.kernels.kv import Span
from dspine.kernels.law import Law

SETTINGS = {
    "greedy": ([0.0] * 4, [0] * 4, [1.0] * 4, [0.0] * 4),
    "temperature": ([1.0, 0.3, 2.0, 1e-3], [0] * 4, [1.0] * 4, [0.0] * 4),
    "truncated": ([1.0, 0.7, 1.5, 1.0], [3, 0, 2, 0], [1.0, 0.6, 0.9, 1.0], [0.0, 0.1, 0.0, 0.4]),
    "mixed": ([0.0, 1.0, 0.0, 0.8], [0, 2, 5, 0], [1.0, 0.9, 0.5, 1.0], [0.0, 0.0, 0.1, 0.0]),
}


def law_on(name: str, rows: int, device: torch.device) -> Law:
    temperature, top_k, top_p, min_p = SETTINGS[name]
    return Law.of(temperature[:rows], top_k[:rows], top_p[:rows], min_p[:rows], device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("rows", "places", "top"), [(4, 7, 16), (3, 4, 5), (1, 1, 1)])
@pytest.mark.parametrize("name", SETTINGS)
def test_tokens_and_laws(device, name, rows, places, top, dtype):
    generator = torch.Generator().manual_seed(places)
    scores = (torch.randn(rows, places, top, top + 3, generator=generator) * 3).to(dtype)[..., 1 : top + 1].to(device)
    if top > 3:
        scores[0, 0, 0, :3] = scores[0, 0, 0].max()  # equal scores: the first is the likeliest
    law, noise = law_on(name, rows, device), torch.rand(rows, places, generator=generator).to(device)
    chosen, laws = walk(scores, law, None if law.greedy else noise)
    wanted, wanted_laws = reference.walk(scores, law, None if law.greedy else noise)
    assert torch.equal(chosen, wanted)
    if wanted_laws is None:
        assert laws is None
    else:
        assert laws is not None
        torch.testing.assert_close(laws, wanted_laws, atol=1e-6, rtol=0)
        assert torch.equal(laws > 0, wanted_laws > 0)
        torch.testing.assert_close(laws.sum(-1), torch.ones_like(noise), atol=1e-6, rtol=0)


@pytest.mark.parametrize("edge", [0.0, 1 - 2.0**-24])
def test_a_candidate_of_probability_zero_is_never_drawn(device, edge):
    scores = torch.full((1, 2, 4, 4), -torch.inf, device=device)
    scores[..., 1:3] = 0.0
    chosen, laws = walk(scores, law_on("temperature", 1, device), torch.full((1, 2), edge, device=device))
    assert laws is not None
    assert chosen[0, 0] == (1 if edge == 0 else 2)
    assert (laws.gather(2, chosen[..., None]) > 0).all()


def test_a_rows_walk_does_not_depend_on_its_company(device):
    scores = torch.randn(4, 5, 8, 8, generator=torch.Generator().manual_seed(3)).to(device)
    noise = torch.rand(4, 5, generator=torch.Generator().manual_seed(4)).to(device)
    together, laws = walk(scores, law_on("truncated", 4, device), noise)
    alone, law = walk(scores[:1], law_on("truncated", 1, device), noise[:1])
    assert laws is not None
    assert law is not None
    assert torch.equal(together[:1], alone)
    assert torch.equal(laws[:1], law)


@pytest.mark.filterwarnings("ignore:All-NaN")
def test_a_score_that_is_no_number_leaves_the_walk_inside_its_row(device):
    scores = torch.full((4, 3, 4, 4), torch.nan, device=device)
    for name in ("greedy", "mixed"):
        for how in (walk, reference.walk):
            chosen, laws = how(scores, law_on(name, 4, device), torch.full((4, 3), 0.6, device=device))
            assert ((chosen >= 0) & (chosen < 4)).all()
            if laws is not None:  # drawn as if all were alike; greedy rows have their first
                wanted = torch.tensor([[1.0, 0, 0, 0], [0.25] * 4, [1.0, 0, 0, 0], [0.25] * 4], device=device)
                assert torch.equal(laws, wanted[:, None].expand(4, 3, 4))
                assert chosen.tolist() == [[0] * 3, [2] * 3, [0] * 3, [2] * 3]


@torch.no_grad()
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize(("kind", "sizes"), [("dflash2", {}), ("dspark", {"tabulated": 4})])
def test_whoever_tabulates_its_scores_walks_so(device, kind, sizes, name):
    """DFlash2 and DSpark hand their tables to the same walk: proposals are those of the definition."""
    drafter = small(kind, dtype=torch.float32, **sizes).to(device)
    drafter.tables.head = drafter.tables.head.to(device)
    drafter.tables._draft_head = drafter.tables._draft_head.to(device)
    drafter.tables.embedding.to(device)
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(4, 5, drafter.config.feature_size, generator=generator).to(device)
    tokens = torch.zeros(4, 5, dtype=torch.int64, device=device)
    anchors, noise = torch.tensor([3, 50, 71, 8], device=device), torch.rand(4, drafter.candidates, generator=generator)
    law, found = law_on(name, 4, device), []
    for kernels in (REFERENCE, choose("fused", device, torch.float32)):
        drafter.kernels = kernels
        assert drafter.kernels is drafter.selection.kernels is kernels
        cache = drafter.new_cache(4)
        drafter.observe(cache, Span(0, (0,) * 4, 5), features, [5, 3, 4, 2], tokens)
        found.append(drafter.propose(cache, 0, anchors, law, None if law.greedy else noise.to(device)))
    theirs, ours = found
    assert torch.equal(ours.tokens, theirs.tokens)
    assert (ours.probs is None) == (theirs.probs is None) == law.greedy
    if ours.probs is not None:
        assert torch.equal(ours.support, theirs.support)
        torch.testing.assert_close(ours.probs, theirs.probs, atol=1e-6, rtol=0)
