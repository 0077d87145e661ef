"""Tables lose no number, however narrow the terminal."""

from __future__ import annotations

import pytest
from rich.table import Table

from dspine.cli.console import results


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
