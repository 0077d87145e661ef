"""Seconds from the start of a process to its first token, and the peak memory of the demo, as whole processes.

python bench/startup.py --runs 5
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
from time import perf_counter

COMMAND = [sys.executable, "-m", "dspine"]


def first_token_seconds() -> float:
    """From spawn to the first byte of the answer on standard output."""
    start = perf_counter()
    process = subprocess.Popen(
        [*COMMAND, "generate", "Why is the sky blue?", "--max-new-tokens", "8"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    process.stdout.read(1)
    seconds = perf_counter() - start
    process.stdout.read()
    if process.wait():
        raise SystemExit(f"dspine generate ended with {process.returncode}")
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    first_token_seconds()  # fills the cache, so that every counted run is a warm one
    seconds = [first_token_seconds() for _ in range(args.runs)]
    print(f"start to first token: median {statistics.median(seconds):.2f} s, {min(seconds):.2f}-{max(seconds):.2f} s")
    subprocess.run([*COMMAND, "demo"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(f"peak memory of the demo (largest child process): {peak / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
