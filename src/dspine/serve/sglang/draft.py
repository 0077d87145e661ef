"""The drafter of a DSPINE server, and the algorithms of SGLang that drafters of other methods belong to.

One rule: a drafter of another method is sent to its own algorithm, by the command that starts it.
"""

from __future__ import annotations

from pathlib import Path

from dspine.checkpoint.opening import Checkpoint
from dspine.serve.adapter import draft

_ELSEWHERE = {"DFlash": "DFLASH", "DFlash2": "DFLASH", "Domino": "DFLASH", "DSpark": "DSPARK", "EAGLE-3": "EAGLE3"}


def open_draft(folder: Path) -> Checkpoint:
    """`adapter.draft.open_draft` for SGLang."""
    return draft.open_draft(folder, "SGLang", _command)


def _command(folder: Path, found: str) -> str | None:
    if found not in _ELSEWHERE:
        return None
    return (
        f"sglang serve --model-path TARGET --speculative-algorithm {_ELSEWHERE[found]} "
        f"--speculative-draft-model-path {folder}"
    )
