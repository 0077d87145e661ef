"""`dspine profile-verify`: the table that it measures is the one that decoding reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Run, assert_fault, parsed

from dspine.decode import costbook
from dspine.decode.cost import Runs


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    asked: list[int] = []

    def measure(target: object, drafter: object, rows: int, forward: object) -> Runs:
        asked.append(rows)
        verify = {width: [rows * width / 1000] * 2 for width in (1, 2, 4)}
        return Runs(verify, [rows / 4000] * 2, [0.0215] * 2 if rows > 1 else [])

    monkeypatch.setattr(costbook, "measure", measure)
    return asked


def test_it_measures_keeps_and_prints(run: Run, models: object, costs: Path, quick: list[int]) -> None:
    words = ("profile-verify", models.target, "--drafter", models.drafter, "--rows", "3,1")
    found = parsed(run(*words, "--json"))
    assert quick == [1, 3]
    assert found["verify"] == {"1": {"1": 0.001, "2": 0.002, "4": 0.004}, "3": {"1": 0.003, "2": 0.006, "4": 0.012}}
    assert found["draft"] == {"1": 0.00025, "3": 0.00075}
    assert found["apart"] == {"3": pytest.approx(0.0155)}
    assert found["facts"]["block_size"] == 4
    assert json.loads(Path(found["file"]).read_text())["verify"] == found["verify"]
    assert Path(found["file"]).parent == costs
    shown = run(*words)
    assert quick == [1, 3] * 2  # anew each time
    assert shown.exit_code == 0
    assert shown.stdout.splitlines()[-1] == found["file"]
    assert "12.00" in shown.stdout
    assert "a wider row" in shown.stdout
    assert "15.50" in shown.stdout  # 21.5 less 6, for 6 tokens of 3 rows
    run("generate", "Hi", "-n", 4, "--target", models.target, "--drafter", models.drafter, "--verify", "auto")
    assert quick == [1, 3] * 2  # decoding found it


def test_a_busy_machine_is_not_believed(run: Run, models: object, costs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costbook, "measure", lambda *_: Runs({1: [1.0, 2.0], 4: [1.0, 1.0]}, [0.1, 0.1]))
    for file in costs.glob("*.json"):
        file.unlink()
    result = run("profile-verify", models.target, "--drafter", models.drafter, "--rows", 1, "--json")
    assert json.loads(result.stdout)["file"] is None
    assert "too busy" in result.stderr
    assert not list(costs.glob("*.json"))


def test_what_it_cannot_measure_is_refused(run: Run, models: object) -> None:
    assert_fault(run("profile-verify", models.target), 2, "name one with --drafter")
    for rows in ("", "0", "1,x", "-1"):
        assert_fault(run("profile-verify", models.target, "--rows", rows), 2, "--rows")
