"""Linear layers whose weight lies as the processor's matrix kernels read it.

One rule: the product is the layer's own, only faster. oneDNN rearranges a weight once, here, instead of at every call,
and its kernels then cost almost the same for one row as for a block of eight: what verification on a CPU lives on.
A row's result hardly depends on how many rows stand beside it, which keeps speculative and plain decoding together;
in bfloat16 it does not at all, for few rows (`kernels/alike.py`): a lone row goes in company, since a product of one
row is summed another way on some processors, and on those with AVX-512 four rows take a third less time than one.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

DTYPES = (torch.float32, torch.bfloat16)
# Rows that up to half as many are made up to, by repeating them. The matrix kernels for AVX-512 are at their best with
# three to six, but for those for AMX, which cost the same for any few and in float32 are no quicker than a lone row.
# Elsewhere a second row only costs time, which bfloat16 pays for the sake of equal bits.
_FOUND = torch.cpu.get_capabilities()
_AVX512, _AMX = bool(_FOUND.get("avx512_f")), bool(_FOUND.get("amx_tile"))
COMPANY = {torch.float32: 4 if _AVX512 and not _AMX else 1, torch.bfloat16: 4 if _AVX512 else 2}
SMALL = 1 << 17  # a float32 weight of fewer numbers lies in a near cache: to join rows costs more than it saves

# The overloads by name: resolving them anew at each of two hundred calls a round takes as long as some of the products.
_linear = torch.ops.mkldnn._linear_pointwise.default
_linear_binary = torch.ops.mkldnn._linear_pointwise.binary


def company_of(weight: Tensor) -> int:
    """How many rows few rows are best made up to, with this weight."""
    return 1 if weight.dtype == torch.float32 and weight.numel() < SMALL else COMPANY[weight.dtype]


def packable(weight: Tensor) -> bool:
    """Whether oneDNN has kernels for this weight here: on a CPU, float32, or bfloat16 where the CPU multiplies it."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype in DTYPES


class PackedLinear(nn.Module):
    """A frozen `nn.Linear` with a packed weight.

    Where a lone row is best alone, in float32 without AVX-512 or with a small weight, the plain weight stays beside it:
    such a row is faster by it.

    Args:
        linear: the layer; its weight must be `packable`.
        keep: whether the plain weight stays in any case, as where others look up its rows.
    """

    def __init__(self, linear: nn.Linear, *, keep: bool = False) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight = linear.weight.detach()
        # Neither parameter nor buffer: the packed weight can be multiplied with, and nothing else.
        self._packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight)
        self.dtype = weight.dtype
        self._company = company_of(weight)
        self._by_row = self._company == 1
        if keep or self._by_row:
            self.weight = linear.weight
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """x Wᵀ + b: (..., in) → (..., out)."""
        if self._plainly(x):
            return F.linear(x, self.weight, self.bias)
        return self._product(x, "none")

    def silu(self, x: Tensor) -> Tensor:
        """silu(x Wᵀ + b): (..., in) → (..., out)."""
        if self._plainly(x):
            return F.silu(F.linear(x, self.weight, self.bias), inplace=True)
        return self._product(x, "swish")

    def times(self, x: Tensor, factor: Tensor) -> Tensor:
        """(x Wᵀ + b) ⊙ factor (..., out)."""
        if self._plainly(x):
            return F.linear(x, self.weight, self.bias).mul_(factor)
        return self._product_with(x, factor, "mul")

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        """residual (..., out) + x Wᵀ + b."""
        if self._plainly(x):
            return F.linear(x, self.weight, self.bias).add_(residual)
        return self._product_with(x, residual, "add")

    def copies(self, rows: int) -> int:
        """How often so many rows are best multiplied at once: more than once for very few."""
        return self._company // rows if 0 < rows <= self._company // 2 else 1

    def _plainly(self, x: Tensor) -> bool:
        return self._by_row and x.numel() == self.in_features

    def _product(self, x: Tensor, then: str) -> Tensor:
        """`then` of x Wᵀ + b, few rows in company."""
        if (times := self.copies(x.numel() // self.in_features)) > 1:
            return _first(self._product(_joined(x, times), then), x)
        return cast(Tensor, _linear(x, self._packed, self.bias, then, [], ""))

    def _product_with(self, x: Tensor, other: Tensor, how: str) -> Tensor:
        """x Wᵀ + b, and `other` (..., out) added or multiplied, few rows in company."""
        if (times := self.copies(x.numel() // self.in_features)) > 1:
            return _first(self._product_with(_joined(x, times), _joined(other, times), how), x)
        return cast(Tensor, _linear_binary(x, other, self._packed, self.bias, how))

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


def pack(module: nn.Module, *, keep: bool = False) -> int:
    """Replace every packable `nn.Linear` inside a frozen module, and count them; `keep` as in `PackedLinear`."""
    count = 0
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and packable(child.weight):
                setattr(parent, name, PackedLinear(child, keep=keep))
                count += 1
    return count


def linear_of(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """A frozen layer around a weight (out, in) and a bias (out), which are shared, not copied."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight.detach(), requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return layer


def packed_product(weight: Tensor, bias: Tensor | None = None) -> nn.Module:
    """x Wᵀ + b for a weight (out, in) and a bias (out), packed where there are kernels for it."""
    layer = linear_of(weight, bias)
    return PackedLinear(layer) if packable(weight) else layer


def _joined(x: Tensor, times: int) -> Tensor:
    """The rows of x (..., n), the whole of them so many times: (rows, n)."""
    return x.reshape(-1, x.shape[-1]).repeat(times, 1)


def _first(products: Tensor, like: Tensor) -> Tensor:
    """As many of the products (rows, n) as `like` has rows, with its leading dimensions: (..., n)."""
    return products[: like.numel() // like.shape[-1]].view(*like.shape[:-1], -1)
