"""Which implementation is chosen, by device and by a check at start-up, and what is refused by name."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dspine.errors import ConfigError
from dspine.kernels import choice
from dspine.kernels.arithmetic import REFERENCE, Kernels
from dspine.kernels.choice import choose
from dspine.kernels.equality import first_difference

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def available(monkeypatch):
    """As if the fused kernels could run, and were the definitions with one of them replaced."""

    def install(**broken) -> Kernels:
        fused = replace(REFERENCE, fused=True, **broken)
        monkeypatch.setattr(choice, "_absent", lambda device, dtype: None)
        monkeypatch.setattr(choice, "fused_kernels", lambda: fused)
        monkeypatch.setattr(
            choice, "_unequal", lambda *_: ("kernels: they differ", "Use reference.") if broken else None
        )
        return fused

    return install


@pytest.mark.parametrize("dtype", choice.CPU_DTYPES)
def test_a_cpu_has_its_own_which_equal_the_definitions(dtype):
    assert first_difference(REFERENCE, choice.CPU, CPU, dtype) is None
    assert choose("auto", CPU, dtype) is choice.CPU


def test_the_definitions_stay_where_they_are_asked_for_or_all_there_is(available):
    available()
    assert choose("reference", CPU, torch.float32) is REFERENCE
    assert choose("reference", CUDA, torch.float32) is REFERENCE
    assert choose("auto", CPU, torch.float64) is REFERENCE


def test_a_cpu_whose_own_differ_goes_by_the_definitions(monkeypatch):
    monkeypatch.setattr(choice, "CPU", replace(choice.CPU, walk=lambda scores, law, uniforms: (scores, None)))
    with pytest.warns(RuntimeWarning, match=r"walk \(greedy\) of float32 on cpu differs"):
        assert choose("auto", CPU, torch.float32) is REFERENCE


def test_equal_kernels_are_used_on_cuda_and_where_they_are_forced(available):
    fused = available()
    assert choose("auto", CUDA, torch.bfloat16) is fused
    assert choose("fused", CPU, torch.float32) is fused


def test_unequal_kernels_are_refused_or_left_with_a_warning(available):
    available(walk=lambda *_: None)
    with pytest.raises(ConfigError, match="they differ"):
        choose("fused", CUDA, torch.float32)
    with pytest.warns(RuntimeWarning, match="they differ; the plain definitions are used"):
        assert choose("auto", CUDA, torch.float32) is REFERENCE


def test_what_cannot_be_is_refused_by_name(monkeypatch):
    with pytest.raises(ConfigError, match="'quick' is no choice\nIt is one of auto, reference, fused"):
        choose("quick", CPU, torch.float32)
    with pytest.raises(ConfigError, match="float64 has no fused kernels"):
        choose("fused", CPU, torch.float64)
    monkeypatch.setattr(choice, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"triton is not installed\npip install 'dspine\[kernels\]'"):
        choose("fused", CPU, torch.float32)


@pytest.mark.parametrize("dtype", choice.FUSED_DTYPES)
def test_the_check_finds_the_function_that_differs(dtype):
    assert first_difference(REFERENCE, REFERENCE, CPU, dtype) is None

    def shifted(name):
        definition = getattr(REFERENCE, name)

        def wrong(*arguments):
            out = definition(*arguments)
            return (out[0] + 1, *out[1:]) if isinstance(out, tuple) else out * 1.2

        return replace(REFERENCE, **{name: wrong})

    for name in ("neighbour_message", "candidate_message", "write_and_norm", "refined_scores", "walk", "accept_greedy"):
        found = first_difference(REFERENCE, shifted(name), CPU, dtype)
        assert found is not None
        assert found.startswith(name)
