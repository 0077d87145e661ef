"""What this processor can do: marks for tests that need it."""

from __future__ import annotations

import pytest
import torch

from dspine.kernels.alike import bfloat16_serves
from dspine.kernels.packed import packable

BFLOAT16 = packable(torch.zeros(2, 2, dtype=torch.bfloat16))

needs_onednn = pytest.mark.skipif(not packable(torch.zeros(2, 2)), reason="no oneDNN here")
needs_bfloat16 = pytest.mark.skipif(not BFLOAT16, reason="oneDNN has no bfloat16 products for this processor")
needs_alike = pytest.mark.skipif(
    not bfloat16_serves(),
    reason="bfloat16 products of one row and of many differ on this processor",
)
