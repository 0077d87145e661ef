"""Acceptance length in the field's definitions, and acceptance by place, from the rounds of requests.

One rule: the headline is tau = Σ kept / Σ rounds, pooled over all requests; the prefill's token is in no round, and
nothing behind the end of a response counts. Other definitions go by their own names and are never mixed with it.
Sources: DSpine (arXiv 2609.36173), acceptance length; DeepSpec's evaluator (`tau_deepspec`); z-lab/dflash v0.1.0
(`tau_macro`) and of April 2026 (`tau_untrimmed`); SGLang's `spec_accept_length` (`tau_sglang`); SpecForge's benchmark
(`tau_specforge`); vLLM's speculative decoding metrics (`tau_vllm`); NVIDIA Model-Optimizer's specdec_bench
(`tau_modelopt`).

Every function takes one list of rounds a request, and gives NaN where there is nothing to divide by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan

from dspine.decode.records import RoundRecord

Rounds = Sequence[RoundRecord]


def tau(requests: Sequence[Rounds]) -> float:
    """The headline: tokens kept over rounds, pooled. A long answer weighs more than a short one."""
    pairs = kept_and_rounds(requests)
    return _ratio(sum(kept for kept, _ in pairs), sum(rounds for _, rounds in pairs))


def tau_macro(requests: Sequence[Rounds]) -> float:
    """z-lab's: the mean over requests of each request's own tau. Requests without a round are left out."""
    return _mean([kept / rounds for kept, rounds in kept_and_rounds(requests) if rounds])


def tau_untrimmed(requests: Sequence[Rounds]) -> float:
    """z-lab's of April 2026: as `tau_macro`, with what an end token or the cap cut off."""
    return _mean([sum(r.accepted + 1 for r in rounds) / len(rounds) for rounds in requests if rounds])


def tau_deepspec(requests: Sequence[Rounds], capped: Sequence[bool]) -> float:
    """DeepSpec's: pooled; what an end token cuts off does not count, but what the cap cuts off does.

    Args:
        capped: of each request, whether it met the cap.
    """
    kept = rounds = 0
    for request, cut in zip(requests, capped, strict=True):
        rounds += len(request)
        kept += sum(record.accepted + 1 if cut else record.kept for record in request)
    return _ratio(kept, rounds)


def tau_specforge(requests: Sequence[Rounds]) -> float:
    """SpecForge's: all tokens, the prefill's included, over all rounds, pooled."""
    pairs = [pair for pair in kept_and_rounds(requests) if pair[1]]
    return _ratio(sum(1 + kept for kept, _ in pairs), sum(rounds for _, rounds in pairs))


def tau_modelopt(requests: Sequence[Rounds]) -> float:
    """specdec_bench's: the mean over requests of tokens a step, the prefill being a step of one token."""
    return _mean([(1 + kept) / (1 + rounds) for kept, rounds in kept_and_rounds(requests)])


def accept_rate(requests: Sequence[Rounds]) -> float:
    """SGLang's acceptance rate: accepted over proposed candidates."""
    records = [record for rounds in requests for record in rounds]
    return _ratio(sum(r.accepted for r in records), sum(r.verified for r in records))


def verify_rate(requests: Sequence[Rounds]) -> float:
    """DeepSpec's: tokens that came of the verified positions, over these positions, anchors included."""
    records = [record for rounds in requests for record in rounds]
    return _ratio(sum(r.accepted + 1 for r in records), sum(r.verified for r in records) + len(records))


def tau_sglang(requests: Sequence[Rounds]) -> float:
    """SGLang's: the mean over requests of all its tokens, the prefill's included, over its rounds."""
    return _mean([(1 + kept) / rounds for kept, rounds in kept_and_rounds(requests) if rounds])


def tau_vllm(requests: Sequence[Rounds]) -> float:
    """vLLM's: 1 + accepted / drafts, pooled. What an end token cuts off still counts; rounds without a draft do not."""
    drafts = [record for rounds in requests for record in rounds if record.proposed]
    return 1 + _ratio(sum(record.accepted for record in drafts), len(drafts))


def kept_and_rounds(requests: Sequence[Rounds]) -> list[tuple[int, int]]:
    """What tau is the ratio of, a request: (tokens kept, rounds)."""
    return [(sum(record.kept for record in rounds), len(rounds)) for rounds in requests]


@dataclass(frozen=True, slots=True)
class Place:
    """How one place of the block fared.

    place: 1..M.
    drafts: rounds with at least one candidate.
    proposed: rounds that had a candidate at this place.
    reached: those of them in which every earlier candidate stood.
    accepted: those in which this one stood too.
    """

    place: int
    drafts: int
    proposed: int
    reached: int
    accepted: int

    @property
    def conditional(self) -> float:
        """Chance that the candidate stands once all before it do."""
        return _ratio(self.accepted, self.reached)

    @property
    def unconditional(self) -> float:
        """Share of all drafts whose candidate at this place stood (vLLM's rate by position)."""
        return _ratio(self.accepted, self.drafts)


def places(requests: Sequence[Rounds]) -> list[Place]:
    """Acceptance by place, pooled; place t is at index t - 1.

    Candidates behind the end of a response are neither proposed, reached nor accepted, and those that were looked up
    are of no block.
    """
    records = [_inside(record) for rounds in requests for record in rounds if record.proposed and not record.looked_up]
    widest = max((record.proposed for record in records), default=0)
    return [
        Place(
            place=place,
            drafts=len(records),
            proposed=sum(record.proposed >= place for record in records),
            reached=sum(record.proposed >= place and record.accepted >= place - 1 for record in records),
            accepted=sum(record.accepted >= place for record in records),
        )
        for place in range(1, widest + 1)
    ]


def until(rounds: Rounds, length: int) -> list[RoundRecord]:
    """The rounds of a response's first `length` tokens; the first token is the prefill's.

    A round that lies behind is left out; of one that straddles the cut only what lies before it counts.
    """
    before: list[RoundRecord] = []
    left = length - 1
    for record in rounds:
        if left <= 0:
            break
        before.append(record if record.kept <= left else _cut(record, left))
        left -= record.kept
    return before


def _inside(record: RoundRecord) -> RoundRecord:
    """The record without candidates that stood, but behind the token that ended the response."""
    return _cut(record, record.kept) if record.kept <= record.accepted else record


def _cut(record: RoundRecord, kept: int) -> RoundRecord:
    """A round that ends before the target's own token: all that is left of it are candidates that stood."""
    return RoundRecord(proposed=kept, accepted=kept, kept=kept, looked_up=record.looked_up)


def _ratio(numerator: int, denominator: int) -> float:
    return numerator / denominator if denominator else nan


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else nan
