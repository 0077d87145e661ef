"""Drafters of every kind in the engine: what comes out is the target's, whatever they propose."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.support.markov import TOKENS, fit, marginals
from tests.support.network_toy import NetworkToy
from tests.support.parallel import OWN, over, small
from tests.support.tiny_target import tiny_target

from dspine.decode.engine import Engine
from dspine.decode.sampling import SamplingParams
from dspine.drafter.config import ParallelConfig
from dspine.drafter.registry import KINDS
from dspine.target.model import Target

PARALLEL = [kind for kind in OWN if issubclass(KINDS[kind].config, ParallelConfig)]
RESTRICTED = torch.arange(0, 320, 2)
DRAFTERS = {
    "dflash": ("dflash", {}),
    "dflash, causal and sliding": (
        "dflash",
        {"is_causal": None, "sliding_window": 5, "sliding_layers": (1,), "draft_ids": RESTRICTED},
    ),
    "domino": ("domino", {"draft_ids": RESTRICTED}),
    "domino, rows predict themselves": ("domino", {"logits_start": 1}),
    "dspark, vanilla": ("dspark", {}),
    "dspark, gated": ("dspark", {"markov_head": "gated", "draft_ids": RESTRICTED}),
    "dspark, rnn": ("dspark", {"markov_head": "rnn"}),
    "dspark, tabulated": ("dspark", {"tabulated": 6, "draft_ids": RESTRICTED}),
    "dflash2": ("dflash2", {}),
    "dflash2, restricted": ("dflash2", {"draft_ids": RESTRICTED}),
    "eagle3": ("eagle3", {}),
    "eagle3, restricted": ("eagle3", {"draft_ids": RESTRICTED}),
}
# Laws over all of the chain's tokens, over a list of them, and over the few of a table.
CHAIN = torch.arange(TOKENS)
DRAWN = {
    "dflash, all tokens": ("dflash", {"vocab_size": TOKENS}),
    "domino": ("domino", {"draft_ids": CHAIN, "block_size": 3}),
    "dspark, rnn, all tokens": ("dspark", {"markov_head": "rnn", "vocab_size": TOKENS, "block_size": 3}),
    "dspark, tabulated": ("dspark", {"tabulated": 5, "draft_ids": CHAIN, "block_size": 3}),
    "dflash2": ("dflash2", {"draft_ids": CHAIN}),
    "eagle3": ("eagle3", {"draft_ids": CHAIN}),
}
PROMPTS = [tuple(b"a prompt"), tuple(b"another, somewhat longer prompt"), tuple(b"3")]
LAWS = {
    "plain": SamplingParams(temperature=1),
    "truncated": SamplingParams(temperature=1.3, top_k=6, top_p=0.8, min_p=0.05),
}


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target(dtype=torch.float64, num_hidden_layers=4)


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [("dspine", {"transfer_rank": 16}), *((kind, {}) for kind in OWN), ("dspark", {"tabulated": 6})],
    ids=str,
)
def test_a_network_that_gives_no_numbers_costs_candidates_alone(
    target: Target, kind: str, sizes: dict[str, Any]
) -> None:
    """An overflow in a drafter is none of its requests' business: they get what they would have got without it."""
    drafter = over(target, kind, **sizes)
    owner: Any = getattr(drafter, "backbone", drafter)
    owner.norm.weight[3] = torch.nan
    kinds = (SamplingParams(), SamplingParams(temperature=1, seed=4), LAWS["truncated"])
    greedy, sampled, truncated = (p.model_copy(update={"max_new_tokens": 12, "ignore_eos": True}) for p in kinds)
    for each in ((greedy, sampled, truncated), (sampled,) * 3):
        got = Engine(target, drafter).generate(PROMPTS, each)
        assert [len(answer.token_ids) for answer in got] == [12] * 3
        assert all(r.proposed for answer in got for r in answer.rounds[:-1])
        if each[0].greedy:
            assert got[0].token_ids == Engine(target).generate(PROMPTS[:1], greedy)[0].token_ids


@pytest.mark.parametrize(("kind", "sizes"), DRAFTERS.values(), ids=DRAFTERS.keys())
def test_nothing_changes_but_the_number_of_rounds(target: Target, kind: str, sizes: dict[str, Any]) -> None:
    drafter = over(target, kind, **{"target_layer_ids": (0, 1, 2), "block_size": 4, **sizes})
    plain = Engine(target).generate(PROMPTS, SamplingParams(max_new_tokens=16))
    drafted = Engine(target, drafter, max_batch=2).generate(PROMPTS, SamplingParams(max_new_tokens=16))
    assert [c.token_ids for c in drafted] == [c.token_ids for c in plain]
    sampled = SamplingParams(temperature=8.0, seed=4, max_new_tokens=16, ignore_eos=True)
    together = Engine(target, drafter).generate(PROMPTS, sampled)
    alone = [Engine(target, drafter, prefill_chunk=3).generate([p], sampled)[0] for p in PROMPTS]
    assert [(c.token_ids, c.rounds) for c in together] == [(c.token_ids, c.rounds) for c in alone]


@pytest.mark.parametrize("candidates", [1, 3, 7, 15])
@pytest.mark.parametrize("kind", OWN)
def test_any_number_of_candidates_gives_the_plain_tokens(target: Target, kind: str, candidates: int) -> None:
    """Caps that end inside a block, and an end token that plain decoding comes upon."""
    first = KINDS[kind].config().logits_start if kind in PARALLEL else 1
    rows = max(candidates + first, 2)  # of DFlash's family, one row is no block
    drafter = over(target, kind, target_layer_ids=(0, 1, 2), block_size=rows)
    assert drafter.candidates == max(candidates, 2 - first)
    plain = Engine(target).generate(PROMPTS, SamplingParams(max_new_tokens=11))
    end = plain[0].token_ids[5]
    for params in (SamplingParams(max_new_tokens=11), SamplingParams(max_new_tokens=11, stop_token_ids=(end,))):
        wanted = Engine(target).generate(PROMPTS, params)
        drafted = Engine(target, drafter, max_batch=3).generate(PROMPTS, params)
        assert [c.token_ids for c in drafted] == [c.token_ids for c in wanted]


@pytest.mark.parametrize("params", LAWS.values(), ids=LAWS.keys())
@pytest.mark.parametrize(("kind", "sizes"), DRAWN.values(), ids=DRAWN.keys())
def test_sampled_output_has_the_targets_law(kind: str, sizes: dict[str, Any], params: SamplingParams) -> None:
    drafter = small(kind, **{"dtype": torch.float32, "block_size": 4, **sizes})
    toy = NetworkToy.of(drafter, params)
    output = toy.generate(12_000, 3, drafter.candidates)
    first = torch.zeros(len(output), dtype=torch.int64)
    for place, law in enumerate(marginals(toy.p, 3)):
        assert fit(first, output[:, place], law.expand(TOKENS, TOKENS)).chance > 1e-4
    assert fit(output[:, 1], output[:, 2], toy.p).chance > 1e-4
    accepted = toy.log[0][1].accepted.double().mean()
    assert 0.1 < accepted < 2.5, "the chain's law and the drafter's overlap, and differ"
