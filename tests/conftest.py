"""What holds for every test: thread settings before torch, no network, one hypothesis profile."""

from __future__ import annotations

import importlib.util
import os

from dspine.threads import settle_threads

settle_threads()
os.environ["HF_HUB_OFFLINE"] = "1"  # a test that would download fails at once instead

from hypothesis import settings  # noqa: E402  the environment must stand before anything imports torch

# `make test-mlx` has an environment of its own.
collect_ignore = [] if importlib.util.find_spec("mlx") else ["mlx"]

settings.register_profile("dspine", deadline=None, derandomize=True)
settings.load_profile("dspine")
