"""What every parallel drafter shares: sight, one forward for training and decoding, the two row conventions."""

from __future__ import annotations

import pytest
import torch
from tests.support.blocks import VOCAB, small_drafter
from tests.support.parallel import batch, small
from torch import Tensor

from dspine.drafter.config import ParallelConfig
from dspine.drafter.masks import Placement, Sight, decoding_mask
from dspine.errors import ConfigError
from dspine.kernels.kv import Span
from dspine.kernels.law import Law

GREEDY = Law.greedy_rows(2)
SIGHTS = {
    "causal": {"is_causal": True},
    "both ways": {"is_causal": False},
    "sliding": {"is_causal": None, "sliding_window": 4, "sliding_layers": (0, 2)},
    "sliding both ways": {"is_causal": False, "sliding_window": 4, "sliding_layers": (1,)},
}


@pytest.mark.parametrize("sight", [Sight(), Sight(causal=False), Sight(window=2), Sight(causal=False, window=2)])
def test_masks_equal_ones_written_from_the_definition(sight: Sight) -> None:
    def sees(query: int, key: int, anchor: int, own: bool) -> bool:
        if not own and key >= anchor:
            return False
        if own and sight.causal and key > query:
            return False
        return sight.window is None or abs(query - key) < sight.window

    anchors, lengths, context, size = torch.tensor([[2, 5], [0, 3]]), torch.tensor([7, 2]), 7, 3
    mask = Placement.padded(anchors, lengths, context, size).dense(sight)
    assert mask.shape == (2, 1, 6, 13)
    for row in range(2):
        for query in range(6):
            block, place = divmod(query, size)
            at = int(anchors[row, block])
            for key in range(13):
                if key < context:
                    expected = key < lengths[row] and sees(at + place, key, at, own=False)
                else:
                    other, slot = divmod(key - context, size)
                    expected = other == block and sees(at + place, at + slot, at, own=True)
                assert bool(mask[row, 0, query, key]) == expected

    span = Span(0, (2, 5), size, ends=(4,))
    mask = decoding_mask(span, sight)
    assert mask.shape == (2, 1, 3, 8)
    for row, at in enumerate(span.starts):
        for place in range(size):
            for key in range(8):
                own = at <= key < at + size
                expected = (own or key < at) and sees(at + place, key, at, own)
                assert bool(mask[row, 0, place, key]) == expected


@pytest.mark.parametrize("sizes", SIGHTS.values(), ids=SIGHTS.keys())
@pytest.mark.parametrize("start", [0, 1])
def test_training_and_decoding_forwards_agree_over_rounds(sizes, start: int) -> None:
    """Ragged rows, random accept lengths, one cache: each round equals the training forward at the same anchors."""
    drafter = small("dflash", logits_start=start, **sizes)
    torch.manual_seed(3)
    size, total = drafter.candidates + 1, 40
    features = torch.randn(3, total, drafter.config.feature_size, dtype=drafter.dtype)
    tokens = torch.randint(0, VOCAB - 1, (3, total + size))
    cache = drafter.new_cache(4)
    anchors, seen = [4, 7, 1], [0, 0, 0]
    for _ in range(4):
        counts = [a - s for a, s in zip(anchors, seen, strict=True)]
        width = max(counts) + 2  # rows behind the real ones are padding
        pending = torch.full((3, width, features.shape[2]), 9.0, dtype=drafter.dtype)
        for row in range(3):
            pending[row, : counts[row]] = features[row, seen[row] : anchors[row]]
        drafter.observe(cache, Span(1, tuple(seen), width), pending, counts, tokens[:, :width])
        assert cache.lengths[1:] == anchors
        ids = torch.stack([tokens[row, anchors[row]] for row in range(3)])
        drafted = drafter.draft_block(cache, 1, ids)
        blocks = torch.stack([tokens[row, anchors[row] : anchors[row] + size] for row in range(3)])
        where = torch.tensor(anchors)[:, None]
        trained = drafter.blocks(features, torch.full((3,), total), where, blocks[:, None])[:, 0]
        torch.testing.assert_close(drafted, trained, atol=1e-12, rtol=1e-12)
        seen = list(anchors)
        anchors = [a + int(torch.randint(1, size + 1, ())) for a in anchors]


@pytest.mark.parametrize("sizes", SIGHTS.values(), ids=SIGHTS.keys())
def test_features_before_the_anchor_count_and_others_do_not(sizes) -> None:
    drafter = small("dflash", **sizes)
    features, lengths, anchors, tokens = batch(drafter)
    plain = drafter.blocks(features, lengths, anchors, tokens)
    later, before = features.clone(), features.clone()
    later[0, 5:] = 50.0
    before[0, 4] += 1
    assert torch.equal(drafter.blocks(later, lengths, anchors, tokens)[0, 1], plain[0, 1])
    assert (drafter.blocks(before, lengths, anchors, tokens)[0, 1] != plain[0, 1]).any()
    other = tokens.clone()
    other[..., 1:] = 7  # the tokens to predict are no input
    other[:, 2] = 9  # neither is another block
    assert torch.equal(drafter.blocks(features, lengths, anchors, other)[:, :2], plain[:, :2])


def test_causal_dflash_is_dspine_with_silent_writes_bit_for_bit() -> None:
    dspine = small_drafter(trained=True)
    for write in dspine.injection.writes:
        write.weight.zero_()
    dflash = small("dflash", dtype=torch.float32, is_causal=True)
    dflash.backbone.load_state_dict(dspine.backbone.state_dict())
    dflash.tables.embedding.load_state_dict(dspine.tables.embedding.state_dict())
    inputs = batch(dspine)
    assert torch.equal(dflash.blocks(*inputs), dspine.blocks(*inputs).hidden)


def test_both_conventions_propose_the_token_behind_the_anchor_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network whose row k says its own position, or the next: both must propose s+1, s+2, ..."""
    for start in (0, 1):
        drafter = small("dflash", logits_start=start)
        features = torch.zeros(2, 9, drafter.config.feature_size, dtype=drafter.dtype)
        cache = drafter.new_cache(2)
        drafter.observe(cache, Span(0, (0, 0), 9), features, [4, 9], torch.zeros(2, 9, dtype=torch.int64))

        def says(x: Tensor, positions: Tensor, attend: object, start: int = start) -> Tensor:
            return torch.nn.functional.one_hot(positions + 1 - start, VOCAB).double()

        monkeypatch.setattr(drafter.backbone, "forward", says)
        monkeypatch.setattr(drafter.tables, "logits", lambda hidden: hidden)
        proposed = drafter.propose(cache, 0, torch.tensor([1, 2]), GREEDY, None).tokens
        expected = torch.tensor([[4], [9]]) + torch.arange(1, drafter.candidates + 1)
        assert torch.equal(proposed, expected)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"logits_start": 2}, "logits_start is 2"),
        ({"sliding_window": 4}, "sliding_window is 4 for 0"),
        ({"sliding_layers": (0,)}, "sliding_window is None for 1"),
        ({"sliding_window": 4, "sliding_layers": (0, 9)}, "from 0 to 4"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ParallelConfig(**sizes)
