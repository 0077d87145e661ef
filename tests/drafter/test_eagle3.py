"""The EAGLE-3 network: a chain over its own cache is the training-time test, whatever was drafted before it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from tests.support.blocks import VOCAB
from tests.support.parallel import small
from torch import Tensor

from dspine.drafter.eagle3 import Eagle3, Eagle3Config
from dspine.errors import ConfigError
from dspine.facts import TargetFacts
from dspine.kernels.kv import RowCache, Span
from dspine.kernels.law import Law, law_probs

RESTRICTED = torch.arange(0, VOCAB, 3)
FORMS = {
    "own head": {},
    "the target's head": {"own_head": False},
    "DeepSpec": {"own_head": False, "qk_norm": True},
}
LAW = Law.of([1.0, 0.0, 1.7], [0, 0, 4], [1.0, 1.0, 0.9], [0.0] * 3)


def sequences(drafter: Eagle3, length: int = 30) -> tuple[Tensor, Tensor]:
    """Features and tokens of three sequences."""
    torch.manual_seed(3)
    features = torch.randn(3, length, drafter.config.feature_size, dtype=drafter.dtype)
    return features, torch.randint(0, VOCAB - 1, (3, length))


def observe(
    drafter: Eagle3, cache: RowCache, features: Tensor, tokens: Tensor, seen: Sequence[int], counts: Sequence[int]
) -> None:
    """Show each row its next features, with padding behind them."""
    width = max(counts) + 2
    shown = torch.full((3, width, features.shape[2]), 9.0, dtype=features.dtype)
    held = torch.zeros(3, width, dtype=torch.int64)
    for row, (start, count) in enumerate(zip(seen, counts, strict=True)):
        shown[row, :count] = features[row, start : start + count]
        held[row, :count] = tokens[row, start : start + count]
    drafter.observe(cache, Span(1, tuple(seen), width), shown, counts, held)


def chain(drafter: Eagle3, cache: RowCache, inputs: Tensor) -> Tensor:
    """Draft steps of rows 1.. with given tokens (B, M): final-normed states (B, M, d)."""
    starts = [cache.lengths[1 + row] - 1 for row in range(len(inputs))]
    newest = Span(1, tuple(starts), 1)
    cache.open(newest)
    feature, states = drafter._features(cache, newest), []
    for place in range(inputs.shape[1]):
        span = Span(1, tuple(start + place for start in starts), 1)
        feature = drafter.step(cache, span, inputs[:, place], feature)
        states.append(drafter.norm(feature[:, 0]))
    return torch.stack(states, dim=1)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_steps_of_the_training_time_test_are_the_chain(form) -> None:
    """Row i at step σ is draft step σ of a chain from the true features up to i, correct tokens fed back.

    Ragged rows, chunks of a prompt, then rounds: each drafts tokens that may be wrong, and some number of them stands.
    """
    drafter = small("eagle3", **form)
    features, tokens = sequences(drafter)
    states = drafter.unroll(features, tokens)  # (M, N, S, d)
    cache, places = drafter.new_cache(4), drafter.candidates
    seen = [0, 0, 0]
    for counts in ([5, 5, 5], [4, 1, 2], [1, 6, 3], [6, 1, 1], [2, 3, 5]):
        observe(drafter, cache, features, tokens, seen, counts)
        seen = [start + count for start, count in zip(seen, counts, strict=True)]
        assert cache.lengths[1:] == seen
        known = torch.stack([tokens[row, at : at + places] for row, at in enumerate(seen)])
        taught = torch.stack([states[:, row, at - 1] for row, at in enumerate(seen)])
        torch.testing.assert_close(chain(drafter, cache, known), taught, atol=1e-12, rtol=1e-12)
        drafter.propose(cache, 1, known[:, 0], Law.greedy_rows(3), None)  # leaves its own rows behind the context


def test_a_step_of_the_training_time_test_written_row_by_row() -> None:
    """Row i at step σ sees first-step keys of rows 0..i and its own of later steps, at rotary positions 0..i+σ."""
    drafter = small("eagle3")
    features, tokens = sequences(drafter, length=7)
    states, layer, row = drafter.unroll(features, tokens, 3), drafter.midlayer, 2

    def inputs(step: int, at: int, feature: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        embedded = drafter.tables.embedding(tokens[row, at + 1 + step])
        x = torch.cat((layer.input_layernorm(embedded), layer.hidden_norm(feature)))[None, None]
        return x, drafter.rotary(torch.tensor([[at + step]]), drafter.dtype)

    for at in range(4):
        first = [inputs(0, j, drafter.fc(features[row, j])) for j in range(at + 1)]
        stored = [layer.self_attn.keys_values(*each) for each in first]
        keys, values = (torch.cat(side, 2) for side in zip(*stored, strict=True))
        feature = drafter.fc(features[row, at])
        for step in range(3):
            x, rotary = inputs(step, at, feature)
            if step:
                key, value = layer.self_attn.keys_values(x, rotary)
                keys, values = torch.cat((keys, key), 2), torch.cat((values, value), 2)
            query = layer.self_attn.queries(x, rotary)
            heads = []
            for head in range(query.shape[1]):
                group = head * keys.shape[1] // query.shape[1]
                weights = (keys[0, group] @ query[0, head, 0] / query.shape[-1] ** 0.5).softmax(0)
                heads.append(weights @ values[0, group])
            heard = feature + layer.self_attn.o_proj(torch.cat(heads))
            feature = heard + layer.mlp(layer.post_attention_layernorm(heard))
            torch.testing.assert_close(states[step, row, at], drafter.norm(feature), atol=1e-12, rtol=1e-12)


def test_a_row_sees_nothing_behind_itself() -> None:
    drafter = small("eagle3")
    features, tokens = sequences(drafter, length=12)
    plain = drafter.unroll(features, tokens)
    later, own, read = features.clone(), features.clone(), tokens.clone()
    later[:, 6:] += 1
    own[:, 5] += 1
    read[:, 8:] = (read[:, 8:] + 1) % VOCAB
    assert torch.equal(drafter.unroll(later, tokens)[:, :, 5], plain[:, :, 5])
    assert (drafter.unroll(own, tokens)[:, :, 5] != plain[:, :, 5]).any(-1).all()
    changed = drafter.unroll(features, read)[:, :, 5]  # step σ reads the token at 6+σ
    assert torch.equal(changed[:2], plain[:2, :, 5])
    assert (changed[2:] != plain[2:, :, 5]).any(-1).all()


@pytest.mark.parametrize("draft_ids", [None, RESTRICTED], ids=["full", "restricted"])
@pytest.mark.parametrize("own_head", [True, False])
def test_a_proposal_carries_the_law_of_every_step(draft_ids: Tensor | None, own_head: bool) -> None:
    drafter = small("eagle3", draft_ids=draft_ids, own_head=own_head)
    features, tokens = sequences(drafter)
    cache = drafter.new_cache(4)
    observe(drafter, cache, features, tokens, [0, 0, 0], [9, 4, 6])
    anchors = torch.tensor([3, 50, 71])
    uniforms = torch.rand(3, drafter.candidates, generator=torch.Generator().manual_seed(1))
    proposal = drafter.propose(cache, 1, anchors, LAW, uniforms)

    states = chain(drafter, cache, torch.cat((anchors[:, None], proposal.tokens[:, :-1]), dim=1))
    head = drafter.tables.head if drafter.lm_head is None else drafter.lm_head.weight
    if drafter.lm_head is None and draft_ids is not None:
        head = head[draft_ids]
    torch.testing.assert_close(proposal.probs, law_probs(states @ head.double().T, LAW), atol=1e-6, rtol=0)
    ids = torch.arange(VOCAB) if draft_ids is None else draft_ids
    assert torch.isin(proposal.tokens, ids).all()
    if draft_ids is None:
        assert proposal.support is None
    else:
        assert torch.equal(proposal.support, draft_ids.expand(3, drafter.candidates, -1))
    greedy = drafter.propose(cache, 1, anchors, Law.greedy_rows(3), None)
    assert greedy.probs is None
    assert torch.equal(greedy.tokens[1], proposal.tokens[1])  # the row at temperature 0
    best = chain(drafter, cache, torch.cat((anchors[:, None], greedy.tokens[:, :-1]), dim=1)) @ head.double().T
    assert torch.equal(greedy.tokens, ids[best.argmax(-1)])


def test_the_own_head_starts_as_the_targets_rows() -> None:
    head = torch.randn(VOCAB, 32)
    drafter = Eagle3(small("eagle3").config, torch.nn.Embedding(VOCAB, 32), head, RESTRICTED)
    assert torch.equal(drafter.lm_head.weight, head[RESTRICTED])
    assert drafter.lm_head.weight.requires_grad
    assert not drafter.head.requires_grad


def test_parameter_names_are_those_of_the_public_layout() -> None:
    attention = {f"self_attn.{name}_proj.weight" for name in "qkvo"}
    mlp = {f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")}
    norms = {f"{name}.weight" for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm")}
    layer = {f"midlayer.{name}" for name in attention | mlp | norms}
    assert set(small("eagle3").state_dict()) == layer | {"fc.weight", "norm.weight", "lm_head.weight"}
    deepspec = set(small("eagle3", **FORMS["DeepSpec"]).state_dict())
    extra = {f"midlayer.self_attn.{name}_norm.weight" for name in "qk"}
    assert deepspec == layer | extra | {"fc.weight", "norm.weight"}
    assert small("eagle3").midlayer.self_attn.q_proj.weight.shape[1] == 2 * small("eagle3").config.hidden_size


def test_sizes_for_a_target() -> None:
    facts = TargetFacts(64, 128, 6, 4, 2, 16, 320, 1e-6, 1e4, 4096)
    config = Eagle3Config.for_target(facts, 319)
    assert (config.num_hidden_layers, config.target_layer_ids, config.candidates) == (1, (1, 2, 3), 7)
    assert Eagle3Config.for_target(facts, 319, target_layer_ids=(0, 4)).feature_size == 2 * 64
    with pytest.raises(ConfigError, match="one layer"):
        Eagle3Config(num_hidden_layers=2)


def test_packed_weights_propose_the_same() -> None:
    for own_head in (True, False):
        plain, packed = (small("eagle3", dtype=torch.float32, draft_ids=RESTRICTED, own_head=own_head) for _ in "ab")
        packed.pack()
        features, tokens = sequences(plain)
        uniforms = torch.rand(3, plain.candidates, generator=torch.Generator().manual_seed(1))
        found = []
        for drafter in (plain, packed):
            cache = drafter.new_cache(4)
            observe(drafter, cache, features, tokens, [0, 0, 0], [9, 4, 6])
            found.append(drafter.propose(cache, 1, torch.tensor([3, 50, 71]), LAW, uniforms))
        assert torch.equal(found[0].tokens, found[1].tokens)
        torch.testing.assert_close(found[0].probs, found[1].probs, atol=1e-4, rtol=0)
