"""The public API: light to import, complete, and clear about what it has not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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


def test_the_structure_page_has_one_line_for_each_module():
    root = Path(__file__).parents[1]
    modules = {path.relative_to(root / "src/dspine").as_posix() for path in (root / "src/dspine").rglob("*.py")}
    lines = (root / "docs/structure.md").read_text().splitlines()
    named = [line.split("`")[1] for line in lines if line.startswith("| `")]
    assert sorted(named) == sorted(modules)
