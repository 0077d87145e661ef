"""What holds for every test: settled threads, interrupts that arrive, no network, one hypothesis profile."""

from __future__ import annotations

import importlib.util
import os
import signal

from dspine.threads import settle_threads

settle_threads()
# A shell starts what it runs in the background with interrupts ignored; those that tests send must arrive.
signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ["HF_HUB_OFFLINE"] = "1"  # a test that would download fails at once instead

from hypothesis import settings  # noqa: E402  the environment must stand before anything imports torch

# `make test-mlx` has an environment of its own.
collect_ignore = [] if importlib.util.find_spec("mlx") else ["mlx"]

settings.register_profile("dspine", deadline=None, derandomize=True)
settings.load_profile("dspine")
