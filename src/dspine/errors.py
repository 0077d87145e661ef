"""Faults that a user can mend.

One rule: a message says what is wrong, where, and what to do about it. Everything that is raised on purpose
derives from `DspineError`; anything else that escapes is a bug of ours and keeps its traceback.
"""

from __future__ import annotations


class DspineError(Exception):
    """A fault with its remedy.

    Args:
        what: what is wrong and where (file, field, request).
        fix: what to do about it; a command where there is one.
    """

    def __init__(self, what: str, fix: str | None = None) -> None:
        super().__init__(what if fix is None else f"{what}\n{fix}")
        self.what = what
        self.fix = fix


class ConfigError(DspineError):
    """A recipe or another configuration that cannot be honoured."""


class TargetError(DspineError):
    """A target model that cannot be found, read or supported."""


class CheckpointError(DspineError):
    """A drafter checkpoint that cannot be read, or that does not fit its target."""


class RequestError(DspineError):
    """A prompt or a sampling parameter that cannot be honoured."""


class DataError(DspineError):
    """A prompt file, response file or feature store that cannot be used."""


class ServeError(DspineError):
    """A server, an engine or a launch line that a drafter cannot be served with."""
