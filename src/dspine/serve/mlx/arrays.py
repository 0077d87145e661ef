"""Between torch tensors and MLX arrays, bit for bit.

One rule: numpy knows no bfloat16, so such numbers cross as their bits. Files are read and judged by
`dspine.checkpoint`, which speaks torch.
"""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import torch
from torch import Tensor

DTYPES = {torch.float32: mx.float32, torch.bfloat16: mx.bfloat16, torch.float16: mx.float16}


def to_mlx(tensor: Tensor) -> mx.array:
    """An array of the tensor's shape, type and values."""
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        return mx.array(tensor.view(torch.int16).numpy()).view(mx.bfloat16)
    return mx.array(tensor.numpy())


def to_torch(array: mx.array) -> Tensor:
    """A tensor of the array's shape, type and values."""
    if array.dtype == mx.bfloat16:
        return torch.from_numpy(np.array(array.view(mx.int16))).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def torch_dtype(dtype: mx.Dtype) -> torch.dtype:
    """torch's name of a floating-point type of MLX."""
    return next(theirs for theirs, ours in DTYPES.items() if ours == dtype)
