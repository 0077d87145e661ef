"""The fused decoder computes what transformers' own forward computes, of the same model with its plain weights."""

from __future__ import annotations

import pytest
import torch
from tests.support.processor import needs_alike, needs_bfloat16, needs_onednn
from tests.support.tiny_target import KINDS, TOKENS, sliding, tiny_model, tiny_tokenizer

from dspine.errors import TargetError
from dspine.kernels import packed as packed_products
from dspine.kernels.kv import Span
from dspine.kernels.packed import PackedLinear
from dspine.target.cache import TargetCache
from dspine.target.model import Target

pytestmark = needs_onednn

IDS = torch.randint(TOKENS, (2, 40), generator=torch.Generator().manual_seed(4))
TAPS = (3, 0)
LONG_ROPE = {
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 1e4,
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
}
VARIANTS = [
    *((kind, {}) for kind in KINDS),
    *((kind, {"tie_word_embeddings": True}) for kind in KINDS),
    *((kind, sliding(kind)) for kind in ("qwen3", "qwen2", "mistral")),
    ("qwen3", sliding("qwen3", full_layers=3)),
    ("llama", LONG_ROPE),
    ("llama", {"attention_bias": True, "mlp_bias": True}),
    ("llama", {"num_key_value_heads": 4}),
]


def both(kind: str, dtype: torch.dtype = torch.float32, **overrides: object) -> tuple[Target, Target]:
    """The target as it is, and packed."""
    plain, packed = (
        Target(tiny_model(kind, dtype=dtype, **overrides), tiny_tokenizer(), name=kind, packed=packed)
        for packed in (False, True)
    )
    assert plain.fused is None
    return plain, packed


@pytest.mark.parametrize(("kind", "overrides"), VARIANTS)
def test_prefill_rounds_and_single_tokens_equal_the_models_own(kind, overrides):
    plain, packed = both(kind, **overrides)
    assert packed.fused is not None
    caches = plain.new_cache(2), packed.new_cache(2)
    # a prefill, a ragged round that overwrites rejected slots, one token a row, one row alone
    for span in (Span(0, (0, 0), 20), Span(0, (15, 9), 4), Span(0, (19, 13), 1), Span(1, (14,), 1)):
        ids = torch.stack([IDS[span.first + row, s : s + span.width] for row, s in enumerate(span.starts)])
        expected, got = (
            target.forward(ids, cache, span, TAPS) for target, cache in zip((plain, packed), caches, strict=True)
        )
        torch.testing.assert_close(got.hidden, expected.hidden, rtol=2e-4, atol=2e-4)
        torch.testing.assert_close(got.features, expected.features, rtol=2e-4, atol=2e-4)
        torch.testing.assert_close(packed.logits(got.hidden), plain.logits(expected.hidden), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(("kind", "overrides"), [("llama", {}), ("qwen3", sliding("qwen3", full_layers=3))])
def test_a_ragged_round_equals_the_rectangle_and_leaves_other_slots_alone(kind, overrides):
    _, packed = both(kind, **overrides)
    assert packed.ragged
    ids = torch.randint(TOKENS, (5, 30), generator=torch.Generator().manual_seed(7))
    counts, starts = (4, 1, 1, 3, 4), (11, 20, 3, 16, 5)
    caches = packed.new_cache(5), packed.new_cache(5)
    for cache in caches:
        packed.forward(ids, cache, Span(0, (0,) * 5, 30))
    new = torch.stack([ids[row, start : start + 4] for row, start in enumerate(starts)]).flip(1)
    ragged = packed.forward(new, caches[0], Span.of(0, starts, counts), TAPS)
    even = packed.forward(new, caches[1], Span(0, starts, 4), TAPS)
    for row, count in enumerate(counts):
        for got, expected in ((ragged.hidden, even.hidden), (ragged.features, even.features)):
            torch.testing.assert_close(got[row, :count], expected[row, :count], rtol=1e-4, atol=1e-4)
    for cache in caches:
        cache.open(Span(0, (29,) * 5, 1))
    for ours, theirs in zip(caches[0].rows.read(1), caches[1].rows.read(1), strict=True):
        for row, (start, count) in enumerate(zip(starts, counts, strict=True)):
            torch.testing.assert_close(ours[row, :, : start + count], theirs[row, :, : start + count])
            if count < 4:  # what the rectangle fills up with is not written
                assert not torch.equal(
                    ours[row, :, start + count : start + 4], theirs[row, :, start + count : start + 4]
                )


def test_a_ragged_round_multiplies_by_its_tokens_alone(monkeypatch):
    _, packed = both("llama")
    cache, seen = packed.new_cache(3), set()
    packed.forward(IDS[[0, 1, 0], :9], cache, Span(0, (0, 0, 0), 9))
    product = PackedLinear._product
    monkeypatch.setattr(
        PackedLinear, "_product", lambda self, x, then: seen.add(x[..., 0].numel()) or product(self, x, then)
    )
    packed.forward(IDS[[0, 1, 0], :8], cache, Span.of(0, (9, 9, 9), (8, 1, 2)))
    assert seen == {11}


@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (1, 2)], ids=str)
def test_few_tokens_are_multiplied_in_company_and_attend_once(monkeypatch, shape):
    """Repeated rows change neither what comes out nor what the cache holds."""
    monkeypatch.setitem(packed_products.COMPANY, torch.float32, 4)
    monkeypatch.setattr(packed_products, "SMALL", 0)
    rows, width = shape
    plain, packed = both("qwen3")
    seen, product = set(), PackedLinear._product
    monkeypatch.setattr(
        PackedLinear, "_product", lambda self, x, then: seen.add(x[..., 0].numel()) or product(self, x, then)
    )
    found = []
    for target in (plain, packed):
        cache = target.new_cache(rows)
        target.forward(IDS[:rows, :9], cache, Span(0, (0,) * rows, 9))
        seen.clear()
        for start in (9, 9 + width):  # the second reads what the first has left
            out = target.forward(IDS[:rows, start : start + width], cache, Span(0, (start,) * rows, width), taps=(1,))
        found.append((out.hidden, out.features))
        if target is packed:
            assert seen == {4}
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@needs_bfloat16
def test_bfloat16_stays_near():
    plain, packed = both("qwen3", torch.bfloat16)
    exact = Target(tiny_model("qwen3"), tiny_tokenizer(), name="exact")
    span = Span(0, (0, 0), 20)
    near, ours, theirs = (t.forward(IDS[:, :20], t.new_cache(2), span).hidden.float() for t in (exact, packed, plain))
    # No farther from the float32 model than transformers' own bfloat16 forward is.
    assert (ours - near).abs().mean() < 1.1 * (theirs - near).abs().mean()


