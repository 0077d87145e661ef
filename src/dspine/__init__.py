"""Draft in parallel, condition through depth: train a DSpine drafter for a language model and decode with it.

The public API, a page. Importing it is light: a name is loaded when it is first used, so that `dspine --help`
does not wait for torch, and so that the thread settings stand before torch arrives.

    from dspine import Engine, SamplingParams, load_drafter, load_target

    target = load_target("smollm2")
    engine = Engine(target, load_drafter("smollm2-135m-dspine", target))
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dspine.threads import settle_threads

if TYPE_CHECKING:
    from dspine.checkpoint import load_drafter
    from dspine.decode.engine import Engine
    from dspine.decode.sampling import SamplingParams
    from dspine.drafter.config import DSpineConfig
    from dspine.drafter.dspine import DSpine
    from dspine.target import load_target
    from dspine.train.trainer import train as train_drafter

__version__ = "0.1.0"
__all__ = [
    "DSpine",
    "DSpineConfig",
    "Engine",
    "SamplingParams",
    "__version__",
    "load_drafter",
    "load_target",
    "train_drafter",
]

# public name: (module, name there)
_HOME = {
    "DSpine": ("dspine.drafter.dspine", "DSpine"),
    "DSpineConfig": ("dspine.drafter.config", "DSpineConfig"),
    "Engine": ("dspine.decode.engine", "Engine"),
    "SamplingParams": ("dspine.decode.sampling", "SamplingParams"),
    "load_drafter": ("dspine.checkpoint", "load_drafter"),
    "load_target": ("dspine.target", "load_target"),
    "train_drafter": ("dspine.train.trainer", "train"),
}

settle_threads()


def __getattr__(name: str) -> Any:
    """Import the module of a public name when the name is first asked for (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module 'dspine' has no attribute {name!r}; it exports {', '.join(__all__)}")
    module, attribute = _HOME[name]
    value = getattr(import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
