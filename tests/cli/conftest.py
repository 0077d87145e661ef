"""A tiny target and its drafter as folders, and the command line to use them with."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.support.tiny_drafter import tiny_drafter
from tests.support.tiny_target import tiny_target
from typer.testing import CliRunner

from dspine.checkpoint import save_drafter
from dspine.cli import app
from dspine.decode import costbook

Run = Callable[..., Any]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """Folders: `target`; `drafter`, made for it; `stranger`, a drafter made for another target of the same sizes."""
    root = tmp_path_factory.mktemp("models")
    target, other = tiny_target(), tiny_target(seed=1)
    target.model.save_pretrained(root / "target")
    target.tokenizer.save_pretrained(root / "target")
    for name, owner in (("drafter", target), ("stranger", other)):
        network = tiny_drafter(owner, lively=True)
        save_drafter(network, root / name, target=owner, training={"steps": 12}, dtype=torch.float32)
    return SimpleNamespace(**{name: str(root / name) for name in ("target", "drafter", "stranger")})


@pytest.fixture(autouse=True)
def float32_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same tokens on every machine, whatever its processor multiplies fastest."""
    monkeypatch.setattr("dspine.kernels.alike.bfloat16_serves", lambda: False)


@pytest.fixture(scope="session", autouse=True)
def costs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder that keeps cost tables; the user's own is left alone."""
    root = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(costbook, "cache_root", lambda: root)
        yield root / "costs"


@pytest.fixture
def run() -> Run:
    """Run the command; the result has `exit_code`, `stdout`, `stderr`."""

    def call(*words: object, stdin: str | None = None) -> Any:
        return CliRunner().invoke(app, [str(word) for word in words], input=stdin, env={"COLUMNS": "200"})

    return call


@pytest.fixture
def generate(run: Run, models: SimpleNamespace) -> Run:
    """Run `dspine generate` with the tiny target and its drafter."""

    def call(*words: object, stdin: str | None = None) -> Any:
        return run("generate", *words, "--target", models.target, "--drafter", models.drafter, stdin=stdin)

    return call


def parsed(result: Any) -> dict[str, Any]:
    """The JSON object that a command printed."""
    assert result.exit_code == 0, result.stderr
    value: dict[str, Any] = json.loads(result.stdout)
    return value


def assert_fault(result: Any, code: int, *said: str) -> None:
    """The command ended with this exit code, said these things on standard error, and nothing else anywhere."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    for words in said:
        assert words in " ".join(result.stderr.split()), result.stderr


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A recipe that is right in itself; its files need not exist."""
    path = tmp_path / "recipe.yaml"
    path.write_text(
        f"target: {tmp_path / 'no-target'}\n"
        f"output: {tmp_path / 'run'}\n"
        f"data: {{prompts: {tmp_path / 'prompts.jsonl'}, responses: {tmp_path / 'responses.jsonl'}}}\n"
        "drafter: {mask_token: <|mask|>}\n"
        "training: {steps: 3}\n"
    )
    return path
