"""From token ids to text, piece by piece: characters stay whole, stop strings never leak.

One rule: what was emitted is final. The pieces of a request, joined, are its text, so a piece waits while it may still
change: behind an incomplete character, or while it may be the beginning of a stop string.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

REPLACEMENT = "\ufffd"  # what a decoder writes for bytes that are not, or not yet, a character
_CONTEXT = 6  # tokens kept as left context when the window moves
_WINDOW = 24  # tokens decoded at once, at most, while characters complete


class Decoder(Protocol):
    """The one method of a transformers tokenizer that is used here."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        """Text of a list of ids."""


class Detokenizer:
    """Incremental detokenisation of one sequence.

    A window of the newest tokens is decoded whole at each push, since what a token looks like depends on its left
    neighbours (bytes of one character, the space before a word). tokenizers' `DecodeStream` is not enough: it has no
    flush, and it holds back complete characters that stand before an incomplete one, so that a stop string would be
    found a token late. Some decoders take back a good character when malformed bytes follow it; what is out stays out.

    Args:
        tokenizer: decodes ids; special tokens are left out.
    """

    def __init__(self, tokenizer: Decoder) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._emitted = 0  # characters of the window's text that are out

    def push(self, token: int) -> str:
        """Take in one token and return the characters that are now final, maybe none."""
        self._window.append(token)
        text = self._decode(self._window)
        final = text.rstrip(REPLACEMENT)
        piece = final[self._emitted :]
        self._emitted = max(self._emitted, len(final))
        if len(self._window) >= _WINDOW and len(final) == len(text):
            self._shrink(text)
        return piece

    def flush(self) -> str:
        """Return what is left at the end: an incomplete character shows as the replacement character."""
        piece = self._decode(self._window)[self._emitted :]
        self._window, self._emitted = [], 0
        return piece

    def _shrink(self, text: str) -> None:
        """Drop the oldest tokens, if the others alone read as the end of the text does."""
        context = self._window[-_CONTEXT:]
        tail = self._decode(context)
        if not tail:  # special tokens, it may be: the text goes on as if they were not there
            context = [token for token in self._window if not self._special(token)][-_CONTEXT:]
            tail = self._decode(context)
        if text.endswith(tail) and (tail or not text):  # not inside a character, and not behind a space left out
            self._window, self._emitted = context, len(tail)

    def _special(self, token: int) -> bool:
        return self._decode([token]) != self._tokenizer.decode([token], skip_special_tokens=False)

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)


class StopStrings:
    """Looks for stop strings in text that arrives in pieces.

    Args:
        stops: the strings; none: every piece passes.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""

    def push(self, piece: str) -> tuple[str, bool]:
        """Take in a piece.

        Returns:
            the text that is safe to emit, and whether a stop string is complete; if so, the text ends before the one
            that begins first, and nothing is to be pushed after it.
        """
        if not self._stops:
            return piece, False
        text = self._held + piece
        found = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self._held = ""
            return text[: min(found)], True
        safe = len(text) - self._possible(text)
        self._held = text[safe:]
        return text[:safe], False

    def flush(self) -> str:
        """Return the text held back: no stop string came of it."""
        held, self._held = self._held, ""
        return held

    def _possible(self, text: str) -> int:
        """Length of the longest end of `text` that a stop string begins with."""
        longest = min(len(text), max(len(stop) for stop in self._stops) - 1)
        for length in range(longest, 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
