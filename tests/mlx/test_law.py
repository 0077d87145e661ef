"""Laws, draws and verdicts on the device, held to the torch definitions, and the law of what a whole loop emits."""

from __future__ import annotations

from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import pytest
import torch
from mlx_lm.models.cache import KVCache
from tests.support.tiny_target import tiny_tokenizer

import dspine.drafter.proposal as torch_proposal
from dspine.decode.sampling import SamplingParams
from dspine.decode.verify import verify as torch_verify
from dspine.decode.verify import verify_greedy as torch_verify_greedy
from dspine.kernels.law import Law as TorchLaw
from dspine.kernels.law import draw as torch_draw
from dspine.kernels.law import law_probs as torch_law_probs
from dspine.serve.mlx.engine import MlxEngine
from dspine.serve.mlx.law import Law, best, draw, law_probs
from dspine.serve.mlx.proposal import Proposal
from dspine.serve.mlx.verify import verify, verify_greedy

P = np.array([0.35, 0.30, 0.20, 0.10, 0.05], dtype=np.float32)  # of ids 0..4, at every position
Q = np.array([0.10, 0.20, 0.40, 0.20, 0.10], dtype=np.float32)
LAWS = [(1.0, 0, 1.0, 0.0), (0.7, 5, 1.0, 0.0), (1.5, 0, 0.8, 0.0), (1.0, 0, 1.0, 0.1), (0.9, 40, 0.6, 0.05)]


def chi_square(counts, expected):
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("law", LAWS)
def test_laws_are_the_torch_ones(law):
    scores = np.random.default_rng(0).normal(size=(3, 700), scale=3).astype(np.float32)
    scores[:, ::7] = -np.inf
    wanted = torch_law_probs(torch.from_numpy(scores), TorchLaw.of(*([each] * 3 for each in law))).numpy()
    got = np.array(law_probs(mx.array(scores), Law(*law)))
    np.testing.assert_allclose(got, wanted, atol=1e-6)
    assert ((got == 0) == (wanted == 0)).all()
    np.testing.assert_allclose(got.sum(axis=-1), 1, atol=1e-6)


@pytest.mark.parametrize("size", [5, 512, 513, 3000])
def test_draws_are_the_torch_ones_and_never_of_weight_nothing(size):
    random = np.random.default_rng(1)
    weights = random.exponential(size=(200, size)).astype(np.float32)
    weights[random.random(size=weights.shape) < 0.7] = 0
    weights[:, -1] = 1e-3
    noise = random.random(size=200).astype(np.float32)
    noise[:2] = 0, 1 - 2**-24
    got = np.array(draw(mx.array(weights), mx.array(noise)))
    wanted = torch_draw(torch.from_numpy(weights), torch.from_numpy(noise)).numpy()
    assert (weights[np.arange(200), got] > 0).all()
    assert (got == wanted).mean() > 0.99  # a mark on the border of two tokens may fall on either side


def test_best_are_the_best_in_order():
    scores = np.random.default_rng(2).normal(size=(4, 50)).astype(np.float32)
    assert np.array(best(mx.array(scores), 6)).tolist() == np.argsort(-scores, axis=1)[:, :6].tolist()


def random_case(random, kind, places, size):
    """p, and q of that kind with candidates drawn from it."""
    p = random.dirichlet(np.full(size, 0.3), size=places + 1).astype(np.float32)
    if kind == "one-hot":
        return p, random.integers(size, size=places), None, None
    width = size if kind == "dense" else 4
    q = random.dirichlet(np.full(width, 0.5), size=places).astype(np.float32)
    ids = np.stack([random.permutation(size)[:width] for _ in range(places)])
    ids = np.tile(np.arange(size), (places, 1)) if kind == "dense" else ids
    chosen = np.array([random.choice(width, p=row / row.sum()) for row in q.astype(float)])
    return p, ids[np.arange(places), chosen], None if kind == "dense" else ids, q


