"""Garbage collection pauses while heavy things are imported, and what was made then stays out of it."""

from __future__ import annotations

import gc
import subprocess
import sys
from contextlib import suppress

from dspine.cli.heavy import uncollected


def test_it_pauses_and_comes_back_as_it_was():
    before, inside = gc.get_freeze_count(), []
    with suppress(ValueError), uncollected():
        inside.append(gc.isenabled())
        raise ValueError
    assert inside == [False]
    assert gc.isenabled()
    assert gc.get_freeze_count() > before
    gc.unfreeze()
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.unfreeze()
        gc.enable()


def test_torch_arrives_without_collections():
    code = (
        "import builtins, gc, sys\nfrom dspine.cli.options import sampling_params\n"
        "real, seen = builtins.__import__, []\n"
        "def watched(name, *rest):\n"
        "    if name == 'torch' and 'torch' not in sys.modules: seen.append(gc.isenabled())\n"
        "    return real(name, *rest)\n"
        "builtins.__import__ = watched\nsampling_params()\nsys.exit(seen != [False] or not gc.isenabled())"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
