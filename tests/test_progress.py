"""Progress goes to standard error: lines where there is no terminal, a bar where there is one."""

from __future__ import annotations

import io

from rich.console import Console

from dspine import progress
from dspine.progress import Meter


def test_without_a_terminal_a_line_now_and_then(capsys, monkeypatch):
    clock = iter([0.0, 10.0, 31.0, 32.0, 40.0])
    monkeypatch.setattr(progress, "monotonic", lambda: next(clock))
    with Meter("rows", 4, "tokens") as meter:
        for completed, done in ((1, 50), (2, 62), (3, 70), (4, 80)):
            meter.update(completed, done)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == ["rows 2/4  2 tokens/s", "rows 4/4  2 tokens/s"]


def test_on_a_terminal_a_bar(monkeypatch, capsys):
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, width=100, highlight=False)
    monkeypatch.setattr(progress, "Console", lambda **options: terminal if options["stderr"] else None)
    with Meter("rows", 4, "tokens") as meter:
        meter.update(4, 80)
        meter.say("[a] word")
    assert "4/4" in screen.getvalue()
    assert "tokens/s" in screen.getvalue()
    assert "[a] word" in screen.getvalue()
    assert capsys.readouterr() == ("", "")


def test_silent_when_asked(capsys):
    with Meter("rows", 4, "tokens", shown=False) as meter:
        meter.update(4, 80)
        meter.say("word")
    assert capsys.readouterr() == ("", "")
