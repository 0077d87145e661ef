"""Serial heads: step by step as in training, by the formulas; what they look at, and what they do not."""

from __future__ import annotations

import pytest
import torch
from tests.support.blocks import VOCAB
from tests.support.parallel import small
from torch import Tensor

from dspine.drafter.config import ParallelConfig
from dspine.drafter.domino import DominoConfig
from dspine.drafter.dspark import DSparkConfig
from dspine.drafter.registry import KINDS
from dspine.drafter.transitions import walked
from dspine.errors import ConfigError
from dspine.kernels.kv import Span
from dspine.kernels.law import Law, law_probs

HEADS = {
    "domino, rows predict the next": ("domino", {"logits_start": 0}),
    "domino, rows predict themselves": ("domino", {"logits_start": 1}),
    "vanilla": ("dspark", {"markov_head": "vanilla"}),
    "gated": ("dspark", {"markov_head": "gated"}),
    "rnn": ("dspark", {"markov_head": "rnn"}),
}
ANCHORS = torch.tensor([3, 50, 71])
LAW = Law.of([1.0, 0.7, 1.5], [0, 5, 0], [1.0, 0.9, 1.0], [0.0] * 3)
IDS = torch.arange(0, VOCAB, 3)


def observed(drafter):
    torch.manual_seed(5)
    cache = drafter.new_cache(3)
    features = torch.randn(3, 9, drafter.config.feature_size, dtype=drafter.dtype)
    drafter.observe(cache, Span(0, (0, 0, 0), 9), features, [9, 4, 6], torch.zeros(3, 9, dtype=torch.int64))
    return cache


def noise(drafter, seed: int = 0) -> Tensor:
    return torch.rand(3, drafter.candidates, generator=torch.Generator().manual_seed(seed))


def by_formula(drafter, hidden: Tensor, tokens: list[int]) -> Tensor:
    """Scores (M, V_d) of one block by the papers' equations; `tokens` are x_s .. x_{s+M-1}."""
    base = hidden @ drafter.tables._draft_head.double().T
    embedding = drafter.tables.embedding.weight
    scores, state = [], None
    for t, previous in enumerate(tokens):
        if isinstance(drafter.config, DominoConfig):
            gru, size = drafter.selection.prefix_gru, drafter.config.gru_hidden_size
            state = torch.zeros(size, dtype=hidden.dtype) if state is None else state
            ir, iz, inn = (gru.weight_ih_l0 @ embedding[previous]).chunk(3)
            hr, hz, hn = (gru.weight_hh_l0 @ state).chunk(3)
            z = torch.sigmoid(iz + hz)
            state = (1 - z) * torch.tanh(inn + torch.sigmoid(ir + hr) * hn) + z * state
            first, last = drafter.selection.embed_proj[0].weight, drafter.selection.embed_proj[2].weight
            inner = first @ torch.cat((hidden[t], state))
            scores.append(base[t] if t == 0 else base[t] + last @ (inner * torch.sigmoid(inner)))
            continue
        head = drafter.selection.markov_head
        e, kind = head.markov_w1.weight[previous], drafter.config.markov_head
        inner = e
        if kind == "gated":
            inner = torch.sigmoid(head.gate_proj.weight @ torch.cat((hidden[t], e)) + head.gate_proj.bias) * e
        if kind == "rnn":
            state = torch.zeros_like(e) if state is None else state
            g, c, o = (head.joint_proj.weight @ torch.cat((state, e, hidden[t])) + head.joint_proj.bias).chunk(3)
            inner = torch.tanh(o)
            state = torch.sigmoid(g) * state + (1 - torch.sigmoid(g)) * torch.tanh(c)
        scores.append(base[t] + head.markov_w2.weight @ inner)
    return torch.stack(scores)


def corrected(drafter, hidden: Tensor, before: Tensor) -> Tensor:
    """Scores of all places at once, with the tokens (B, M) before them known."""
    selection = drafter.selection
    return drafter.tables.logits(hidden) + selection.correction(hidden, before) @ selection.correction_head.T