@needs_alike
@pytest.mark.parametrize(("kind", "overrides"), [("llama", {}), ("qwen3", sliding("qwen3", full_layers=3))])
def test_a_block_in_bfloat16_equals_its_tokens_one_by_one_bit_for_bit(kind, overrides):
    """What makes speculative decoding in bfloat16 the plain one, and not only near it."""
    _, packed = both(kind, torch.bfloat16, **overrides)
    ids = torch.randint(TOKENS, (1, 150), generator=torch.Generator().manual_seed(5))

    def logits(width: int) -> torch.Tensor:
        cache, parts = packed.new_cache(1), []
        packed.forward(ids[:, :9], cache, Span(0, (0,), 9))
        for start in range(9, 150, width):
            new = ids[:, start : start + width]
            hidden = packed.forward(new, cache, Span(0, (start,), new.shape[1])).hidden
            parts.append(packed.logits(hidden))
        return torch.cat(parts, 1)

    one_by_one = logits(1)
    for width in (2, 5, 8, 16, 32):
        assert torch.equal(logits(width), one_by_one), width


@needs_alike
@pytest.mark.parametrize("start", [9, 60, 190, 380])
def test_in_bfloat16_a_line_has_the_same_bits_beside_branches(start):
    """The branches lie in the slots behind it, at 60, 190 and 380 across an end of those that the line alone reads."""
    _, packed = both("qwen3", torch.bfloat16, hidden_size=576, intermediate_size=1536, initializer_range=0.05)
    ids = torch.randint(TOKENS, (2, start + 8), generator=torch.Generator().manual_seed(6))

    def line(span: Span) -> torch.Tensor:
        cache = packed.new_cache(2)
        packed.forward(ids[:, :start], cache, Span(0, (0, 0), start))
        return packed.forward(ids[:, start : start + span.width], cache, span, (0,)).hidden

    beside = line(Span(0, (start, start), 8, parents=((0, 3, 1, 2, 4), ()), counts=(8, 2)))
    assert torch.equal(beside[0, :3], line(Span(0, (start, start), 3, counts=(3, 2)))[0])
    assert torch.equal(beside[1, :2], line(Span(0, (start, start), 2))[1])


