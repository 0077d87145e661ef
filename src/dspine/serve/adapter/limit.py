"""One thing that an engine may be told and a drafter cannot honour.

One rule: each says why it is one and what to do instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dspine.errors import ServeError


@dataclass(frozen=True)
class Limit:
    """An argument that must hold.

    flag: as it is written, with `{}` where its value goes.
    value: what is looked at.
    holds: whether the value is fine.
    why: what would go wrong. fix: what to do.
    """

    flag: str
    value: Callable[[Any], Any]
    holds: Callable[[Any], bool]
    why: str
    fix: str

    def check(self, args: Any) -> ServeError | None:
        """The refusal, if it does not hold."""
        value = self.value(args)
        if self.holds(value):
            return None
        return ServeError(f"dspine does not serve with {self.flag.format(value)}: {self.why}", self.fix)


def one_of(*values: Any) -> Callable[[Any], bool]:
    """Whether a value is one of these."""
    return lambda value: value in values