@pytest.mark.parametrize("ids", [None, IDS], ids=["full", "restricted"])
@pytest.mark.parametrize(("kind", "sizes"), HEADS.values(), ids=HEADS.keys())
def test_parallel_scores_with_known_tokens_are_those_of_the_walk_and_of_the_formulas(kind, sizes, ids) -> None:
    drafter = small(kind, draft_ids=ids, **sizes)
    cache = observed(drafter)
    proposal = drafter.propose(cache, 0, ANCHORS, LAW, noise(drafter))
    hidden = drafter.draft_block(cache, 0, ANCHORS)
    before = torch.cat((ANCHORS[:, None], proposal.tokens[:, :-1]), dim=1)
    scores = (
        drafter.tables.logits(hidden)
        + drafter.selection.correction(hidden, before) @ drafter.selection.correction_head.T
    )
    torch.testing.assert_close(law_probs(scores, LAW), proposal.probs, rtol=0, atol=1e-6)
    for row in range(3):
        expected = by_formula(drafter, hidden[row], before[row].tolist())
        torch.testing.assert_close(scores[row], expected, rtol=1e-10, atol=1e-10)
    drawn = proposal.tokens if ids is None else torch.searchsorted(ids, proposal.tokens)
    assert (proposal.probs.gather(2, drawn[..., None]) > 0).all()
    assert ids is None or torch.equal(proposal.support, ids.expand_as(proposal.probs))
    greedy = drafter.propose(cache, 0, ANCHORS, Law.greedy_rows(3), None)
    before = torch.cat((ANCHORS[:, None], greedy.tokens[:, :-1]), dim=1)
    scores = (
        drafter.tables.logits(hidden)
        + drafter.selection.correction(hidden, before) @ drafter.selection.correction_head.T
    )
    assert greedy.probs is None
    assert torch.equal(drafter.tables.tokens(scores.argmax(-1)), greedy.tokens)


def test_dominos_first_place_is_the_backbones() -> None:
    drafter = small("domino")
    hidden = drafter.draft_block(observed(drafter), 0, ANCHORS)
    tokens = torch.randint(0, VOCAB - 1, (3, drafter.candidates))
    correction = drafter.selection.correction(hidden, tokens)
    assert (correction[:, 0] == 0).all()
    assert (correction[:, 1:] != 0).any(-1).all()
    assert torch.equal(drafter.selection.correction(hidden, tokens)[:, 1], correction[:, 1])
    tokens[:, 0] = 1  # the anchor is read all the same, for the second place
    assert (drafter.selection.correction(hidden, tokens)[:, 1] != correction[:, 1]).any(-1).all()


@pytest.mark.parametrize("ids", [None, IDS], ids=["full", "restricted"])
def test_a_table_of_everything_walks_as_the_serial_head(ids) -> None:
    size = VOCAB if ids is None else len(ids)
    serial, table = (small("dspark", draft_ids=ids, tabulated=k) for k in (0, size))
    cache = observed(serial)
    law = Law.of([1.0, 0.0, 1.5], [0] * 3, [1.0] * 3, [0.0] * 3)
    one = serial.propose(cache, 0, ANCHORS, law, noise(serial))
    hidden = table.draft_block(cache, 0, ANCHORS)
    other = table.propose(cache, 0, ANCHORS, law, noise(serial))
    assert torch.equal(one.tokens[1], other.tokens[1])  # greedy
    # Ids lie in another order in the table, so that uniforms pick others; each law is that of its own predecessors.
    before = torch.cat((ANCHORS[:, None], other.tokens[:, :-1]), dim=1)
    scores = (
        table.tables.logits(hidden) + table.selection.correction(hidden, before) @ table.selection.correction_head.T
    )
    index = other.support if ids is None else torch.searchsorted(ids, other.support)
    torch.testing.assert_close(law_probs(scores, law).gather(2, index), other.probs, rtol=0, atol=1e-6)


def test_a_small_table_holds_the_likeliest_of_the_backbone() -> None:
    drafter = small("dspark", tabulated=4)
    cache = observed(drafter)
    proposal = drafter.propose(cache, 0, ANCHORS, LAW, noise(drafter))
    best = drafter.tables.logits(drafter.draft_block(cache, 0, ANCHORS)).topk(4, dim=-1).indices
    assert torch.equal(proposal.support, best)
    assert (proposal.support == proposal.tokens[..., None]).any(-1).all()


