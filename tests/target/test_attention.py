"""The grouped kernel in transformers' signature: same numbers, and nothing that it was asked for is dropped."""

from __future__ import annotations

import pytest
import torch
from tests.support.tiny_target import TOKENS, tiny_model
from torch import nn

from dspine.target import attention
from dspine.target.attention import AttentionUnsupported, dspine_attention

attention.register()
QUERY, KEY, VALUE = torch.randn(2, 4, 3, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8)
MASK = torch.ones(2, 1, 3, 5, dtype=torch.bool).tril(2)


def test_equals_attention_with_repeated_heads():
    out, weights = dspine_attention(nn.Identity(), QUERY, KEY, VALUE, MASK, scaling=0.3, sliding_window=4)
    keys, values = KEY.repeat_interleave(2, 1), VALUE.repeat_interleave(2, 1)
    scores = (QUERY @ keys.transpose(2, 3) * 0.3).masked_fill(~MASK, float("-inf"))
    torch.testing.assert_close(out, (scores.softmax(-1) @ values).transpose(1, 2))
    assert weights is None


@pytest.mark.parametrize("asked", ["softcap", "s_aux", "position_bias", "something_new"])
def test_arguments_that_change_the_result_are_refused_by_name(asked):
    with pytest.raises(AttentionUnsupported, match=f"Identity asks attention for {asked}"):
        dspine_attention(nn.Identity(), QUERY, KEY, VALUE, MASK, **{asked: torch.ones(1)})
    dspine_attention(nn.Identity(), QUERY, KEY, VALUE, MASK, **{asked: None})


def test_dropout_is_refused():
    with pytest.raises(AttentionUnsupported, match="dropout"):
        dspine_attention(nn.Identity(), QUERY, KEY, VALUE, MASK, dropout=0.1)


@pytest.mark.parametrize("padded", [False, True])
def test_the_model_itself_still_runs_under_our_attention(padded):
    """`model(ids)` and `generate` keep working, padding masks included."""
    ours, own = tiny_model(dtype=torch.float64), tiny_model(dtype=torch.float64)
    ours.set_attn_implementation(attention.NAME)
    own.set_attn_implementation("sdpa")
    ids = torch.randint(TOKENS, (2, 7), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(ids)
    if padded:
        mask[0, :3] = 0
    with torch.no_grad():
        a, b = (model(ids, attention_mask=mask).logits for model in (ours, own))
    torch.testing.assert_close(a[mask.bool()], b[mask.bool()], rtol=0, atol=1e-6)
    generated = ours.generate(ids, attention_mask=mask, max_new_tokens=5, do_sample=False)
    assert torch.equal(generated, own.generate(ids, attention_mask=mask, max_new_tokens=5, do_sample=False))
