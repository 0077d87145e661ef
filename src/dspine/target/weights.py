"""Reading weights through transformers.

One rule: a model whose file lacks a tensor is refused. transformers fills such holes with random numbers, and the
output of a random head looks like a bad drafter.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import transformers
from huggingface_hub.utils.tqdm import are_progress_bars_disabled, enable_progress_bars
from transformers.utils import logging

from dspine.errors import TargetError

_logging: Any = logging  # its functions carry no types


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers' bars and warnings off the terminal; downloads from the hub still show theirs."""
    level, bars = _logging.get_verbosity(), _logging.is_progress_bar_enabled()
    hub_bars = not are_progress_bars_disabled()
    _logging.set_verbosity_error()
    _logging.disable_progress_bar()
    if hub_bars:
        enable_progress_bars()
    try:
        yield
    finally:
        _logging.set_verbosity(level)
        if bars:
            _logging.enable_progress_bar()


def full_model(place: str | Path, name: str, **arguments: Any) -> Any:
    """`AutoModelForCausalLM.from_pretrained`, never with remote code, never with a tensor missing.

    Raises:
        TargetError: naming the tensors that the files lack.
    """
    loader: Any = transformers.AutoModelForCausalLM
    model, report = loader.from_pretrained(place, trust_remote_code=False, output_loading_info=True, **arguments)
    missing = sorted(report["missing_keys"])
    if missing:
        shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise TargetError(
            f"the files of {name} lack weights of its {type(model).__name__}: {shown}",
            "Without them the model would run on random numbers. Export or download it again.",
        )
    return model
