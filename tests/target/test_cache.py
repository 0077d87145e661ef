"""The cache in transformers' eyes: what models ask of it, and where their keys and values land."""

from __future__ import annotations

import torch

from dspine.kernels.kv import Span
from dspine.target.cache import TargetCache


def test_models_see_the_longest_row_and_write_into_the_rows():
    cache = TargetCache(2, 3, dtype=torch.float64, device=torch.device("cpu"))
    assert cache.get_seq_length() == 0
    cache.open(Span(1, (8, 5), 4))
    assert (cache.get_seq_length(), cache.get_query_offset(1), cache.get_mask_sizes(4, 1)) == (8, 8, (12, 0))
    assert (cache.get_max_length(), cache.is_compileable) == (-1, False)
    new = torch.randn(2, 2, 4, 16, dtype=torch.float64)
    keys, values = cache.update(new, -new, 1, kwargs={"position_ids": None})
    assert keys.shape == values.shape == (2, 2, 12, 16)
    assert torch.equal(keys[0, :, 8:], new[0])
    assert torch.equal(keys[1, :, 5:9], new[1])
    assert torch.equal(values, -keys)
    assert cache.rows.lengths == [0, 0, 0]  # committing is the caller's business
