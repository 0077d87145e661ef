"""The public API: light to import, complete, and clear about what it has not."""

from __future__ import annotations

import subprocess
import sys

import pytest

import dspine


@pytest.mark.parametrize("name", [name for name in dspine.__all__ if name != "__version__"])
def test_every_public_name_can_be_had(name):
    assert getattr(dspine, name).__name__ in (name, "train")


def test_importing_it_is_light():
    code = "import sys, dspine; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(AttributeError, match="load_target"):
        _ = dspine.load_model
