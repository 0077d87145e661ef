"""The option for pictures beside results, and the library that they need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from dspine.errors import ConfigError

FiguresOption = Annotated[bool, typer.Option("--figures/--no-figures", help="Save pictures beside the results.")]


def needs_figures() -> Callable[[Sequence[Path], Path], list[Path]]:
    """What draws the pictures of result files into a folder.

    Raises:
        ConfigError: matplotlib is missing.
    """
    try:
        from dspine.report.pictures import draw
    except ImportError as error:
        raise ConfigError(
            f"no figures without {error.name}", "pip install 'dspine[eval]', or leave them out: --no-figures"
        ) from error
    return draw
