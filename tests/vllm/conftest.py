"""The plugin inside vLLM itself, on a CPU: one engine without a drafter and one with nano's, for all tests.

    make test-vllm

It needs the environment that this builds; where vLLM is missing, nothing here is collected. Both engines run in this
process and take half a minute each to start.
"""

from __future__ import annotations

import importlib.util
import os

import pytest

if importlib.util.find_spec("vllm") is None:
    collect_ignore_glob = ["*"]
else:
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # what is drafted is looked at from here
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }

    from tests.vllm.engines import Served
    from tests.vllm.ours import Ours

    @pytest.fixture(scope="session")
    def plain() -> Served:
        """vLLM without a drafter."""
        return Served.start()

    @pytest.fixture(scope="session")
    def drafted() -> Served:
        """vLLM with nano's drafter."""
        return Served.start("nano")

    @pytest.fixture(scope="session")
    def ours() -> Ours:
        """Our own engine with the same drafter."""
        return Ours.load("nano")
