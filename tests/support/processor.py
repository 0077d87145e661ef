"""What this processor can do: marks for tests that need it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dspine.kernels.packed import PackedLinear, alike, packable

BFLOAT16 = packable(torch.zeros(2, 2, dtype=torch.bfloat16))

needs_onednn = pytest.mark.skipif(not packable(torch.zeros(2, 2)), reason="no oneDNN here")
needs_bfloat16 = pytest.mark.skipif(not BFLOAT16, reason="oneDNN has no bfloat16 products for this processor")
needs_alike = pytest.mark.skipif(
    not (BFLOAT16 and alike([PackedLinear(nn.Linear(1536, 576, bias=False, dtype=torch.bfloat16))])),
    reason="bfloat16 products of one row and of many differ on this processor",
)
