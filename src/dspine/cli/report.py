"""`dspine report`: one page and pictures of everything that was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dspine.cli import options as o
from dspine.cli.console import answer, note, print_json
from dspine.errors import ConfigError


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Files of results, or folders that hold some.", metavar="RUN...", show_default=False),
    ],
    out: Annotated[Path, typer.Option(help="Folder of the page and the pictures.")] = Path("runs/report"),
    title: Annotated[str, typer.Option(help="Of the page.")] = "What dspine measured",
    as_json: o.JsonOption = False,
) -> None:
    """Make one HTML page of what eval, bench, lab, probe and train --ablate have measured, and PNG pictures.

    The page needs no network and no other file. It has acceptance by task and drafter and by place, throughput
    against concurrency, a round's time by stage, ablations, probes, and answers in which every token shows its round,
    whether it was drafted, and its runner-up. Folders are searched; no model is loaded.

    Examples:

        dspine report runs/eval

        dspine report runs/eval runs/bench runs/nano-lab runs/probe --out runs/report --title "nano"
    """
    try:
        from dspine.report.page import write
    except ImportError as error:
        raise ConfigError(f"no report without {error.name}", "pip install 'dspine[eval]'") from error
    page, pictures = write(runs, out, title)
    for picture in pictures:
        note(f"figure: {picture}")
    if as_json:
        print_json({"page": str(page), "figures": [str(picture) for picture in pictures]})
    else:
        answer(f"{page}\n")
