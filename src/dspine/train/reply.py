"""What a server of OpenAI's completions interface answered, as ids.

One rule: an answer is whole or it is none: one that was broken off, or that holds ids that the target does not have,
never becomes a row. Ids that the server gives are the answer; text alone is made into ids again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dspine.errors import DataError
from dspine.target.model import Target

_OTHER = "It serves another model."


@dataclass(frozen=True)
class Reply:
    """A server's answer: ids, ending with the end token if the finish reason is "stop".

    exact: whether the server gave the ids; else its text was made into ids again.
    """

    token_ids: tuple[int, ...]
    finish_reason: str
    exact: bool


class Passing(Exception):
    """A fault that may be over soon; `after` is the wait in seconds that the server asked for."""

    def __init__(self, what: str, after: float | None = None) -> None:
        super().__init__(what)
        self.after = after


def read_reply(body: Any, target: Target) -> Reply:
    """Read a completion.

    Raises:
        Passing: it was broken off.
        DataError: it holds ids that the target does not have.
    """
    try:
        choice = body["choices"][0]
        finish, text, given = choice["finish_reason"], choice.get("text"), choice.get("token_ids")
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise Passing(f"an answer without a completion: {str(body)[:200]}") from error
    if finish not in ("stop", "length"):
        raise Passing(f"an answer that ended with {finish!r}")
    if given and not (isinstance(given, list) and all(type(token) is int for token in given)):
        raise DataError(f"the server answered with token ids that are no numbers: {str(given)[:100]}", _OTHER)
    ids = list(given) if given else _ids_of(text, finish, target)
    if finish == "stop" and not (ids and ids[-1] in target.eos_ids):
        ids.append(_end(target, choice.get("matched_stop")))
    if not ids:
        raise Passing("an empty answer")
    if wrong := [token for token in ids if not 0 <= token < target.vocab_size]:
        what = f"the server answered with the token id {wrong[0]}; {target.name} has {target.vocab_size}"
        raise DataError(what, _OTHER)
    return Reply(tuple(ids), finish, bool(given))


def _ids_of(text: Any, finish: str, target: Target) -> list[int]:
    if not isinstance(text, str):
        raise Passing("an answer with neither text nor token ids")
    # A cap may cut through a character, of which the text then shows that it is broken.
    whole = text.rstrip("\ufffd") if finish == "length" else text
    ids: list[int] = target.tokenizer(whole, add_special_tokens=False)["input_ids"]
    return ids


def _end(target: Target, matched: Any) -> int:
    """The end token of an answer: as the server says, else the tokenizer's."""
    if isinstance(matched, int) and matched in target.eos_ids:
        return matched
    own = target.tokenizer.eos_token_id
    return int(own) if own in target.eos_ids else min(target.eos_ids)
