"""The nano commands: write prompts of nano's own text, measure a drafter's tau.

* `python -m dspine.train.nano prompts eval.jsonl --count 90 --held-out --seed 7`
* `python -m dspine.train.nano tau runs/nano/drafter --target runs/nano/target --count 180`
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dspine.checkpoint import drafter_digest, find_drafter, load_drafter
from dspine.durable import write_aside
from dspine.errors import DspineError
from dspine.target import load_target
from dspine.train.nano.acceptance import measure
from dspine.train.nano.corpus import prompt_lines


def main(arguments: list[str] | None = None) -> int:
    """Run one of the commands; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m dspine.train.nano", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    asked = commands.add_parser("prompts", help="write prompts as JSONL")
    asked.add_argument("file", type=Path)
    asked.add_argument("--count", type=int, required=True)
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--held-out", action="store_true", help="prompts that no training ever sees")
    tau = commands.add_parser("tau", help="measure tau on held-out prompts, greedy, by source")
    tau.add_argument("drafter", nargs="?", default="nano")
    tau.add_argument("--target", default="nano")
    tau.add_argument("--count", type=int, default=180)
    tau.add_argument("--seed", type=int, default=21)
    tau.add_argument("--max-new-tokens", type=int, default=128)
    given = parser.parse_args(arguments)
    try:
        {"prompts": _prompts, "tau": _tau}[given.command](given)
    except (OSError, ValueError, DspineError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _prompts(given: argparse.Namespace) -> None:
    write_aside(given.file, prompt_lines(given.seed, given.count, held=given.held_out))


def _tau(given: argparse.Namespace) -> None:
    target = load_target(given.target)
    drafter = load_drafter(given.drafter, target)
    found = measure(target, drafter, seed=given.seed, count=given.count, max_new_tokens=given.max_new_tokens)
    digest = drafter_digest(find_drafter(given.drafter))
    print(f"drafter {digest[:12]}, target {given.target} {target.head_digest[:12]}")
    print(f"greedy, {target.dtype}, {target.device}, at most {given.max_new_tokens} new tokens, seed {given.seed}")
    print("| source | prompts | tokens | rounds | tau | 95 % interval |")
    print("|---|---|---|---|---|---|")
    for line in found:
        print(
            f"| {line.source} | {line.prompts} | {line.tokens} | {line.rounds} | {line.tau:.2f} "
            f"| {line.interval.low:.2f}-{line.interval.high:.2f} |"
        )


if __name__ == "__main__":
    sys.exit(main())