@pytest.mark.parametrize("kind", ["one-hot", "dense", "sparse"])
def test_verdicts_are_the_torch_ones(kind):
    random, seen = np.random.default_rng(3), set()
    for _ in range(120):
        p, tokens, ids, q = random_case(random, kind, 4, 12)
        length, noise = int(random.integers(5)), random.random(5).astype(np.float32)
        got = verify(
            mx.array(p),
            Proposal(mx.array(tokens), None if ids is None else mx.array(ids), None if q is None else mx.array(q)),
            mx.array(noise),
            mx.array(length),
        )
        wanted = torch_verify(
            torch.from_numpy(p)[None],
            torch_proposal.Proposal(
                torch.from_numpy(tokens)[None],
                None if ids is None else torch.from_numpy(ids)[None],
                None if q is None else torch.from_numpy(q)[None],
            ),
            torch.from_numpy(noise)[None],
            torch.tensor([length]),
        )
        assert (got.accepted.item(), got.next_token.item()) == (wanted.accepted.item(), wanted.next_token.item())
        seen.add((got.accepted.item(), length))
    assert len(seen) > 8


def test_greedy_verdicts_are_the_torch_ones():
    random = np.random.default_rng(4)
    for _ in range(60):
        choices, tokens = random.integers(2, size=6), random.integers(2, size=5)
        for length in range(6):
            got = verify_greedy(mx.array(choices), Proposal(mx.array(tokens)), mx.array(length))
            wanted = torch_verify_greedy(
                torch.from_numpy(choices)[None], torch.from_numpy(tokens)[None], torch.tensor([length])
            )
            assert (got.accepted.item(), got.next_token.item()) == (wanted.accepted.item(), wanted.next_token.item())


class ConstantTarget:
    """Its law is P at every position."""

    name, vocab_size, decodable, context_limit, num_layers = "constant", 262, 262, 1 << 20, 3
    eos_ids: frozenset[int] = frozenset()

    def __init__(self):
        self.tokenizer = tiny_tokenizer()
        self._row = mx.pad(mx.log(mx.array(P)), [(0, 257)], constant_values=-mx.inf)

    def new_caches(self):
        return [KVCache()]

    def forward(self, ids, caches, taps=()):
        logits = mx.broadcast_to(self._row, (ids.shape[0], 262))
        return logits, mx.zeros((1, ids.shape[0], 1)) if taps else None


class ConstantDrafter:
    """Draws every candidate from Q."""

    candidates, target_layer_ids, max_positions, confident = 4, (0,), 1 << 20, False

    def new_context(self):
        return SimpleNamespace(length=0, arrays=[])

    def observe(self, context, features):
        context.length += features.shape[1]

    def propose(self, context, anchor, law, uniforms):
        probs = mx.broadcast_to(mx.array(Q), (4, 5))
        return Proposal(draw(probs, uniforms), mx.broadcast_to(mx.arange(5), (4, 5)), probs)


@pytest.mark.parametrize("drafted", [False, True])
def test_tokens_are_independent_draws_from_the_targets_law(drafted):
    engine = MlxEngine(ConstantTarget(), ConstantDrafter() if drafted else None)
    asked = [SamplingParams(temperature=1.0, seed=seed, max_new_tokens=200) for seed in range(8)]
    got = engine.generate([[120]] * 8, asked)
    tokens = np.array([c.token_ids for c in got])
    pairs = (P[:, None] * P).ravel()
    assert chi_square(np.bincount(tokens.ravel(), minlength=5), P * tokens.size) < 18.5  # df 4, 0.1 %
    for first, second in ((tokens[:, ::2], tokens[:, 1::2]), (tokens[:4], tokens[4:])):
        joint = np.bincount((5 * first + second).ravel(), minlength=25)
        assert chi_square(joint, pairs * first.size) < 51.2  # df 24, 0.1 %
    if drafted:
        rounds = [r for c in got for r in c.rounds if r.proposed == 4]
        overlap = float(np.minimum(P, Q).sum())
        expected = sum(overlap**place for place in range(1, 5))
        assert sum(r.accepted for r in rounds) / len(rounds) == pytest.approx(expected, abs=0.25)
