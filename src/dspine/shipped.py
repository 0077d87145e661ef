"""Where the files lie that come with dspine: drafters and recipes.

One rule: a checkout and an installed wheel hold the same files in two places, and only this module knows them.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def places(folder: str, name: str = ".") -> tuple[Path, Path]:
    """Where `name` of the shipped `folder` may lie: inside an installed wheel, and in the checkout around the package.

    The wheel's comes first: a package that was installed is not surrounded by its checkout.
    """
    return _PACKAGE / f"_{folder}" / name, _PACKAGE.parents[1] / folder / name
