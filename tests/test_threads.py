"""Thread settings: set before torch, never over the user's, never too late."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from dspine.threads import usable_cores

SHOW = "import os, dspine; print(os.environ.get('OMP_NUM_THREADS'), os.environ.get('OMP_WAIT_POLICY'))"


def _child(code: str, **settings: str) -> list[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("OMP_")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=clean | settings, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_importing_the_package_settles_the_threads():
    assert _child(SHOW) == [str(usable_cores()), "passive"]


def test_the_users_own_settings_win():
    assert _child(SHOW, OMP_NUM_THREADS="3", OMP_WAIT_POLICY="active") == ["3", "active"]


def test_nothing_is_set_once_torch_is_there():
    assert _child("import sys; sys.modules['torch'] = None\n" + SHOW) == ["None", "None"]


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system has no affinities")
def test_cores_are_those_the_process_may_use(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(7, 98)))
    assert usable_cores() == 91
