"""The drafter that a vLLM server names, and the methods of vLLM that drafters of other kinds belong to.

One rule: a drafter of another method is sent to its own, by the setting that is right.
"""

from __future__ import annotations

from pathlib import Path

from dspine.checkpoint.opening import Checkpoint
from dspine.serve.adapter import draft

_ELSEWHERE = {"DFlash": "dflash", "DFlash2": "dflash", "DSpark": "dspark", "EAGLE-3": "eagle3"}


def open_draft(folder: Path) -> Checkpoint:
    """`adapter.draft.open_draft` for vLLM."""
    return draft.open_draft(folder, "vLLM", _command)


def _command(folder: Path, found: str) -> str | None:
    if found not in _ELSEWHERE:
        return None
    return (
        f'vllm serve TARGET --speculative-config \'{{"method": "{_ELSEWHERE[found]}", "model": "{folder}", '
        '"num_speculative_tokens": N}}\''
    )
