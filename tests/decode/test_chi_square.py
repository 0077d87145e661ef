"""Sampled output has the target's distribution, and every known way of getting it wrong is seen (F3)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.support.markov import START, TOKENS, Fit, MarkovToy, Round, fit, lossless, marginals
from torch import Tensor

from dspine.decode.noise import uniforms
from dspine.decode.sampling import SamplingParams, law_of
from dspine.decode.verify import Verdict, verify
from dspine.kernels.law import draw, law_probs

REQUESTS = 20_000
CANDIDATES = 3
COUNT = 3
HOLDS = 1e-4  # a lossless run falls under this once in ten thousand
FAILS = 1e-12

LAWS = {
    "temperature 1": SamplingParams(temperature=1),
    "temperature 0.7": SamplingParams(temperature=0.7),
    "temperature 2": SamplingParams(temperature=2),
    "top-k 3": SamplingParams(temperature=1, top_k=3),
    "top-p 0.5": SamplingParams(temperature=1, top_p=0.5),
    "top-p 0.7": SamplingParams(temperature=0.7, top_p=0.7),
    "min-p 0.2": SamplingParams(temperature=1, min_p=0.2),
    "all": SamplingParams(temperature=1.3, top_k=6, top_p=0.8, min_p=0.05),
}


def check(toy: MarkovToy, output: Tensor) -> dict[str, Fit]:
    """Fits of the tokens at the first places, of each token given the one before, and of the bonus."""
    first = torch.full((len(output),), START)
    fits = {}
    for place, law in enumerate(marginals(toy.p, COUNT)):
        fits[f"token {place}"] = fit(first, output[:, place], law.expand(TOKENS, TOKENS))
        before = first if place == 0 else output[:, place - 1]
        fits[f"token {place} given its predecessor"] = fit(before, output[:, place], toy.p)
    fits["bonus"] = fit(*toy.bonus(), toy.p)
    return fits


def worst(fits: dict[str, Fit]) -> float:
    return min(f.chance for f in fits.values())


@pytest.mark.parametrize("form", ["sparse", "dense", "one-hot"])
@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS.keys())
def test_the_first_tokens_and_the_bonus_follow_the_target(law, form):
    toy = MarkovToy.under(law, form)
    output = toy.generate(REQUESTS, COUNT, CANDIDATES)
    fits = check(toy, output)
    assert all(f.impossible == 0 for f in fits.values()), "a token outside the truncated law was emitted"
    assert worst(fits) > HOLDS, fits
    assert len(toy.bonus()[0]) > 100, "the bonus is not tested by so few rounds"


@pytest.mark.parametrize("candidates", [0, 1, 7])
def test_other_block_sizes_and_plain_decoding(candidates):
    toy = MarkovToy.under(LAWS["temperature 1"])
    assert worst(check(toy, toy.generate(REQUESTS, COUNT, candidates))) > HOLDS


def test_requests_of_their_own_seeds():
    toy = MarkovToy.under(LAWS["temperature 1"])
    requests, position = 6_000, 5
    noise = torch.stack(
        [
            torch.from_numpy(uniforms(seed, stream, position + 1, CANDIDATES))
            for seed in range(requests)
            for stream in ("draft", "accept", "next")
        ]
    ).view(requests, 3, CANDIDATES)
    anchors = torch.full((requests,), START)
    proposal = toy.propose(anchors, noise[:, 0])
    target = toy.p[torch.cat([anchors[:, None], proposal.tokens], dim=1)]
    mixed = torch.cat([noise[:, 1], noise[:, 2, :1]], dim=1)
    verdict = verify(target, proposal, mixed, torch.full((requests,), CANDIDATES))
    first = torch.where(verdict.accepted > 0, proposal.tokens[:, 0], verdict.next_token)
    assert fit(anchors, first, toy.p).chance > HOLDS


def test_acceptance_is_the_overlap_of_the_two_laws():
    toy = MarkovToy.under(LAWS["temperature 1"])
    toy.generate(REQUESTS, 1, CANDIDATES)
    _, verdict = toy.log[0]
    q = torch.zeros(TOKENS).scatter(0, toy.support[START], toy.q[START])
    overlap = float(torch.minimum(toy.p[START], q).sum())
    sigma = (overlap * (1 - overlap) / REQUESTS) ** 0.5
    assert abs(float((verdict.accepted > 0).double().mean()) - overlap) < 3 * sigma


# The cap may depend on confidences, and these on the candidates before the place they speak of: lengths that read
# nothing of the candidates, and lengths that stop after a given first candidate, are both admissible.
CAPS = {
    "fixed": lambda proposal: torch.full((len(proposal.tokens),), 1),
    "ragged": lambda proposal: torch.arange(len(proposal.tokens)) % (CANDIDATES + 1),
    "by an earlier candidate": lambda proposal: 1 + 2 * (proposal.tokens[:, 0] % 2),
}


@pytest.mark.parametrize("cap", CAPS.values(), ids=CAPS.keys())
@pytest.mark.parametrize("form", ["sparse", "dense", "one-hot"])
def test_a_cap_on_the_candidates_keeps_the_law(cap, form):
    toy = MarkovToy.under(LAWS["temperature 1"], form)
    assert worst(check(toy, toy.generate(REQUESTS, COUNT, CANDIDATES, lengths=cap))) > HOLDS


# The mutants. Each is a fault that has been shipped somewhere; each must be seen by the very checks above.


def no_residual(seen: Round) -> Verdict:
    """After a rejection the token is drawn from p instead of the residual."""
    verdict = lossless(seen)
    law = seen.target_probs[torch.arange(len(verdict.accepted)), verdict.accepted]
    return Verdict(verdict.accepted, draw(law, seen.noise["next"]))


def shared_noise(seen: Round) -> Verdict:
    """A candidate is judged with the number that it was drawn with."""
    return lossless(replace(seen, noise={**seen.noise, "accept": seen.noise["draft"]}))


def mixed_cap(seen: Round) -> Verdict:
    """All candidates are judged; beyond the cap a fresh draw, at the cap the residual's."""
    everything = torch.full_like(seen.lengths, seen.proposal.tokens.shape[1])
    verdict = lossless(replace(seen, lengths=everything))
    fresh = seen.target_probs[torch.arange(len(seen.lengths)), seen.lengths]
    beyond = verdict.accepted > seen.lengths
    token = torch.where(beyond, draw(fresh, seen.noise["next"]), verdict.next_token)
    return Verdict(torch.minimum(verdict.accepted, seen.lengths), token)


