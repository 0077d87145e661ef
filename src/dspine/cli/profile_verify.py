"""`dspine profile-verify`: what rounds cost on this machine, the table that `--verify auto` and its like go by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from dspine.cli import options as o
from dspine.cli.console import answer, note, print_json, results, titled, waiting
from dspine.cli.models import choose_drafter, fastest_dtype, open_models

if TYPE_CHECKING:
    from dspine.decode.cost import Costs


def profile_verify(
    target: Annotated[
        str, typer.Argument(help="The model: a hub id, a folder, a GGUF file, or a built-in name.", show_default=False)
    ],
    drafter: o.DrafterOption = None,
    dtype: o.DtypeOption = None,
    device: o.DeviceOption = None,
    kernels: o.KernelsOption = o.KernelChoice.auto,
    capture: o.CaptureOption = o.CaptureChoice.auto,
    rows: Annotated[
        str, typer.Option(metavar="N,N,...", help="Numbers of requests side by side to measure.")
    ] = "1,2,4,8",
    as_json: o.JsonOption = False,
) -> None:
    """Measure what rounds cost here: a forward of the target over 1, 2, 4, ... tokens a row, and drafting a block.

    The table is kept in the cache folder, under the name of what it was measured on: target, drafter, number format,
    device, threads and versions. `auto`, `scheduled` and `lagged` read it there, and measure what is missing. On a
    machine too busy to be believed it is shown and not kept.

    Examples:

        dspine profile-verify smollm2

        dspine profile-verify nano --rows 1,4,16 --json
    """
    counts = sorted(o.whole_numbers(rows, "--rows", least=1))
    chosen = choose_drafter(target, drafter)
    if chosen is None:
        raise typer.BadParameter(f"no drafter is shipped for {target}: name one with --drafter")
    models = open_models(
        target,
        chosen,
        dtype=dtype or fastest_dtype(device),
        device=device,
        kernels=kernels.value,
        capture=capture.value,
    )
    assert models.network is not None
    book = models.engine.cost_book(max(counts), anew=True)
    for count in counts:
        with waiting(f"Measuring {count} side by side"):
            costs = book.measured(count)
    if not book.kept:
        note("The machine was too busy: two runs of one size differed by more than a tenth, so nothing was kept.")
    if as_json:
        print_json({"file": str(book.file) if book.kept else None, "facts": book.facts, **costs.numbers()})
        return
    results().print(_table(costs, models.network.candidates))
    if book.kept:
        answer(f"{book.file}\n")


def _table(costs: Costs, candidates: int) -> Table:
    """Milliseconds: of drafting, of verifying by tokens a row, and what a row wider than others costs in addition."""
    widths = sorted({width for sizes in costs.verify.values() for width in sizes})
    table = titled("Milliseconds of a round's parts, by tokens a row in the target's forward", "rows")
    heads = [f"draft {candidates}", *(f"{width:.3g}" for width in widths), *(["a wider row"] if costs.apart else [])]
    for head in heads:
        table.add_column(head, justify="right")
    for rows, sizes in sorted(costs.verify.items()):
        seconds = [costs.draft[rows], *(sizes.get(width) for width in widths)]
        seconds += [costs.apart.get(rows)] if costs.apart else []
        table.add_row(str(rows), *("" if each is None else f"{1000 * each:.2f}" for each in seconds))
    return table
