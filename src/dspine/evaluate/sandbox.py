"""Running a program that a model wrote.

One rule: it is only run because somebody asked for it, in a process of its own with limits on time, memory, files and
processes, an empty environment, a folder of its own and, where the system grants a namespace, no network. That stops
accidents and runaways; it is no jail against malice: who fears that runs the whole command in a container.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

SECONDS = 10
MEMORY = 1 << 30  # bytes of address space
# The program is run by this. Limits are set inside the new process, before a line of the program is read.
_KEEPER = """
import ctypes, resource, runpy, sys
seconds, memory, program = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
try:
    ctypes.CDLL(None).unshare(0x10000000 | 0x40000000)  # CLONE_NEWUSER | CLONE_NEWNET
except (OSError, AttributeError):
    pass
for what, most in (
    (resource.RLIMIT_CPU, seconds), (resource.RLIMIT_AS, memory), (resource.RLIMIT_FSIZE, 1 << 20),
    (resource.RLIMIT_NOFILE, 32), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_NPROC, 0),
):
    resource.setrlimit(what, (most, most))
sys.argv = [program]
runpy.run_path(program, run_name="__main__")
"""


def ends_well(program: str, *, seconds: int = SECONDS, memory: int = MEMORY) -> bool:
    """Whether a Python program runs to its last line within its limits.

    Ending early does not count, whatever the exit code: a last line that only this run knows must be reached.

    Args:
        seconds: of processor time, and twice as many of a clock.
        memory: bytes of address space.
    """
    word = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="dspine-") as folder:
        file = Path(folder) / "program.py"
        source = f"{program}\nimport sys as _sys\n_sys.stdout.flush()\n_sys.stdout.write('\\n{word}')\n"
        file.write_text(source, encoding="utf-8", errors="replace")
        said = Path(folder) / "said"
        with said.open("wb") as out:
            code = _run(
                [sys.executable, "-I", "-S", "-c", _KEEPER, str(seconds), str(memory), str(file)],
                folder,
                out.fileno(),
                2 * seconds,
            )
        return code == 0 and said.read_bytes().endswith(word.encode())


def _run(command: list[str], folder: str, out: int, seconds: float) -> int | None:
    """The exit code; None if the time was over. Nothing that the process started is left."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={"HOME": folder, "TMPDIR": folder, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
