"""Programs that models write run within limits, and count only if they reach their last line."""

from __future__ import annotations

import pytest

from dspine.evaluate.sandbox import ends_well


@pytest.mark.parametrize("program", ["x = 1\nassert x == 1", "print('many words')", "import math, json, re, typing"])
def test_a_program_that_ends_well(program):
    assert ends_well(program)


@pytest.mark.parametrize(
    "program",
    [
        "assert False",
        "def broken(:",
        "import sys\nsys.exit(0)",
        "import os\nos._exit(0)",
        "x = bytearray(1 << 40)",
        "open('big', 'wb').write(bytes(1 << 22))",
        "import socket\nsocket.create_connection(('127.0.0.1', 9), timeout=1)",
        "import dspine",
    ],
)
def test_a_program_that_does_not(program):
    assert not ends_well(program)


def test_a_program_that_never_ends_is_ended():
    assert not ends_well("while True: pass", seconds=1)
    assert not ends_well("import time\ntime.sleep(60)", seconds=1)


def test_nothing_of_the_users_environment_is_seen(monkeypatch):
    monkeypatch.setenv("API_KEY", "secret")
    assert ends_well("import os\nassert 'API_KEY' not in os.environ")
    assert ends_well("import os\nassert os.getcwd() == os.path.realpath(os.environ['HOME'])")
