"""The kernels' own suite: on a GPU where there is one, else step by step in Triton's interpreter.

    make test-kernels

Without triton there is nothing to collect here, and that command fails.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined, so before the first import of one

HERE = Path(__file__).parent
collect_ignore_glob = [] if find_spec("triton") else ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("kernels")


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
