"""The target computes what its model computes: in one go, in pieces, ragged, rolled back, windowed."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiny_target import (
    EOS,
    IM_END,
    KINDS,
    TOKENS,
    sliding,
    tiny_model,
    tiny_target,
    tiny_tokenizer,
)
from torch import Tensor, nn

from dspine.errors import TargetError
from dspine.kernels.kv import Span
from dspine.target.model import Target

VARIANTS = [
    *((kind, {}) for kind in KINDS),
    *((kind, {"tie_word_embeddings": True}) for kind in KINDS),
    *((kind, sliding(kind)) for kind in ("qwen3", "qwen2", "mistral")),
    *((kind, sliding(kind, full_layers=3)) for kind in ("qwen3", "qwen2")),
]
# The norms of the models compute in float32 whatever the dtype; a wrong mask or slot is off by 0.1 and more.
NEAR = 1e-6
IDS = torch.randint(TOKENS, (2, 40), generator=torch.Generator().manual_seed(1))


def own_logits(kind: str, overrides: dict) -> Tensor:
    """The model's logits without anything of ours: torch's attention, its own masks, no cache."""
    model = tiny_model(kind, dtype=torch.float64, **overrides)
    model.set_attn_implementation("sdpa")
    with torch.no_grad():
        return model(IDS, use_cache=False).logits


@pytest.fixture(scope="module")
def windowed() -> Target:
    """Three layers that see everything and three that see 8 slots, in float64."""
    return tiny_target(dtype=torch.float64, window=8, full_layers=3)


@pytest.mark.parametrize(("kind", "overrides"), VARIANTS)
def test_one_forward_equals_the_models_own(kind, overrides):
    target = tiny_target(kind, dtype=torch.float64, **overrides)
    out = target.forward(IDS, target.new_cache(2), Span(0, (0, 0), 40))
    torch.testing.assert_close(target.logits(out.hidden), own_logits(kind, overrides), rtol=0, atol=NEAR)
    assert out.features is None


@pytest.mark.parametrize("chunk", [1, 5, 16])
@pytest.mark.parametrize("overrides", [{}, sliding(), sliding(full_layers=2)], ids=["full", "window", "mixed"])
def test_prefill_in_chunks_changes_nothing(overrides, chunk):
    target = tiny_target(dtype=torch.float64, **overrides)
    cache, got = target.new_cache(2), []
    for first in range(0, 40, chunk):
        new = IDS[:, first : first + chunk]
        got.append(target.forward(new, cache, Span(0, (first, first), new.shape[1]), taps=(0, 4)))
    whole = target.forward(IDS, target.new_cache(2), Span(0, (0, 0), 40), taps=(0, 4))
    torch.testing.assert_close(torch.cat([out.hidden for out in got], 1), whole.hidden, rtol=0, atol=NEAR)
    torch.testing.assert_close(torch.cat([out.features for out in got], 1), whole.features, rtol=0, atol=NEAR)


@settings(max_examples=15)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=6))
def test_ragged_rollback_equals_recomputing(windowed, kept):
    """Rounds of 4 tokens a row: row b keeps `kept[..][b]` of them, the rest was wrong and is overwritten."""
    cache, lengths = windowed.new_cache(2), [12, 9]
    windowed.forward(IDS[:, :12], cache, Span(0, (0, 0), 12))
    whole = windowed.forward(IDS, windowed.new_cache(2), Span(0, (0, 0), 40)).hidden
    for round_kept in kept:
        new = torch.stack([IDS[row, lengths[row] : lengths[row] + 4] for row in range(2)])
        for row, keep in enumerate(round_kept):
            new[row, keep:] = (new[row, keep:] + 1) % TOKENS
        hidden = windowed.forward(new, cache, Span(0, (lengths[0], lengths[1]), 4)).hidden
        for row, keep in enumerate(round_kept):
            expected = whole[row, lengths[row] : lengths[row] + keep]
            torch.testing.assert_close(hidden[row, :keep], expected, rtol=0, atol=NEAR)
            lengths[row] += keep


def test_what_left_the_window_has_no_influence():
    target = tiny_target(dtype=torch.float64, window=8, num_hidden_layers=2)
    reach = 2 * (8 - 1)  # a window of 8 slots, twice
    changed = IDS.clone()
    changed[:, : 39 - reach] = (changed[:, : 39 - reach] + 7) % TOKENS
    a, b = (target.forward(ids, target.new_cache(2), Span(0, (0, 0), 40)).hidden for ids in (IDS, changed))
    torch.testing.assert_close(a[:, -1], b[:, -1], rtol=0, atol=NEAR)
    assert float((a[:, -2] - b[:, -2]).abs().max()) > 1e-3


def test_rows_of_a_larger_cache_are_left_alone(windowed):
    cache = windowed.new_cache(3)
    windowed.forward(IDS[:1], cache, Span(2, (0,), 40))
    windowed.forward(IDS[1:], cache, Span(0, (0,), 40))
    alone = windowed.forward(IDS[:1], windowed.new_cache(1), Span(0, (0,), 40)).hidden
    again = windowed.forward(IDS[:1, 39:], cache, Span(2, (39,), 1)).hidden
    torch.testing.assert_close(again[:, 0], alone[:, 39], rtol=0, atol=NEAR)


def test_ids_must_fit_the_span(windowed):
    with pytest.raises(ValueError, match=r"ids \(2, 40\) for a span of 2 rows and 3 tokens"):
        windowed.forward(IDS, windowed.new_cache(2), Span(0, (0, 0), 3))


def test_training_cannot_reach_the_target():
    target = tiny_target()
    assert not any(parameter.requires_grad for parameter in target.model.parameters())
    assert not target.model.training
    hidden = torch.randn(3, 64, requires_grad=True)
    target.logits(hidden).sum().backward()  # yet gradients pass through the head
    assert hidden.grad is not None


@pytest.mark.parametrize("tied", [True, False])
def test_the_head_is_the_models_own_storage(tied):
    target = tiny_target(tie_word_embeddings=tied)
    assert target.head_weight.data_ptr() == target.model.lm_head.weight.data_ptr()
    assert (target.head_weight.data_ptr() == target.embedding.weight.data_ptr()) == tied


def test_padding_rows_of_the_vocabulary_are_counted_apart():
    target = tiny_target(vocab_size=336)
    assert (target.vocab_size, target.decodable) == (336, TOKENS)
    out = target.forward(IDS, target.new_cache(2), Span(0, (0, 0), 40))
    assert target.logits(out.hidden).shape == (2, 40, 336)


def test_ids_without_an_embedding_are_not_decodable():
    model = tiny_model(vocab_size=250, pad_token_id=0, bos_token_id=1, eos_token_id=2)  # smaller than the tokenizer
    assert Target(model, tiny_tokenizer(), name="small").decodable == 250


def test_every_end_token_is_found():
    assert tiny_target().eos_ids == {EOS, IM_END}  # config and tokenizer
    model = tiny_model(eos_token_id=[7, 8])
    model.generation_config.eos_token_id = [8, 9]
    assert Target(model, tiny_tokenizer(), name="many").eos_ids == {7, 8, 9, IM_END}


def test_head_digest_does_not_depend_on_the_loaded_dtype():
    in_float32, in_bfloat16 = tiny_target(), tiny_target()
    in_bfloat16.model.bfloat16()
    assert in_bfloat16.head_digest == in_float32.head_digest
    assert len(in_bfloat16.head_digest) == 64
    assert in_bfloat16.head_digest != tiny_target(seed=1).head_digest


def test_head_digest_covers_the_last_chunk(monkeypatch):
    monkeypatch.setattr("dspine.target.describe._ROWS_AT_ONCE", 100)
    target, other = tiny_target(), tiny_target()
    other.head_weight[-1, -1] += 1
    assert target.head_digest != other.head_digest


def test_facts():
    facts = tiny_target(rope_parameters={"rope_type": "default", "rope_theta": 5000.0}).facts
    assert (facts.hidden_size, facts.intermediate_size, facts.num_layers) == (64, 128, 6)
    assert (facts.num_attention_heads, facts.num_key_value_heads, facts.head_dim) == (4, 2, 16)
    assert (facts.vocab_size, facts.rope_theta, facts.max_position_embeddings) == (320, 5000.0, 4096)
    assert tiny_target("qwen2").facts.head_dim == 16  # a kind whose config has no such field


def test_context_limit_ends_where_rotary_frequencies_change():
    longrope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "short_factor": [1.0] * 8,
        "long_factor": [2.0] * 8,
    }
    assert tiny_target(max_position_embeddings=256).context_limit == 256
    assert tiny_target(max_position_embeddings=256, rope_parameters=longrope).context_limit == 64


class Int8Linear(nn.Module):
    """A linear layer that keeps integers and one scale, as a quantised model would."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.out_features = linear.out_features
        self.scale = float(linear.weight.detach().abs().max()) / 127
        self.register_buffer("weight", (linear.weight / self.scale).round().to(torch.int8))

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden @ (self.weight.to(hidden.dtype) * self.scale).T


def test_a_quantised_target_is_lossless_against_itself():
    model = tiny_model()
    for layer in model.model.layers:
        layer.mlp.down_proj = Int8Linear(layer.mlp.down_proj)
    model.lm_head = Int8Linear(model.lm_head)
    target = Target(model, tiny_tokenizer(), name="int8")
    whole = target.logits(target.forward(IDS, target.new_cache(2), Span(0, (0, 0), 40)).hidden)
    cache = target.new_cache(2)
    target.forward(IDS[:, :30], cache, Span(0, (0, 0), 30))
    tail = target.logits(target.forward(IDS[:, 20:30], cache, Span(0, (20, 20), 10)).hidden)
    torch.testing.assert_close(tail, whole[:, 20:30], rtol=0, atol=1e-4)
    with torch.no_grad():
        torch.testing.assert_close(whole, model(IDS).logits, rtol=0, atol=1e-4)


def test_a_quantised_head_is_refused_to_drafters_by_name():
    model = tiny_model()
    model.lm_head = Int8Linear(model.lm_head)
    with pytest.raises(TargetError, match=r"head of int8 is a Int8Linear with torch.int8"):
        _ = Target(model, tiny_tokenizer(), name="int8").head_weight
