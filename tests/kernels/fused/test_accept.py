"""The fused verdict: token for token that of the plain definition, and of the target's law over many draws."""

from __future__ import annotations

import pytest
import torch

from dspine.kernels import accept as plain
from dspine.kernels.fused import accept as fused
from dspine.kernels.law import draw


@pytest.fixture(autouse=True)
def small_parts(monkeypatch, device):
    """Vocabularies of several parts without large ones, where the interpreter runs."""
    if device.type == "cpu":
        monkeypatch.setattr(fused, "PART", 16)


def random_laws(generator, *shape, zeros=0.3):
    weights = torch.rand(*shape, generator=generator) ** 3
    weights[torch.rand(*shape, generator=generator) < zeros] = 0
    weights[..., 0] += 1e-3
    return weights / weights.sum(-1, keepdim=True)


def case(seed, device, rows=4, places=3, vocab=41, top=5):
    generator = torch.Generator().manual_seed(seed)
    target = random_laws(generator, rows, places + 1, vocab)
    support = torch.rand(rows, places, vocab, generator=generator).argsort(-1)[..., :top]
    q = random_laws(generator, rows, places, top, zeros=0.1)
    tokens = support.gather(2, draw(q, torch.rand(rows, places, generator=generator))[..., None]).squeeze(2)
    uniforms = (torch.rand(rows, places + 1, generator=generator) * 2**24).floor() / 2**24
    lengths = torch.randint(0, places + 1, (rows,), generator=generator)
    return [x.to(device) for x in (target, tokens, support, q, uniforms, lengths)]


@pytest.mark.parametrize("form", ["sparse", "one-hot", "dense"])
@pytest.mark.parametrize("shape", [(4, 3, 41, 5), (2, 7, 16, 16), (3, 1, 5, 2)])
def test_the_verdict_is_the_definitions(device, form, shape):
    for seed in range(2):
        target, tokens, support, q, uniforms, lengths = case(seed, device, *shape)
        if form == "one-hot":
            support = q = None
        elif form == "dense":
            q, support = torch.zeros_like(target[:, :-1]).scatter(2, support, q), None
        wanted = plain.accept(target, tokens, support, q, uniforms, lengths)
        for laws in (target, torch.cat((target, target), dim=1)[:, : target.shape[1]]):  # also rows further apart
            accepted, token = fused.accept(laws, tokens, support, q, uniforms, lengths)
            assert torch.equal(accepted, wanted[0])
            assert torch.equal(token, wanted[1])


def test_p_equal_to_q_stands_at_every_uniform(device):
    target, _, _, _, uniforms, lengths = case(0, device, rows=3, places=2, vocab=21)
    support = torch.arange(21, device=device).expand(3, 2, -1)
    q = target[:, :2].contiguous()
    tokens = q.argmax(-1)
    uniforms[:, :2] = 1 - 2.0**-24
    lengths[:] = 2
    accepted, token = fused.accept(target, tokens, support, q, uniforms, lengths)
    assert accepted.tolist() == [2, 2, 2]
    assert torch.equal(token, draw(target[:, 2], uniforms[:, 2]))


def test_a_residual_without_mass_gives_way_to_the_law(device):
    """q covers p everywhere (it sums to more, as rounding may have it), and the candidate has p = 0: it falls."""
    target = torch.tensor([[[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]], device=device)
    support = torch.tensor([[[0, 1, 2]]], device=device)
    q = torch.tensor([[[0.5, 0.5, 1e-3]]], device=device)
    tokens, lengths = torch.tensor([[2]], device=device), torch.tensor([1], device=device)
    for last, wanted in ((0.1, 0), (0.9, 1)):
        noise = torch.tensor([[0.5, last]], device=device)
        accepted, token = fused.accept(target, tokens, support, q, noise, lengths)
        assert (accepted.item(), token.item()) == (0, wanted)


def test_without_candidates_it_is_a_draw(device):
    target, *_, uniforms, _ = case(5, device, places=3)
    empty = torch.empty((4, 0), dtype=torch.int64, device=device)
    noise, none = uniforms[:, :1].contiguous(), torch.zeros(4, dtype=torch.int64, device=device)
    accepted, token = fused.accept(target[:, :1], empty, None, None, noise, none)
    assert accepted.tolist() == [0] * 4
    assert torch.equal(token, draw(target[:, 0], noise[:, 0]))


def test_a_law_that_is_no_number_ends_behind_the_vocabulary(device):
    target, tokens, support, q, uniforms, lengths = case(1, device)
    target[1] = torch.nan
    _, token = fused.accept(target, tokens, support, q, uniforms, lengths)
    assert token[1] == target.shape[2]
    assert (token[[0, 2, 3]] < target.shape[2]).all()


def test_what_is_emitted_has_the_targets_law(device):
    """Rounds side by side: the first token's chi-square, drafts from a law of four tokens of twelve."""
    rows, vocab = 10_000, 12
    generator = torch.Generator().manual_seed(7)
    p, q = random_laws(generator, vocab, zeros=0.2), random_laws(generator, 4, zeros=0.0)
    support = torch.tensor([0, 3, 4, 9])
    tokens = support[draw(q.expand(rows, -1), torch.rand(rows, generator=generator))][:, None]
    batch = (p.expand(rows, 2, -1).contiguous(), tokens, support.expand(rows, 1, -1), q.expand(rows, 1, -1))
    noise, ones = torch.rand(rows, 2, generator=generator), torch.ones(rows, dtype=torch.int64)
    rounds = 200 if device.type == "cpu" else rows  # the interpreter takes them one by one
    parts = [x[:rounds].to(device) for x in (*batch, noise, ones)]
    accepted, token = fused.accept(*parts)
    first = torch.where(accepted > 0, parts[1][:, 0], token).cpu()
    counts, expected = torch.bincount(first, minlength=vocab).double(), p.double() * len(first)
    present = p > 0
    assert counts[~present].sum() == 0
    chi2 = float(((counts - expected)[present] ** 2 / expected[present]).sum())
    assert chi2 < 31.3  # df at most 11, 0.1 %
    assert 0.1 < accepted.double().mean() < 0.9


@pytest.mark.parametrize("places", [0, 1, 5])
def test_greedy(device, places):
    generator = torch.Generator().manual_seed(places)
    choices = torch.randint(0, 3, (9, places + 3), generator=generator)[:, : places + 1].to(device)
    tokens = torch.randint(0, 3, (9, places), generator=generator).to(device)
    tokens[0] = choices[0, :places]
    lengths = torch.randint(0, places + 1, (9,), generator=generator).to(device)
    lengths[0] = places
    for ours, theirs in zip(
        fused.accept_greedy(choices, tokens, lengths), plain.accept_greedy(choices, tokens, lengths), strict=True
    ):
        assert torch.equal(ours, theirs)
