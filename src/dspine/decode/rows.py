"""A request in progress: its tokens, its text, and where it ends.

One rule: a row's tokens are the only truth about its state. The anchor is the last of them, its position is their
number minus one, and committed cache lengths follow from it, so whatever happens in a round, a row stands where its
tokens say.
"""

from __future__ import annotations

from collections.abc import Sequence

from dspine.decode.lookup import Lookup
from dspine.decode.policy import Own
from dspine.decode.records import Completion, FinishReason, Logprob, RoundRecord, Update
from dspine.decode.request import Request
from dspine.decode.text import Decoder, Detokenizer, StopStrings


class Row:
    """The state of one request while it occupies a row of the caches.

    Args:
        request: what was asked.
        tokenizer: turns tokens into text.
        drafting: whether a drafter proposes for it.
    """

    def __init__(self, request: Request, tokenizer: Decoder, *, drafting: bool) -> None:
        self.request = request
        self.drafting = drafting
        self.own: Own | None = None  # its own rule for the number of candidates to verify
        self.lookup: Lookup | None = None  # where its candidates are looked up before any are drafted
        self.repeatable = True  # whether its seed alone gives its tokens again
        self.tokens = list(request.prompt)
        self.finish: FinishReason | None = None
        self.error: Exception | None = None
        self._rounds: list[RoundRecord] = []
        self._logprobs: list[Logprob] | None = None if request.params.logprobs is None else []
        self._text = ""
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopStrings(request.params.stop)
        self._told_tokens = 0
        self._told_text = 0
        self._told_rounds = 0

    @property
    def position(self) -> int:
        """Absolute position s of the anchor; the target's cache holds the s tokens before it."""
        return len(self.tokens) - 1

    @property
    def generated(self) -> int:
        return len(self.tokens) - len(self.request.prompt)

    @property
    def remaining(self) -> int:
        """New tokens that the cap still allows."""
        return self.request.cap - self.generated

    def room(self, candidates: int) -> int:
        """How many candidates are worth verifying: the round adds one token more, and the cap must hold them all."""
        if not self.drafting:
            return 0
        room = min(candidates, self.remaining - 1)
        return room if self.own is None else self.own.room(room)

    def looked_up(self, most: int) -> list[int]:
        """Up to `most` candidates that its own text offers, within what is worth verifying."""
        if self.lookup is None:
            return []
        room = max(0, min(most, self.remaining - 1))
        return self.lookup.found(self.tokens, room if self.own is None else self.own.room(room))

    def take(self, tokens: Sequence[int], logprobs: Sequence[Logprob] = ()) -> int:
        """Append verified tokens up to the one that ends the request.

        Args:
            tokens: in order.
            logprobs: one a token, where the request asked for them.

        Returns:
            how many were kept.
        """
        for kept, token in enumerate(tokens, start=1):
            self.tokens.append(token)
            if self._logprobs is not None:
                self._logprobs.append(logprobs[kept - 1])
            self._read(token)
            if self.finish is not None:
                return kept
        return len(tokens)

    def record(self, record: RoundRecord) -> None:
        """Note a round."""
        self._rounds.append(record)

    def end(self, reason: FinishReason, error: Exception | None = None) -> None:
        """End the request from outside, where it stands; text that was held back is let go."""
        self.finish, self.error = reason, error
        self._let_go()

    def update(self) -> Update | None:
        """What is new since the last call; None if nothing is."""
        start = len(self.request.prompt) + self._told_tokens
        text, tokens = self._text[self._told_text :], tuple(self.tokens[start:])
        if not (text or tokens or self.finish):
            return None
        logprobs = None if self._logprobs is None else tuple(self._logprobs[self._told_tokens :])
        rounds = tuple(self._rounds[self._told_rounds :])
        self._told_text, self._told_tokens, self._told_rounds = len(self._text), self.generated, len(self._rounds)
        completion = None if self.finish is None else self._completion(self.finish)
        return Update(self.request.id, text, tokens, logprobs, rounds, completion, self.error)

    def _read(self, token: int) -> None:
        """Bring the text up to a token that was just appended, and see whether it ends the request."""
        asked = self.request
        may_stop = self.generated >= asked.params.min_new_tokens
        if may_stop and token in asked.terminators:  # no text of its own
            self.finish = "stop"
            self._let_go()
            return
        piece = self._detokenizer.push(token)
        if may_stop:
            piece, stopped = self._stops.push(piece)
            self.finish = "stop" if stopped else None
        self._text += piece
        if self.finish is None and self.generated >= asked.cap:
            self.finish = "length"
            self._let_go()

    def _let_go(self) -> None:
        """The text that waited for what does not come: incomplete characters, beginnings of stop strings."""
        self._text += self._stops.flush() + self._detokenizer.flush()

    def _completion(self, reason: FinishReason) -> Completion:
        return Completion(
            request_id=self.request.id,
            prompt_ids=self.request.prompt,
            token_ids=tuple(self.tokens[len(self.request.prompt) :]),
            text=self._text,
            finish_reason=reason,
            rounds=tuple(self._rounds),
            logprobs=None if self._logprobs is None else tuple(self._logprobs),
            seed=self.request.seed if self.repeatable else None,
        )
