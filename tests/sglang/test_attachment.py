"""What the plugin attaches to, in the SGLang that is installed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import sglang
import torch
from sglang.srt.managers import scheduler
from sglang.srt.models import dflash
from sglang.srt.plugins import load_plugins
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from tests.support.blocks import small_drafter

from dspine.drafter.transitions import walked
from dspine.errors import ServeError
from dspine.kernels.law import Law
from dspine.serve.sglang import contract
from dspine.serve.sglang.head import DraftHead, TransitionSelector
from dspine.serve.sglang.worker import _check_attached


@pytest.fixture(scope="module", autouse=True)
def _plugins() -> None:
    load_plugins()


def test_this_sglang_is_the_one_that_was_tested():
    contract.check(sglang.__version__, contract.REGISTRATION)
    contract.check(sglang.__version__, contract.SERVING)


def test_the_algorithm_is_registered_and_its_hooks_took():
    algorithm = SpeculativeAlgorithm.from_string("DSPINE")
    assert algorithm.is_dflash_family()
    assert not algorithm.is_dflash()
    assert not algorithm.need_topk()
    _check_attached()


def test_a_hook_that_did_not_take_is_told(monkeypatch):
    monkeypatch.setattr(scheduler, "validate_dflash_request", lambda request, overlap: None)
    with pytest.raises(ServeError, match="the check of requests"):
        _check_attached()


class Network:
    """Our own drafter behind the names that the selector asks for."""

    def __init__(self, drafter) -> None:
        self.drafter, self.width = drafter, drafter.config.hidden_size
        self.head = SimpleNamespace(rows=drafter.head)

    def refine(self, last, predecessors):
        return self.drafter.refine(last, predecessors)


def test_the_selector_walks_as_our_own_drafter_does():
    drafter = small_drafter()
    torch.manual_seed(3)
    batch, places, width = 4, drafter.candidates, drafter.config.hidden_size
    hidden, last = torch.randn(batch, places, width), torch.randn(batch, places, width)
    anchors, uniforms = torch.tensor([3, 50, 71, 8]), torch.rand(batch, places)
    candidates = drafter.top_candidates(hidden)
    selector = TransitionSelector(Network(drafter), drafter.config.top_k)
    scores = selector.build_lattice(
        candidate_ids=candidates,
        unary_logits=torch.zeros(candidates.shape),
        hidden_states=torch.cat((hidden, last), dim=-1),
        anchor_token_ids=anchors,
    )
    torch.testing.assert_close(scores, drafter.transition_cache(last, anchors, candidates))
    tokens, laws = selector.sample_path(
        candidate_ids=candidates,
        scores=scores,
        uniforms=uniforms,
        temperatures=torch.tensor([1.0, 0.5, 1.0, 2.0]),
        greedy_mask=torch.tensor([True, False, False, False]),
    )
    law = Law.of([0.0, 0.5, 1.0, 2.0], [0] * 4, [1.0] * 4, [0.0] * 4)
    expected = walked(scores, candidates, law, uniforms)
    assert torch.equal(tokens, expected.tokens)
    torch.testing.assert_close(laws, expected.probs, atol=1e-6, rtol=0)
    assert set(laws[0].unique().tolist()) == {0.0, 1.0}


def test_a_restricted_vocabulary_gives_ids_of_the_whole_one(monkeypatch):
    monkeypatch.setattr(dflash, "get_parallel", lambda: SimpleNamespace(tp_size=1))
    torch.manual_seed(4)
    weight, hidden = torch.randn(40, 8), torch.randn(5, 8)
    allowed = torch.tensor([1, 4, 9, 17, 30, 38])
    ids, scores = DraftHead(weight, allowed).top(hidden, 3)
    assert torch.isin(ids, allowed).all()
    everything = hidden @ weight.T
    torch.testing.assert_close(scores, everything.gather(1, ids))
    best = everything[:, allowed].topk(3, dim=1).indices
    assert torch.equal(ids, allowed[best])
    whole, _ = DraftHead(weight, None).top(hidden, 3)
    assert torch.equal(whole, everything.topk(3, dim=1).indices)
