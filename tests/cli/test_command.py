"""The command as a whole: help, exit codes, and what happens to faults that no room foresaw."""

from __future__ import annotations

import errno
import shlex
import subprocess
import sys

import pytest
from tests.cli.conftest import assert_fault

import dspine
import dspine.cli.options

COMMANDS = ("demo", "generate", "chat", "train", "regenerate", "export", "info")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(run, command):
    result = run(command, "--help")
    assert result.exit_code == 0
    assert "Example" in result.stdout
    assert f"dspine {command}" in result.stdout


def test_the_overview_names_every_command(run):
    result = run("--help")
    assert all(command in result.stdout for command in COMMANDS)


def test_version(run):
    assert run("--version").stdout == f"dspine {dspine.__version__}\n"


def test_an_unknown_command_is_a_usage_fault(run):
    assert_fault(run("serve-tea"), 2, "serve-tea")


def test_help_waits_for_no_heavy_library():
    code = "import sys, dspine.cli; sys.exit(any(m in sys.modules for m in ('torch', 'transformers', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_it_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "dspine", "generate", ""], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "the prompt is empty" in done.stderr


def _raising(error: BaseException):
    def read(_: object) -> str:
        raise error

    return read


def test_a_full_disk_is_a_message(run, monkeypatch):
    full = OSError(errno.ENOSPC, "No space left on device", "/x/model.safetensors")
    monkeypatch.setattr(dspine.cli.options, "read_prompt", _raising(full))
    assert_fault(run("generate", "Hello"), 1, "/x/model.safetensors", "No space left on device")


@pytest.mark.parametrize("bug", [ValueError("a bug"), OSError("a library's own")])
def test_a_bug_keeps_its_traceback(run, monkeypatch, bug):
    monkeypatch.setattr(dspine.cli.options, "read_prompt", _raising(bug))
    assert run("generate", "Hello").exception is bug


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("info nano --kind recipe >&-", 1, "error: standard output is closed"),
        ("info nano --kind recipe >&- 2>&-", 1, ""),
        ("info nano --kind recipe 2>&-", 0, ""),
        ("info none.yaml 2>&-", 1, ""),
        ("generate <&-", 1, "error: the prompt is empty"),
        ("info nano --kind recipe > /dev/full", 1, "error: No space left on device"),
    ],
)
def test_closed_and_full_streams(command, code, said):
    words = f"exec {shlex.quote(sys.executable)} -m dspine {command}"
    done = subprocess.run(["sh", "-c", words], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith(said) if said else done.stderr == ""
    assert "Traceback" not in done.stderr


def test_a_file_never_takes_the_place_of_a_closed_stream():
    """Without stderr, a library's warning would land in the file that was opened next."""
    code = "import os, sys\nfrom dspine.cli.console import open_streams\nopen_streams()\n"
    code += "sys.exit(0 if os.open(os.devnull, os.O_RDONLY) > 2 else 3)"
    words = ["sh", "-c", f"exec {shlex.quote(sys.executable)} -c {shlex.quote(code)} <&- 2>&-"]
    assert subprocess.run(words, check=False, stdout=subprocess.DEVNULL).returncode == 0


def test_a_reader_that_leaves_early_is_no_fault_to_shout_about():
    code = "from dspine.cli import app, generate\n"
    code += "def leave(_): raise BrokenPipeError(32, 'Broken pipe')\n"
    code += "import dspine.cli.options as o; o.read_prompt = leave\n"
    code += "import dspine.cli; dspine.cli.main()"
    done = subprocess.run([sys.executable, "-c", code, "generate", "x"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
