"""`dspine generate --backend mlx` where MLX is not installed, and options that belong to one backend alone."""

from __future__ import annotations

import importlib.util

import pytest
from tests.cli.conftest import assert_fault

from dspine.errors import ServeError
from dspine.serve.mlx.installed import NEEDED, require_mlx


@pytest.fixture
def absent(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name in NEEDED else found(name, *rest))


def test_what_is_missing_is_named_with_the_command(absent):
    with pytest.raises(ServeError, match=r"mlx and mlx_lm, not installed here\n.*pip install 'dspine\[mlx\]'"):
        require_mlx()


def test_the_command_ends_with_that_message(absent, run):
    assert_fault(run("generate", "Hello", "--backend", "mlx"), 1, "needs mlx and mlx_lm", "pip install")


@pytest.mark.parametrize(
    "words",
    [("--bits", 4), ("--drafter-bits", 8), ("--backend", "mlx", "--profile"), ("--backend", "mlx", "--measure")],
)
def test_options_of_the_other_backend_are_refused(run, words):
    assert run("generate", "Hello", *words).exit_code == 2
