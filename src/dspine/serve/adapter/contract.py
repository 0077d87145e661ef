"""What an adapter attaches to in an engine, by name and parameters, and the versions that it is tested with.

One rule: nothing is attached to a version that was not tested, nor to a function that takes other parameters than it
did when we were; both are refused by name, before anything is patched or loaded.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module

from dspine.errors import ServeError

Signatures = Mapping[str, str]  # "module:qualified.name" → its parameters, in order


@dataclass(frozen=True)
class Contract:
    """The versions of an engine.

    engine: its name. package: what pip calls it. tested: versions, the first one is named where another is found.
    """

    engine: str
    package: str
    tested: tuple[str, ...]

    def check(self, version: str, signatures: Signatures) -> None:
        """Refuse an engine that we were not tested with.

        Args:
            version: of the engine at hand.
            signatures: what has to be there.

        Raises:
            ServeError: another version, or something that is missing or takes other parameters.
        """
        if version not in self.tested:
            raise ServeError(
                f"dspine is tested with {self.engine} {' and '.join(self.tested)}, and this is {self.engine} {version}",
                f"Install one of them beside dspine: pip install '{self.package}=={self.tested[0]}'",
            )
        differing = [text for name, wanted in signatures.items() if (text := _difference(name, wanted)) is not None]
        if differing:
            raise ServeError(
                f"this {self.engine} {version} is not the one that dspine was tested with:\n  "
                + "\n  ".join(differing),
                f"It seems to be patched. Install the release: "
                f"pip install --force-reinstall '{self.package}=={version}'",
            )


def _difference(name: str, wanted: str) -> str | None:
    module, _, path = name.partition(":")
    try:
        found: object = import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
        parameters = list(inspect.signature(found).parameters)  # type: ignore[arg-type]
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        return f"{name}: {error}"
    return None if parameters == wanted.split() else f"{name} takes ({', '.join(parameters)}), not ({wanted})"
