"""The committed nano pair in both engines, and a tiny random target as a folder that both can load."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.tiny_target import tiny_target

from dspine.checkpoint import load_drafter
from dspine.serve.mlx.loading import load_mlx_pair, load_mlx_target
from dspine.serve.mlx.target import MlxTarget
from dspine.target import load_target
from dspine.target.chat import render
from dspine.target.model import Target
from dspine.train.nano.corpus import prompts


@pytest.fixture(scope="session")
def torch_pair() -> tuple[Target, Any]:
    target = load_target("nano", dtype=torch.float32)
    return target, load_drafter("nano", target)


@pytest.fixture(scope="session")
def pair() -> tuple[MlxTarget, Any]:
    return load_mlx_pair("nano", "nano", dtype=torch.float32)


@pytest.fixture(scope="session")
def asked(torch_pair: tuple[Target, Any]) -> list[list[int]]:
    """Prompts that neither the target nor the drafter was trained on."""
    return [render(torch_pair[0], row["messages"]) for row in prompts(21, 4)]


@pytest.fixture(scope="session")
def tiny() -> Target:
    return tiny_target()


@pytest.fixture(scope="session")
def tiny_folder(tiny: Target, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    tiny.model.save_pretrained(folder)
    tiny.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def fresh(tiny_folder: Path) -> Callable[[], MlxTarget]:
    """Loads the tiny target anew."""
    return lambda: load_mlx_target(str(tiny_folder))


@pytest.fixture(scope="session")
def tiny_mlx(tiny_folder: Path) -> MlxTarget:
    return load_mlx_target(str(tiny_folder))
