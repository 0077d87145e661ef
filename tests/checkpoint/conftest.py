"""One tiny target, one tiny drafter, and that drafter on disk in both of the layouts that we write."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.checkpoint.folders import TRAINING, copy_of, random_drafter
from tests.support.tiny_target import tiny_target

from dspine.checkpoint import export_specforge, save_drafter
from dspine.drafter.dspine import DSpine
from dspine.target.model import Target


@pytest.fixture(scope="session")
def target() -> Target:
    return tiny_target()


@pytest.fixture(scope="session")
def drafter(target: Target) -> DSpine:
    return random_drafter(target)


@pytest.fixture(scope="session")
def _own(target: Target, drafter: DSpine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own") / "drafter"
    save_drafter(drafter, folder, target=target, training=TRAINING, dtype=torch.float32)
    return folder


@pytest.fixture(scope="session")
def _specforge(target: Target, drafter: DSpine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("specforge") / "drafter"
    export_specforge(drafter, folder, target, dtype=torch.float32)
    return folder


@pytest.fixture
def own(_own: Path, tmp_path: Path) -> Path:
    """A copy of the drafter in our own layout, float32."""
    return copy_of(_own, tmp_path / "own")


@pytest.fixture
def specforge(_specforge: Path, tmp_path: Path) -> Path:
    """A copy of the drafter in SpecForge's layout, float32."""
    return copy_of(_specforge, tmp_path / "specforge")
