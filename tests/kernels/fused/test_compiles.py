"""What runs in the interpreter also compiles, to the machine code of an sm_90 GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_every_kernel_compiles_for_a_gpu():
    inherited = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    script = Path(__file__).with_name("compiling.py")
    ran = subprocess.run([sys.executable, str(script)], env=inherited, capture_output=True, text=True, timeout=500)
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert len(ran.stdout.splitlines()) == 19
