"""What the engines of `cpu.py` are told: token ids of the prompts, folders and files of one and the same model.

One rule: every engine gets the same ids, rendered once by our own chat template code, and the same weights.
"""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dspine  # noqa: F401  sets the threads before torch is imported

# isort: split
from dspine.cache_folder import cache_root
from dspine.checkpoint import drafter_digest
from dspine.target import load_target
from dspine.target.builtin import smollm2_file
from dspine.target.chat import render
from dspine.target.manifest import sha256_of

XLLAMACPP = "xllamacpp==2026.10.11549"


@dataclass(frozen=True)
class Setup:
    """Facts to print, what every worker is told, and the prompts' ids in the order of their texts."""

    facts: dict[str, Any]
    places: dict[str, Any]
    ids: list[list[int]]


def look_up(target_name: str, drafter: str, texts: Sequence[str]) -> Setup:
    """Load the target once to render `texts` and to find its files; it is let go again."""
    target = load_target(target_name, device="cpu")
    facts = {
        "target": target.name,
        "head_digest": target.head_digest[:12],
        "drafter": drafter_digest(drafter)[:12],
        "temperature": 0,
        "batch": 1,
        "processor": _processor(),
    }
    places = {
        "target": target_name,
        "drafter": drafter,
        "folder": str(target.model.name_or_path),
        "eos": sorted(target.eos_ids),
    }
    return Setup(facts, places, [render(target, [{"role": "user", "content": text}]) for text in texts])


def gguf_files(target_name: str) -> dict[str, str]:
    """The built-in target's GGUF file, and the same with float32 tensors (540 MB, made once, about 15 s).

    Raises:
        SystemExit: another target, or no xllamacpp.
    """
    leave_out = "leave its contestants out (--contestants)"
    if target_name != "smollm2":
        raise SystemExit(f"llama.cpp needs a GGUF file of the target, and only smollm2 comes as one: {leave_out}")
    if importlib.util.find_spec("xllamacpp") is None:
        raise SystemExit(f"llama.cpp comes with the package xllamacpp: pip install {XLLAMACPP}, or {leave_out}")
    from cpu_gguf import float32_gguf

    source = smollm2_file()
    place = cache_root() / "bench" / f"smollm2-{sha256_of(source)[:12]}.F32.gguf"
    return {"Q4_1": str(source), "F32": str(float32_gguf(source, place))}


def _processor() -> str:
    """The processor's name, where the system tells."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
