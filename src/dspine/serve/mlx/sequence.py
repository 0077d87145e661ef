"""One request in progress on the device: its caches, and a round for it.

One rule: a round waits for the device once, where its verdict is read: draft, forward and verdict are one graph.
Positions are those of `decode/lines.py`: with the anchor at s, both caches hold s slots between rounds, and s + 1
tokens are known.
Source: DSpine (arXiv 2609.36173), section on speculative decoding.
"""

from __future__ import annotations

import warnings

import mlx.core as mx

from dspine.decode.noise import Stream, uniforms
from dspine.decode.policy import Own
from dspine.decode.records import Logprob, RoundRecord
from dspine.decode.rows import Row
from dspine.errors import TargetError
from dspine.serve.mlx.caches import arrays, take_back
from dspine.serve.mlx.law import Law, best, law_probs
from dspine.serve.mlx.processing import Processing
from dspine.serve.mlx.proposal import NOTHING, MlxDrafter, Proposal
from dspine.serve.mlx.target import MlxTarget
from dspine.serve.mlx.verify import Verdict, verify, verify_greedy


class Sequence:
    """The state of one request.

    Args:
        row: its tokens and text.
        own: the rule for the number of candidates to verify.
        chunk: most prompt tokens in one forward.
    """

    def __init__(self, target: MlxTarget, drafter: MlxDrafter | None, row: Row, own: Own, chunk: int) -> None:
        self.row = row
        row.own = own
        self._own = own
        self._target = target
        self._drafter = drafter
        self._chunk = chunk
        self._caches = target.new_caches()
        self._context = None if drafter is None else drafter.new_context()
        self._law = Law.of(row.request.params)
        self._processing = Processing(row.request, target.vocab_size, target.decodable)
        row.drafting = self._within_range(len(row.tokens))

    def prefill(self) -> None:
        """Run the prompt, and take the first token, which belongs to no round."""
        prompt = mx.array(self.row.tokens, dtype=mx.int32)
        last = len(self.row.tokens) - 1
        for start in range(0, last, self._chunk):
            _, features = self._target.forward(
                prompt[start : min(start + self._chunk, last)], self._caches, self._taps()
            )
            self._observe(features)
            mx.eval(arrays(self._caches), [] if self._context is None else self._context.arrays)
        raw, features = self._target.forward(prompt[last:], self._caches, self._taps())
        self._observe(features)
        _, tokens, logprobs = self._judge(raw, NOTHING)
        if self.row.finish is None:
            self.row.take(tokens, logprobs)

    def advance(self) -> None:
        """Run one round."""
        row = self.row
        if row.drafting and not self._within_range(row.position):
            row.drafting, self._context = False, None
        proposal = self._propose(row.room(0 if self._drafter is None else self._drafter.candidates))
        anchor = mx.array([row.tokens[-1]], dtype=mx.int32)
        raw, features = self._target.forward(mx.concatenate([anchor, proposal.tokens]), self._caches, self._taps())
        accepted, tokens, logprobs = self._judge(raw, proposal)
        if row.finish is not None:
            return
        take_back(self._caches, proposal.candidates + 1, accepted + 1)
        if features is not None:
            self._observe(features[:, : accepted + 1])
        kept = row.take(tokens, logprobs)
        row.record(RoundRecord(self._proposed, accepted, kept))

    # ---------------------------------------------------------------- parts of a round

    def _propose(self, width: int) -> Proposal:
        """Draft a block and keep its first `width` places; nothing is drafted if that is 0."""
        if self._drafter is None or self._context is None or width == 0:
            return NOTHING
        position = self.row.position
        assert self._context.length == position, f"{self._context.length} context slots, anchor at {position}"
        anchor = mx.array([self.row.tokens[-1]], dtype=mx.int32)
        noise = None if self._law.greedy else self._noise("draft", self._drafter.candidates)
        proposal = self._drafter.propose(self._context, anchor, self._law, noise)
        mx.async_eval(proposal.tokens)  # the device drafts while the target's graph is being built
        return proposal.places(width)

    def _judge(self, raw: mx.array, proposal: Proposal) -> tuple[int, list[int], list[Logprob]]:
        """The verdict over raw logits (M+1, V): how many candidates stand, all tokens of the round, their logprobs."""
        scores = self._processing(raw, self.row.tokens, proposal.tokens)
        length = self._length(proposal)
        verdict = self._verdict(scores, proposal, length)
        row = mx.take(raw, verdict.accepted, axis=0)
        sound = mx.logical_not(mx.isnan(row).any())
        columns = [mx.stack([x.astype(mx.int32) for x in (verdict.accepted, verdict.next_token, length, sound)])]
        accepted, last, self._proposed, good, *drafts = mx.concatenate([*columns, proposal.tokens]).tolist()
        if not good:
            number = self.row.request.id
            self.row.end("error", TargetError(f"request {number}: the target's logits are not numbers"))
            return 0, [], []
        tokens = [*drafts[:accepted], last]
        asked = self.row.request.params.logprobs
        return accepted, tokens, [] if asked is None else _logprobs(raw[: len(tokens)], tokens, asked)

    def _length(self, proposal: Proposal) -> mx.array:
        """How many candidates to verify, (): all, or those before the first of too little confidence."""
        if proposal.confidence is None or not self._own.threshold:
            return mx.array(proposal.candidates)
        return mx.cumprod((proposal.confidence >= self._own.threshold).astype(mx.int32)).sum()

    def _verdict(self, scores: mx.array, proposal: Proposal, length: mx.array) -> Verdict:
        if self._law.greedy:
            return verify_greedy(mx.argmax(scores, axis=-1), proposal, length)
        noise = mx.concatenate([self._noise("accept", proposal.candidates), self._noise("next", 1)])
        return verify(law_probs(scores, self._law), proposal, noise, length)

    def _noise(self, stream: Stream, count: int) -> mx.array:
        return mx.array(uniforms(self.row.request.seed or 0, stream, len(self.row.tokens), count))

    def _observe(self, features: mx.array | None) -> None:
        if self._drafter is not None and self._context is not None and features is not None:
            self._drafter.observe(self._context, features)

    # ---------------------------------------------------------------- housekeeping

    def _taps(self) -> tuple[int, ...]:
        return self._drafter.target_layer_ids if self._drafter is not None and self.row.drafting else ()

    def _within_range(self, anchor: int) -> bool:
        """Whether a block with that anchor lies inside the drafter's positions; a warning if it should but does not."""
        if self._drafter is None:
            return False
        inside = anchor + self._drafter.candidates < self._drafter.max_positions
        if not inside and self.row.remaining > self._drafter.candidates:
            warnings.warn(
                f"request {self.row.request.id} goes beyond the {self._drafter.max_positions} positions of the "
                "drafter; it continues without drafts, with the same output",
                RuntimeWarning,
                stacklevel=2,
            )
        return inside


def _logprobs(raw: mx.array, tokens: list[int], top_n: int) -> list[Logprob]:
    """Log-probabilities of tokens by the raw logits (T, V) of their places."""
    raw = raw.astype(mx.float32)
    total = mx.logsumexp(raw, axis=-1, keepdims=True)
    chosen = mx.take_along_axis(raw, mx.array(tokens)[:, None], axis=1) - total
    if not top_n:
        return [Logprob(token, value) for token, (value,) in zip(tokens, chosen.tolist(), strict=True)]
    ids = best(raw, top_n)[:, :top_n]
    values = mx.take_along_axis(raw, ids, axis=1) - total
    table = zip(tokens, chosen.tolist(), ids.tolist(), values.tolist(), strict=True)
    return [Logprob(token, value, tuple(zip(top, said, strict=True))) for token, (value,), top, said in table]