@pytest.mark.parametrize("law", [LAWS["temperature 1"], LAWS["top-p 0.7"]], ids=["temperature 1", "top-p 0.7"])
@pytest.mark.parametrize("rule", [no_residual, shared_noise])
def test_a_biased_verdict_is_seen(rule, law):
    toy = MarkovToy.under(law)
    assert worst(check(toy, toy.generate(REQUESTS, COUNT, CANDIDATES, rule))) < FAILS


def test_a_mixed_cap_rule_is_seen():
    toy = MarkovToy.under(LAWS["temperature 1"])
    output = toy.generate(REQUESTS, COUNT, CANDIDATES, mixed_cap, lengths=CAPS["fixed"])
    assert worst(check(toy, output)) < FAILS


def test_a_cap_that_looks_at_its_own_candidate_is_seen():
    toy = MarkovToy.under(LAWS["temperature 1"])
    output = toy.generate(REQUESTS, COUNT, CANDIDATES, lengths=lambda proposal: proposal.tokens[:, 0] % 2)
    assert worst(check(toy, output)) < FAILS


@pytest.mark.parametrize("form", ["sparse", "dense"])
def test_a_proposal_that_was_drawn_from_another_law_is_seen(form):
    toy = MarkovToy.under(LAWS["temperature 1"], form)
    sharper = replace(toy, drawn=toy.q.pow(2) / toy.q.pow(2).sum(-1, keepdim=True))
    assert worst(check(sharper, sharper.generate(REQUESTS, COUNT, CANDIDATES))) < FAILS


def test_a_truncation_left_out_of_the_acceptance_is_seen():
    toy = MarkovToy.under(SamplingParams(temperature=1))
    truncated = MarkovToy.under(LAWS["top-p 0.5"])
    output = toy.generate(REQUESTS, COUNT, CANDIDATES)
    fits = check(replace(truncated, log=toy.log), output)
    assert fits["token 0"].impossible > 100
    assert worst(fits) == 0


def test_the_fixture_has_power():
    """Drafter and target differ, neither is trivial, and the truncations cut."""
    params = LAWS["temperature 1"]
    toy = MarkovToy.under(params)
    q = torch.zeros(TOKENS, TOKENS).scatter(1, toy.support, toy.q)
    overlap = torch.minimum(toy.p, q).sum(-1)
    assert 0.3 < float(overlap.mean()) < 0.9
    assert float(law_probs(toy.p.log()[None], law_of([params]))[0].sub(toy.p).abs().max()) < 1e-6
    for name in ("top-k 3", "top-p 0.5", "top-p 0.7", "min-p 0.2", "all"):
        kept = (MarkovToy.under(LAWS[name]).p > 0).sum(-1)
        assert 2 <= int(kept[START]) < TOKENS, name
        assert 2 <= float(kept.double().mean()) <= TOKENS - 2, name
