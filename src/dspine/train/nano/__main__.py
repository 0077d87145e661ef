"""`python -m dspine.train.nano`: train the nano target, or write prompts of nano's own text.

python -m dspine.train.nano target drafters/nano/target
python -m dspine.train.nano prompts recipes/nano-prompts.jsonl --count 3000
python -m dspine.train.nano prompts eval.jsonl --count 90 --held-out --seed 7
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

from dspine.train.nano.corpus import prompts
from dspine.train.nano.target import NanoTargetRecipe, train_nano_target


def main(arguments: list[str] | None = None) -> int:
    """Run one of the two commands; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m dspine.train.nano", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    target = commands.add_parser("target", help="train the nano target into a new folder")
    target.add_argument("folder", type=Path)
    target.add_argument("--steps", type=int, default=NanoTargetRecipe.steps)
    target.add_argument("--seed", type=int, default=NanoTargetRecipe.seed)
    asked = commands.add_parser("prompts", help="write prompts as JSONL")
    asked.add_argument("file", type=Path)
    asked.add_argument("--count", type=int, required=True)
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--held-out", action="store_true", help="prompts that no training ever sees")
    given = parser.parse_args(arguments)
    try:
        if given.command == "target":
            train_nano_target(given.folder, replace(NanoTargetRecipe(), steps=given.steps, seed=given.seed))
        else:
            rows = list(prompts(given.seed, given.count, held=given.held_out))
            lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            given.file.write_text(lines, encoding="utf-8")
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
