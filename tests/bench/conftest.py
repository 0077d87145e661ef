"""The scripts of `bench/` import each other by name, as Python has it for a script's own folder."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
