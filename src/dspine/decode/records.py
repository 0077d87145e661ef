"""What the engine hands back.

One rule: every count is taken after the cut. A token that did not reach the output (behind an EOS, a stop, the cap)
is in no list, no sum and no usage. The headline acceptance length is tau = Σ kept / Σ rounds; the token of the
prefill belongs to no round. Source: DSpine (arXiv 2609.36173), section on speculative decoding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "abort", "error"]
Kind = Literal["first", "accepted", "corrected", "bonus", "plain"]


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One round of one request.

    proposed: candidates that the target was asked about, one a place; of a tree, its places that were judged.
    accepted: how many of them stood, before any cut.
    kept: tokens of the round that reached the output, the one that the target added included.
    nodes: candidates of its tree, side branches included; 0 where they were one line.
    looked_up: whether the candidates were looked up in the request's own text instead of drafted.
    """

    proposed: int
    accepted: int
    kept: int
    nodes: int = 0
    looked_up: bool = False

    @property
    def verified(self) -> int:
        """Candidates that went through the target, wherever they stood."""
        return self.nodes or self.proposed

    @property
    def landed(self) -> int:
        """Candidates that reached the output; the other proposed ones were in vain."""
        return min(self.accepted, self.kept)

    @property
    def reached(self) -> int:
        """Candidates whose predecessors all stood: those that landed, and the first that fell."""
        # Behind the token that ended the answer nothing was reached.
        inside = self.kept if self.kept <= self.accepted else self.proposed
        return min(inside, self.landed + 1)


def kinds(rounds: Sequence[RoundRecord], count: int) -> list[Kind]:
    """What each of the `count` tokens of some rounds is; without a round they are the prefill's.

    "accepted": a candidate that stood. The target's own is "corrected" in place of the first candidate that fell,
    "bonus" behind a whole block that stood, "plain" in a round without candidates.
    """
    if not rounds:
        return ["first"] * count
    found: list[Kind] = []
    for record in rounds:
        found += ["accepted"] * record.landed
        if record.kept > record.landed:
            own: Kind = "plain" if not record.proposed else "bonus" if record.landed == record.proposed else "corrected"
            found.append(own)
    return found


@dataclass(frozen=True, slots=True)
class Logprob:
    """Log-probability of a token under the target's raw law (temperature 1, before any processor), natural log.

    top: the n likeliest (token id, log-probability), best first; n is what the request asked for.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens to account for: those of the prompt, and those that were returned."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True)
class Completion:
    """A finished request.

    token_ids: the generated tokens; an EOS or stop id that ended them is the last one.
    text: their text without special tokens, without that last one, cut before a stop string.
    finish_reason: "stop" (EOS, stop id or stop string), "length" (cap or context), "abort", or "error" (its own
        logits processor raised, or the target gave no numbers; see `Update.error`).
    logprobs: one a token, where they were asked for.
    seed: what the draws were keyed by; given again, it gives the same tokens. None for a greedy request, and where no
        seed would give them again: a request without one, whose number of candidates was chosen on the way.
    """

    request_id: int
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    rounds: tuple[RoundRecord, ...]
    logprobs: tuple[Logprob, ...] | None = None
    seed: int | None = None

    @property
    def usage(self) -> Usage:
        return Usage(len(self.prompt_ids), len(self.token_ids))

    @property
    def tau(self) -> float:
        """Acceptance length: tokens kept a round; 0.0 if there was no round."""
        return pooled_tau([self])

    @property
    def verified(self) -> float:
        """Candidates verified a round; 0.0 if there was no round."""
        return sum(r.verified for r in self.rounds) / len(self.rounds) if self.rounds else 0.0


@dataclass(frozen=True)
class Update:
    """What one step added to one request.

    text: the new piece; the pieces of all updates make up `Completion.text`. It lags behind `token_ids` while a
        character is incomplete or while it may be the beginning of a stop string.
    rounds: the rounds that gave `token_ids`, in their order; none for the prefill, whose token belongs to no round.
    completion: the whole of it, in the last update of a request only.
    error: what ended the request, in the last update only: an exception of its own logits processor, or a `TargetError`
        where the target's logits are not numbers.
    """

    request_id: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[Logprob, ...] | None = None
    rounds: tuple[RoundRecord, ...] = ()
    completion: Completion | None = None
    error: Exception | None = None

    @property
    def finished(self) -> bool:
        return self.completion is not None


def pooled_tau(completions: Iterable[Completion]) -> float:
    """Acceptance length of several answers: all tokens kept over all rounds; 0.0 if there was no round."""
    rounds = [record for completion in completions for record in completion.rounds]
    return sum(record.kept for record in rounds) / len(rounds) if rounds else 0.0
