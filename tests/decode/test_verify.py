"""The verdict against its definition, written out token by token in float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dspine.decode.sampling import SamplingParams, law_of
from dspine.decode.verify import Verdict, verify, verify_greedy
from dspine.drafter.proposal import Proposal
from dspine.kernels.law import law_probs

LARGEST = 1 - 2.0**-24
FORMS = ("sparse", "dense", "one-hot")


def laws(generator, *shape, zeros=0.3):
    """Random laws (..., V) with some ids of probability 0."""
    weights = torch.rand(*shape, generator=generator) ** 3
    weights[torch.rand(*shape, generator=generator) < zeros] = 0
    weights[..., 0] += 1e-3
    return weights / weights.sum(-1, keepdim=True)


def case(seed, form, rows=4, places=3, vocab=9, support=4):
    """A random target law, a proposal of that form, uniforms and lengths."""
    generator = torch.Generator().manual_seed(seed)
    target = laws(generator, rows, places + 1, vocab)
    ids = torch.rand(rows, places, vocab, generator=generator).argsort(-1)[..., :support]
    q = laws(generator, rows, places, support, zeros=0.1)
    pick = torch.multinomial(q.view(-1, support), 1, generator=generator).view(rows, places, 1)
    tokens = ids.gather(2, pick)[..., 0]
    uniforms = (torch.rand(rows, places + 1, generator=generator) * 2**24).floor() / 2**24
    lengths = torch.randint(0, places + 1, (rows,), generator=generator)
    dense = torch.zeros(rows, places, vocab).scatter(2, ids, q)
    proposal = {
        "sparse": Proposal(tokens, ids, q),
        "dense": Proposal(tokens, probs=dense),
        "one-hot": Proposal(tokens),
    }[form]
    return target, proposal, uniforms, lengths


def dense_law(proposal, vocab):
    """q as (B, M, V) whatever the form."""
    rows, places = proposal.tokens.shape
    if proposal.probs is None:
        return torch.nn.functional.one_hot(proposal.tokens, vocab).double()
    if proposal.support is None:
        return proposal.probs.double()
    return torch.zeros(rows, places, vocab, dtype=torch.float64).scatter(2, proposal.support, proposal.probs.double())


def slowly(target, proposal, uniforms, lengths):
    """The definition, one row and one candidate at a time."""
    q = dense_law(proposal, target.shape[-1])
    accepted, following = [], []
    for b in range(len(target)):
        a, law = 0, None
        while a < int(lengths[b]):
            y = int(proposal.tokens[b, a])
            if not float(uniforms[b, a]) * float(q[b, a, y]) < float(target[b, a, y]):
                law = [max(0.0, float(target[b, a, v]) - float(q[b, a, v])) for v in range(target.shape[-1])]
                break
            a += 1
        if law is None or sum(law) == 0:
            law = target[b, a].tolist()
        mark, mass, token = float(uniforms[b, -1]) * sum(law), 0.0, 0
        for v, chance in enumerate(law):
            mass += chance
            if mass > mark:
                token = v
                break
        accepted.append(a)
        following.append(token)
    return accepted, following


def as_lists(verdict: Verdict):
    assert verdict.accepted.dtype == verdict.next_token.dtype == torch.int64
    return verdict.accepted.tolist(), verdict.next_token.tolist()


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=150)
@given(seed=st.integers(0, 2**32), places=st.integers(1, 5))
def test_it_is_the_definition(form, seed, places):
    given_case = case(seed, form, places=places)
    assert as_lists(verify(*given_case)) == slowly(*given_case)


@given(st.integers(0, 2**32))
def test_sparse_and_dense_agree(seed):
    target, proposal, uniforms, lengths = case(seed, "sparse")
    dense = Proposal(proposal.tokens, probs=dense_law(proposal, target.shape[-1]).float())
    assert as_lists(verify(target, proposal, uniforms, lengths)) == as_lists(verify(target, dense, uniforms, lengths))


@pytest.mark.parametrize("form", ["sparse", "dense"])
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e-40, 1.4e-45])
def test_equal_laws_accept_everything_without_nan(form, scale):
    """Also at the largest uniform, and where float32 has no precision left."""
    generator = torch.Generator().manual_seed(3)
    p = laws(generator, 64, 4, 10) * scale
    p[..., 1] = torch.where(p.sum(-1) == 0, 1.4e-45, p[..., 1])
    tokens = torch.stack(
        [torch.multinomial(p[:, i].double() / p[:, i].double().sum(-1, True), 1)[:, 0] for i in range(3)], 1
    )
    support = torch.arange(10).expand(64, 3, 10)
    proposal = Proposal(tokens, support if form == "sparse" else None, p[:, :3].clone())
    verdict = verify(p, proposal, torch.full((64, 4), LARGEST), torch.full((64,), 3))
    assert (verdict.accepted == 3).all()
    assert (p[torch.arange(64), 3, verdict.next_token] > 0).all()


def test_a_candidate_outside_the_target_law_never_stands():
    """u = 0 makes u·q = 0, which must not pass for less than p = 0."""
    target = torch.tensor([[[0.0, 1.0], [1.0, 0.0]]])
    for proposal in (Proposal(torch.tensor([[0]])), Proposal(torch.tensor([[0]]), probs=torch.tensor([[[1.0, 0.0]]]))):
        assert as_lists(verify(target, proposal, torch.zeros(1, 2), torch.tensor([1]))) == ([0], [1])


@pytest.mark.parametrize("form", ["sparse", "dense"])
def test_a_residual_without_mass_gives_way_to_p(form):
    """p lies below q everywhere by rounding; a rejection must still draw from p."""
    p = torch.tensor([[[0.5, 0.49999997, 0.0], [0.0, 0.0, 1.0]]])
    q = torch.tensor([[[0.5, 0.5, 0.0]]])
    support = torch.arange(3).expand(1, 1, 3) if form == "sparse" else None
    for draw_with, token in ((0.0, 0), (LARGEST, 1)):
        uniforms = torch.tensor([[LARGEST, draw_with]])
        verdict = verify(p, Proposal(torch.tensor([[1]]), support, q), uniforms, torch.tensor([1]))
        assert as_lists(verdict) == ([0], [token])


@pytest.mark.parametrize("form", FORMS)
@given(st.integers(0, 2**32))
def test_nothing_beyond_the_length_is_looked_at(form, seed):
    target, proposal, uniforms, lengths = case(seed, form)
    beyond = torch.arange(proposal.tokens.shape[1]) >= lengths[:, None]
    spoiled_target = target.clone()
    spoiled_target[:, 1:][beyond] = torch.nan
    spoiled = replace(proposal, tokens=proposal.tokens.masked_fill(beyond, -1))
    if proposal.probs is not None:
        spoiled = replace(spoiled, probs=proposal.probs.masked_fill(beyond[..., None], torch.nan))
    if proposal.support is not None:
        spoiled = replace(spoiled, support=proposal.support.masked_fill(beyond[..., None], 10**6))
    verdict = verify(spoiled_target, spoiled, uniforms, lengths)
    assert as_lists(verdict) == as_lists(verify(target, proposal, uniforms, lengths))
    assert (verdict.accepted <= lengths).all()


@pytest.mark.parametrize("form", FORMS)
@given(st.integers(0, 2**32))
def test_a_row_does_not_know_its_batch_and_inputs_stay(form, seed):
    arguments = case(seed, form)
    target, proposal, uniforms, lengths = arguments
    before = target.clone()
    together = as_lists(verify(*arguments))
    assert torch.equal(before, target)
    for b in range(len(lengths)):
        row = slice(b, b + 1)
        alone = Proposal(*(t if t is None else t[row] for t in (proposal.tokens, proposal.support, proposal.probs)))
        verdict = verify(target[row], alone, uniforms[row], lengths[row])
        assert as_lists(verdict) == ([together[0][b]], [together[1][b]])


@given(st.integers(0, 2**32), st.integers(0, 5))
def test_greedy_is_the_verdict_on_one_hot_laws(seed, places):
    generator = torch.Generator().manual_seed(seed)
    choices = torch.randint(0, 3, (6, places + 1), generator=generator)
    tokens = torch.randint(0, 3, (6, places), generator=generator)
    lengths = torch.randint(0, places + 1, (6,), generator=generator)
    target = torch.nn.functional.one_hot(choices, 3).float()
    uniforms = torch.rand(6, places + 1, generator=generator)
    greedy = as_lists(verify_greedy(choices, tokens, lengths))
    assert greedy == as_lists(verify(target, Proposal(tokens), uniforms, lengths))
    for b, (a, token) in enumerate(zip(*greedy, strict=True)):
        assert tokens[b, :a].tolist() == choices[b, :a].tolist()
        assert a == lengths[b] or tokens[b, a] != choices[b, a]
        assert token == choices[b, a]


@pytest.mark.parametrize("temperature", [0, 1e-6])
def test_a_vanishing_temperature_is_greedy(temperature):
    generator = torch.Generator().manual_seed(5)
    law = law_of([SamplingParams(temperature=temperature)] * 200)
    logits = 3 * torch.randn(200, 4, 12, generator=generator)
    scores, support = (logits[:, :3] + torch.randn(200, 3, 12, generator=generator)).topk(4, dim=-1)
    q = law_probs(scores, law)
    tokens = support.gather(2, q.argmax(-1, keepdim=True))[..., 0]
    lengths = torch.full((200,), 3)
    verdict = verify(
        law_probs(logits, law), Proposal(tokens, support, q), torch.rand(200, 4, generator=generator), lengths
    )
    greedy = verify_greedy(logits.argmax(-1), tokens, lengths)
    assert as_lists(verdict) == as_lists(greedy)
    assert 0.1 < float(greedy.accepted.float().mean()) < 2.9


@pytest.mark.parametrize("temperature", [0.3, 1, 2])
def test_acceptance_is_the_overlap_within_three_sigma(temperature):
    generator = torch.Generator().manual_seed(7)
    law = law_of([SamplingParams(temperature=temperature)])
    p = law_probs(torch.randn(1, 1, 50, generator=generator) * 2, law)
    scores, support = torch.randn(1, 1, 50, generator=generator).add(p.log()).topk(8, dim=-1)
    q = law_probs(scores, law)
    rounds = 30_000
    pick = torch.multinomial(q[0, 0], rounds, replacement=True, generator=generator)
    proposal = Proposal(support[0, 0][pick][:, None], support.expand(rounds, 1, 8), q.expand(rounds, 1, 8))
    uniforms = torch.rand(rounds, 2, generator=generator)
    verdict = verify(p.expand(rounds, 2, 50), proposal, uniforms, torch.ones(rounds, dtype=torch.int64))
    overlap = float(torch.minimum(p[0, 0], torch.zeros(50).scatter(0, support[0, 0], q[0, 0])).sum())
    assert abs(float(verdict.accepted.double().mean()) - overlap) < 3 * (overlap * (1 - overlap) / rounds) ** 0.5


def test_no_candidates_is_plain_sampling():
    target = torch.tensor([[[0.25, 0.0, 0.75]], [[0.0, 1.0, 0.0]], [[0.25, 0.0, 0.75]]])
    nothing = Proposal(torch.empty(3, 0, dtype=torch.int64))
    uniforms = torch.tensor([[0.2], [0.9], [0.25]])
    assert as_lists(verify(target, nothing, uniforms, torch.zeros(3, dtype=torch.int64))) == ([0, 0, 0], [0, 1, 2])
    sparse = Proposal(nothing.tokens, torch.empty(3, 0, 4, dtype=torch.int64), torch.empty(3, 0, 4))
    assert as_lists(verify(target, sparse, uniforms, torch.zeros(3, dtype=torch.int64))) == ([0, 0, 0], [0, 1, 2])