def test_transitions_are_what_a_tabulated_walk_goes_by() -> None:
    serial, table = small("dspark"), small("dspark", tabulated=4)
    assert not serial.tabulates
    assert table.tabulates
    cache = observed(table)
    proposal = table.propose(cache, 0, ANCHORS, LAW, noise(table))
    transitions = table.transitions(cache, 0, ANCHORS)
    assert transitions.scores.shape == (3, table.candidates, 4, 4)
    walked_again = walked(transitions.scores, transitions.candidates, LAW, noise(table))
    assert torch.equal(walked_again.tokens, proposal.tokens)
    torch.testing.assert_close(walked_again.probs, proposal.probs)


@pytest.mark.parametrize("sizes", [{}, {"confidence_with_markov": False}, {"tabulated": 8}])
def test_confidence_does_not_look_at_the_token_of_its_own_place(sizes) -> None:
    drafter = small("dspark", **sizes)
    cache = observed(drafter)
    one, other = noise(drafter), noise(drafter)
    other[:, 2] = 1 - one[:, 2]
    law = Law.of([3.0] * 3, [0] * 3, [1.0] * 3, [0.0] * 3)
    first, second = (drafter.propose(cache, 0, ANCHORS, law, u) for u in (one, other))
    assert (first.tokens[:, 2] != second.tokens[:, 2]).any()
    assert torch.equal(first.confidence[:, :3], second.confidence[:, :3])
    assert ((first.confidence > 0) & (first.confidence < 1)).all()
    if sizes.get("confidence_with_markov", True):
        differ = first.tokens[:, 2] != second.tokens[:, 2]
        assert (first.confidence[differ, 3] != second.confidence[differ, 3]).all()
    assert small("dspark", confidence=False).propose(cache, 0, ANCHORS, law, one).confidence is None


@pytest.mark.parametrize(("kind", "sizes"), [("dflash", {}), *HEADS.values(), ("dspark", {"tabulated": 5})])
def test_a_row_does_not_depend_on_its_batch(kind, sizes) -> None:
    drafter = small(kind, **sizes)
    cache = observed(drafter)
    together = drafter.propose(cache, 0, ANCHORS, LAW, noise(drafter))
    for row in range(3):
        alone = drafter.propose(cache, row, ANCHORS[row : row + 1], LAW.rows([row]), noise(drafter)[row : row + 1])
        assert torch.equal(alone.tokens[0], together.tokens[row])
        torch.testing.assert_close(alone.probs[0], together.probs[row], rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["dflash", "domino", "dspark"])
def test_packed_weights_propose_the_same(kind) -> None:
    drafter = small(kind, dtype=torch.float32)
    cache = observed(drafter)
    plain = drafter.propose(cache, 0, ANCHORS, LAW, noise(drafter))
    drafter.pack()
    packed = drafter.propose(cache, 0, ANCHORS, LAW, noise(drafter))
    assert torch.equal(packed.tokens, plain.tokens)
    torch.testing.assert_close(packed.probs, plain.probs, rtol=0, atol=1e-4)


def test_the_published_sizes_are_the_defaults() -> None:
    parameters = {"dflash": 1048.6e6, "domino": 1105e6, "dspark": 1126e6}
    for kind, count in parameters.items():
        config = KINDS[kind].config()
        assert isinstance(config, ParallelConfig)
        with torch.device("meta"):
            drafter = KINDS[kind].build(config, torch.nn.Identity(), torch.empty(config.vocab_size, 4096), None)
            assert sum(p.numel() for p in drafter.parameters()) / count == pytest.approx(1, abs=2e-3)


@pytest.mark.parametrize(
    ("config", "sizes", "message"),
    [
        (DSparkConfig, {"markov_head": "other"}, "markov_head is 'other'"),
        (DSparkConfig, {"markov_head": "rnn", "tabulated": 4}, "tabulated is 4 with a rnn head"),
        (DSparkConfig, {"markov_rank": 0}, "markov_rank is 0"),
        (DominoConfig, {"gru_hidden_size": 0}, "gru_hidden_size is 0"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(config, sizes, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(**sizes)
