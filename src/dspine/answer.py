"""One request followed to its end, its text shown on the way.

One rule: what the commands print, time and count comes from this one loop over the engine's updates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

from dspine.decode.records import Completion, Update
from dspine.decode.sampling import SamplingParams


class Streams(Protocol):
    """What is asked of an engine here."""

    def stream(self, prompt: Sequence[int], params: SamplingParams | None = None) -> Iterator[Update]: ...


@dataclass(frozen=True)
class Answer:
    """A completion and the seconds from the request to its last token, prefill included."""

    completion: Completion
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Returned tokens over all of the seconds."""
        return self.completion.usage.completion_tokens / self.seconds


def follow(
    engine: Streams, prompt: list[int], params: SamplingParams, show: Callable[[str], object] | None = None
) -> Answer:
    """Answer one prompt, handing each new piece of text to `show`.

    Raises:
        RequestError: a prompt or a parameter that the engine refuses.
        Exception: what a logits processor of the request raised.
    """
    start = perf_counter()
    completion = None
    for update in engine.stream(prompt, params):
        if show is not None and update.text:
            show(update.text)
        completion = update.completion
    if completion is None:
        raise RuntimeError("the engine ended a request without its completion")
    return Answer(completion, perf_counter() - start)
