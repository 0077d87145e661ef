"""The `dspine` command: each subcommand parses its words, calls one function of a room and prints what comes back."""

from __future__ import annotations


def main() -> None:
    """Run the command line."""
    raise SystemExit("dspine: the commands are not written yet")
