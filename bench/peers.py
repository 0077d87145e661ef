"""Our drafters beside the authors' own modules: the same random weights and inputs, the largest difference of outputs.

    python bench/peers.py --dflash DIR --specforge DIR --speculators DIR --deepspec DIR

Each DIR is a checkout or an unpacked wheel of that project, put on the path of this process alone; none is a
dependency. They need what they import (speculators: `loguru`, `pydantic-settings`, `datasets`; SpecForge: `yunchang`).
What is not named, or cannot be imported, is listed as not compared.

Their class is built over the nano target's sizes in float32 with random weights and writes its own checkpoint; our
loader reads that folder; both run on the same inputs. Where we have a writer of the layout, our export of the loaded
drafter is loaded by their class again, and its weights compared bit by bit. Exits with 1 where anything differs by more
than 1e-5.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # theirs compile norms; the numbers are asked for, not the speed
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import dspine  # noqa: F401  sets the threads before torch is imported

# isort: split
import torch
from rich.console import Console
from rich.table import Table
from transformers.utils import logging

from dspine.target import load_target
from dspine.target.model import Target
from peers_eagle3 import deepspec_eagle3, specforge_eagle3, speculators_eagle3
from peers_parallel import (
    deepspec_dspark,
    dflash,
    dflash2,
    specforge_dflash,
    specforge_domino,
    specforge_dspark,
    speculators_dflash,
    speculators_dflash2,
    speculators_dspark,
)

LIMIT = 1e-5
Case = Callable[[Target, Path], dict[str, float]]


@dataclass(frozen=True)
class Peer:
    """A project, and what of it is compared: a title → (target, empty folder) → the difference of each output."""

    option: str
    cases: dict[str, Case]


PEERS = (
    Peer("dflash", {"DFlash": dflash, "DFlash, sliding": lambda t, f: dflash(t, f, sliding=True), "DFlash2": dflash2}),
    Peer(
        "specforge",
        {
            "DFlash": specforge_dflash,
            "Domino, shift_label": lambda t, f: specforge_domino(t, f, shift=True),
            "Domino, no shift_label": lambda t, f: specforge_domino(t, f, shift=False),
            "DSpark, vanilla": lambda t, f: specforge_dspark(t, f, "vanilla"),
            "DSpark, gated": lambda t, f: specforge_dspark(t, f, "gated"),
            "DSpark, rnn": lambda t, f: specforge_dspark(t, f, "rnn"),
            "EAGLE-3": specforge_eagle3,
        },
    ),
    Peer(
        "speculators",
        {
            "DFlash": speculators_dflash,
            "DFlash2": speculators_dflash2,
            "DSpark, vanilla": lambda t, f: speculators_dspark(t, f, "vanilla"),
            "DSpark, rnn": lambda t, f: speculators_dspark(t, f, "rnn"),
            "EAGLE-3": speculators_eagle3,
        },
    ),
    Peer(
        "deepspec",
        {
            "DSpark, vanilla": lambda t, f: deepspec_dspark(t, f, "vanilla"),
            "DSpark, gated": lambda t, f: deepspec_dspark(t, f, "gated"),
            "DSpark, rnn": lambda t, f: deepspec_dspark(t, f, "rnn"),
            "EAGLE-3": deepspec_eagle3,
        },
    ),
)


def compare(peer: Peer, path: str | None, target: Target, table: Table) -> bool:
    """One row a case; whether all that ran agreed."""
    if path is None:
        table.add_row(peer.option, "all", "", f"not compared: no --{peer.option}")
        return True
    sys.path.insert(0, path)
    agreed = True
    for title, case in peer.cases.items():
        try:
            with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")
                torch.manual_seed(0)
                found = case(target, Path(folder))
        except ImportError as error:
            table.add_row(peer.option, title, "", f"not compared: {error}")
            continue
        for what, difference in found.items():
            fine = difference <= LIMIT
            agreed &= fine
            table.add_row(peer.option, title, what, f"{difference:.1e}" + ("" if fine else "  DIFFERS"))
    return agreed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for peer in PEERS:
        parser.add_argument(f"--{peer.option}", metavar="DIR", help="a checkout or an unpacked wheel")
    given = vars(parser.parse_args())
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    target = load_target("nano", dtype=torch.float32, packed=False)
    table = Table("project", "drafter", "output", "largest difference")
    agreed = [compare(peer, given[peer.option], target, table) for peer in PEERS]
    Console(width=100).print(table)
    return 0 if all(agreed) else 1


if __name__ == "__main__":
    sys.exit(main())
