"""How much one server takes on.

One rule: what is above a limit is refused at the door with the number that it exceeds, never cut down to it.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MAX_STOPS = 16
MAX_STOP_LENGTH = 256  # characters
MAX_BIASES = 1024
MAX_TOP_LOGPROBS = 20


class Limits(BaseModel):
    """Limits of a server; frozen."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    slots: Annotated[int, Field(ge=1)] = 8
    """Answers in progress at once."""
    waiting: Annotated[int, Field(ge=0)] = 64
    """Answers that may wait for a slot; more are told to come back later (429)."""
    choices: Annotated[int, Field(ge=1)] = 16
    """Most answers to one request: its prompts times `n`."""
    max_tokens: Annotated[int, Field(ge=1)] = 4096
    """Most new tokens of one answer; where a chat request names no number it gets these, or what the context leaves."""
    body_bytes: Annotated[int, Field(ge=1024)] = 1 << 20
    """Largest request body."""
    drain_seconds: Annotated[int, Field(ge=0)] = 30
    """How long answers in progress may go on after the signal to stop."""

    @property
    def open(self) -> int:
        """Most answers that are promised at any time."""
        return self.slots + self.waiting
