"""--kernels and --capture reach the engines of every command that runs rounds: refused where they cannot run."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.conftest import Run, assert_fault

COMMANDS = {
    "generate": ("generate", "Hi", "--target", "{target}", "--drafter", "{drafter}"),
    "demo": ("demo", "--target", "{target}", "--drafter", "{drafter}"),
    "serve": ("serve", "--target", "{target}", "--drafter", "{drafter}", "--port", 0),
    "bench": ("bench", "{target}", "{drafter}", "--out", "{out}"),
    "eval": ("eval", "{target}", "{drafter}", "--out", "{out}"),
    "profile-verify": ("profile-verify", "{target}", "--drafter", "{drafter}"),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("option", "choice", "said"),
    [("--capture", "on", "recordings are CUDA graphs"), ("--kernels", "fused", "kernels: ")],
)
def test_what_cannot_run_here_is_refused(
    run: Run, models: object, tmp_path: Path, command: str, option: str, choice: str, said: str
) -> None:
    words = [str(word).format(target=models.target, drafter=models.drafter, out=tmp_path) for word in COMMANDS[command]]
    where = () if command == "demo" else ("--device", "cpu")
    assert_fault(run(*words, option, choice, *where), 1, said)
