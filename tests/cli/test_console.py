"""What is printed: tables lose no number, however narrow the terminal, and JSON is JSON."""

from __future__ import annotations

import json

import pytest
from rich.table import Table

from dspine.cli.console import print_json, results, titled


@pytest.mark.parametrize("columns", ["20", None])
def test_no_number_is_cut_off(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: str | None):
    if columns is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", columns)
    table = Table(*(f"column {n}" for n in range(6)))
    table.add_row(*("123.45" for _ in range(6)))
    results().print(table)
    assert capsys.readouterr().out.count("123.45") == 6


def test_a_number_that_is_none_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"tau": float("nan"), "by place": (0.5, float("nan"))})
    assert "NaN" not in (said := capsys.readouterr().out)
    assert json.loads(said) == {"tau": None, "by place": [0.5, None]}


def test_brackets_in_a_name_are_no_style(capsys: pytest.CaptureFixture[str]) -> None:
    table = titled("of [b]", "task [x]")
    table.add_row("mine[b][/c]")
    results().print(table)
    said = capsys.readouterr().out
    assert all(text in said for text in ("of [b]", "task [x]", "mine[b][/c]"))
