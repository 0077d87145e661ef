"""What a run tells trackers: TensorBoard and Weights & Biases, through accelerate.

One rule: the run's own log is `log.jsonl`; a tracker shows the same numbers, and only what the recipe names is opened.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from dspine.errors import ConfigError

MODULES = {"tensorboard": "torch.utils.tensorboard", "wandb": "wandb"}


def refuse_missing(names: Iterable[str]) -> None:
    """Notice a tracker that cannot be opened, before anything is made for the run.

    Raises:
        ConfigError: its package is not installed.
    """
    for name in names:
        try:
            import_module(MODULES[name])
        except ImportError as error:
            raise ConfigError(
                f"training.trackers names {name}, which is not installed ({error})",
                "Install it (pip install 'dspine[train]'), or leave it out.",
            ) from error


class Trackers:
    """The trackers of a run; `names` may be empty.

    Args:
        names: of "tensorboard" and "wandb". folder: of the run.
        settings: of the run, nested; step: steps behind us, after which whatever a tracker holds is dropped.

    Raises:
        ConfigError: a tracker's package is not installed.
    """

    def __init__(self, names: Sequence[str], folder: Path, settings: Mapping[str, Any], *, step: int) -> None:
        refuse_missing(names)
        self._opened = [_open(name, folder, step) for name in names]
        for tracker in self._opened:
            tracker.store_init_configuration(_flat(settings))

    def log(self, values: Mapping[str, Any], step: int) -> None:
        """Show numbers; lists are shown by place, what is no number is left out."""
        shown = {name: value for name, value in _flat(values).items() if isinstance(value, int | float)}
        for tracker in self._opened:
            tracker.log(shown, step=step)

    def close(self) -> None:
        """Write out what is still held."""
        for tracker in self._opened:
            tracker.finish()


def _open(name: str, folder: Path, step: int) -> Any:
    from accelerate import PartialState, tracking

    PartialState()  # a run of one process has made none, and accelerate's trackers log through it
    tracker: Any
    if name == "tensorboard":
        tracker = tracking.TensorBoardTracker("tensorboard", folder, purge_step=step + 1)
    else:
        same = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]  # a run that goes on stays one run
        tracker = tracking.WandBTracker("dspine", name=folder.name, id=same, resume="allow", dir=str(folder))
    tracker.start()
    return tracker


def _flat(values: Mapping[str, Any], above: str = "") -> dict[str, bool | int | float | str]:
    """Nested mappings and lists as `a/b/1`; list places count from 1."""
    flat: dict[str, bool | int | float | str] = {}
    for key, value in values.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{name}/")
        elif isinstance(value, list | tuple):
            flat |= _flat({str(place): item for place, item in enumerate(value, start=1)}, f"{name}/")
        else:
            flat[name] = value if isinstance(value, bool | int | float | str) else str(value)
    return flat
