"""Packed linear layers compute what `nn.Linear` computes, in every fused form and shape."""

from __future__ import annotations

import pytest
import torch
from tests.support.processor import needs_bfloat16, needs_onednn
from torch import nn
from torch.nn import functional as F

from dspine.kernels import packed
from dspine.kernels.packed import PackedLinear, pack

pytestmark = needs_onednn

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
DTYPES = [torch.float32, pytest.param(torch.bfloat16, marks=needs_bfloat16)]


def layer(bias: bool, dtype: torch.dtype) -> nn.Linear:
    torch.manual_seed(3)
    return nn.Linear(48, 40, bias=bias).to(dtype).requires_grad_(False)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (1, 2), (3, 1), (2, 7), (1, 33), (0, 4)])
def test_every_form_equals_the_plain_layer(shape, dtype, bias):
    plain = layer(bias, dtype)
    fast = PackedLinear(plain)
    x, other = torch.randn(*shape, 48).to(dtype), torch.randn(*shape, 40).to(dtype)
    exact = F.linear(x.double(), plain.weight.double(), plain.bias.double() if bias else None)
    near = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    torch.testing.assert_close(fast(x).double(), exact, **near)
    torch.testing.assert_close(fast.silu(x).double(), F.silu(exact), **near)
    torch.testing.assert_close(fast.times(x, other).double(), exact * other.double(), **near)
    torch.testing.assert_close(fast.plus(x, other).double(), exact + other.double(), **near)


def test_operands_are_not_written_to():
    fast = PackedLinear(layer(True, torch.float32))
    for rows in (1, 3):
        x, other = torch.randn(rows, 48), torch.randn(rows, 40)
        before = x.clone(), other.clone()
        fast.times(x, other)
        fast.plus(x, other)
        assert torch.equal(x, before[0])
        assert torch.equal(other, before[1])


def test_strided_input():
    plain = layer(False, torch.float32)
    x = torch.randn(6, 9, 48)[::2, 1::3]
    torch.testing.assert_close(PackedLinear(plain)(x), plain(x))


def test_pack_replaces_linear_layers_alone():
    linear = nn.Linear(4, 4)
    lookup = nn.Embedding(4, 4)
    wide = nn.Linear(4, 4, dtype=torch.float64)
    module = nn.Sequential(lookup, nn.Sequential(linear, nn.ReLU()), wide)
    assert pack(module) == 1
    assert isinstance(module[1][0], PackedLinear)
    assert module[0] is lookup
    assert module[2] is wide


@pytest.mark.parametrize(
    ("dtype", "company", "rows_of"),
    [
        (torch.float32, 1, [2, 3, 4, 5]),  # a lone row goes by the plain weight
        (torch.float32, 4, [4, 4, 3, 4, 5]),
        pytest.param(torch.bfloat16, 2, [2, 2, 3, 4, 5], marks=needs_bfloat16),
        pytest.param(torch.bfloat16, 4, [4, 4, 3, 4, 5], marks=needs_bfloat16),
    ],
)
def test_few_rows_go_in_company(monkeypatch, dtype, company, rows_of):
    """Up to half as many rows as are best together are made up to that many; more go as they are."""
    monkeypatch.setitem(packed.COMPANY, dtype, company)
    monkeypatch.setattr(packed, "SMALL", 0)
    plain = layer(True, dtype)
    fast, seen, product = PackedLinear(plain), [], packed._linear
    monkeypatch.setattr(packed, "_linear", lambda x, *rest: seen.append(len(x.flatten(0, -2))) or product(x, *rest))
    for rows in (1, 2, 3, 4, 5):
        x = torch.randn(1, rows, 48).to(dtype)
        got = fast(x)
        assert got.shape == (1, rows, 40)
        torch.testing.assert_close(got, plain(x), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    assert seen == rows_of


def test_the_plain_weight_stays_where_a_lone_row_goes_by_it(monkeypatch):
    monkeypatch.setitem(packed.COMPANY, torch.float32, 4)
    assert PackedLinear(layer(False, torch.float32)).weight is not None  # a small one
    monkeypatch.setattr(packed, "SMALL", 0)
    assert not hasattr(PackedLinear(layer(False, torch.float32)), "weight")
    assert PackedLinear(layer(False, torch.float32), keep=True).weight is not None
    monkeypatch.setitem(packed.COMPANY, torch.float32, 1)
    assert PackedLinear(layer(False, torch.float32)).weight is not None


@needs_bfloat16
def test_no_row_of_bfloat16_goes_by_the_plain_weight():
    assert not hasattr(PackedLinear(layer(False, torch.bfloat16)), "weight")
    assert PackedLinear(layer(False, torch.bfloat16), keep=True).weight is not None
