"""Drafters of other methods in llama.cpp (xllamacpp), in an environment that has it: make test-llamacpp."""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("xllamacpp") is None:
    collect_ignore_glob = ["*"]