@needs_alike
def test_in_bfloat16_a_row_has_the_same_bits_in_any_company():
    # Sums as long as a real model's: short ones come out alike in any case.
    sizes = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 2, "initializer_range": 0.05}
    _, packed = both("qwen3", torch.bfloat16, **sizes)
    ids = torch.randint(TOKENS, (7, 520), generator=torch.Generator().manual_seed(6))
    starts = (3, 64, 188, 252, 290, 380, 508)  # some cross 192, 256, 384 and 512 slots, where kernels change their way

    def prefilled(rows: list[int]) -> TargetCache:
        cache = packed.new_cache(len(rows))
        for place, row in enumerate(rows):
            packed.forward(ids[row : row + 1, : starts[row]], cache, Span(place, (0,), starts[row]))
        return cache

    def block(rows: list[int], counts: tuple[int, ...] = (8,) * 7) -> tuple[torch.Tensor, torch.Tensor]:
        new = torch.stack([ids[row, starts[row] : starts[row] + 8] for row in rows])
        span = Span.of(0, [starts[row] for row in rows], [counts[row] for row in rows])
        out = packed.forward(new[:, : span.width], prefilled(rows), span, (0,))
        assert out.features is not None
        return packed.logits(out.hidden), out.features

    alone = [block([row]) for row in range(7)]
    for counts in ((8,) * 7, (8, 1, 1, 3, 8, 8, 5), (1, 1, 2, 1, 1, 8, 1)):  # up to 56 tokens: more than stay alike
        logits, features = block(list(range(7)), counts)
        for row, count in enumerate(counts):
            assert torch.equal(logits[row, :count], alone[row][0][0, :count]), (row, counts)
            assert torch.equal(features[row, :count], alone[row][1][0, :count]), (row, counts)


@pytest.mark.parametrize("name", ["o_proj", "gate_proj", "up_proj", "down_proj", "v_proj"])
def test_a_layer_with_an_adapter_is_not_fused(name):
    class Adapted(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x) + 0.5

    outputs = []
    for packed in (False, True):
        model = tiny_model("llama", num_hidden_layers=2)
        layer = model.model.layers[1]
        getattr(layer.mlp if hasattr(layer.mlp, name) else layer.self_attn, name).__class__ = Adapted
        target = Target(model, tiny_tokenizer(), name="adapted", packed=packed)
        assert target.fused is None
        outputs.append(target.forward(IDS[:, :8], target.new_cache(2), Span(0, (0, 0), 8)).hidden)
    assert torch.equal(*outputs)


def test_the_model_itself_still_runs():
    plain, packed = both("llama")
    with torch.no_grad():
        torch.testing.assert_close(packed.model(IDS).logits, plain.model(IDS).logits, rtol=2e-3, atol=2e-3)
    assert isinstance(packed.model.lm_head, PackedLinear)


@needs_bfloat16
def test_head_and_embedding_stay_readable():
    for tied in (False, True):
        plain, packed = both("llama", torch.bfloat16, tie_word_embeddings=tied)
        assert torch.equal(packed.head_weight, plain.head_weight)
        assert packed.head_digest == plain.head_digest
        assert packed.vocab_size == plain.vocab_size


@pytest.mark.parametrize("taps", [(5,), (1, 1), (-1,)])
def test_taps_are_checked(taps):
    _, packed = both("llama")
    with pytest.raises(TargetError, match="target_layer_ids"):
        packed.forward(IDS, packed.new_cache(2), Span(0, (0, 0), 40), taps)


@pytest.mark.parametrize(
    ("kind", "dtype", "overrides"),
    [("llama", torch.float64, {}), ("llama", torch.float32, {"hidden_act": "gelu"})],
    ids=["float64", "another activation"],
)
def test_what_cannot_be_fused_runs_as_it_is(kind, dtype, overrides):
    plain, packed = both(kind, dtype, **overrides)
    assert packed.fused is None
    span = Span(0, (0, 0), 40)
    expected = plain.forward(IDS, plain.new_cache(2), span).hidden
    assert torch.equal(packed.forward(IDS, packed.new_cache(2), span).hidden, expected)
