"""Fixture F2: drafters whose proposals are known beforehand.

`OracleDrafter` is right exactly as often as its script says, so every accept length, and with it every cap, stop and
batch test, is exact. It also checks the engine: the features and tokens that it is shown must be those of the sequence
it knows, slot by slot, and every anchor must be that sequence's token. `TableDrafter` samples from a law that depends
on the newest feature.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from dspine.decode.engine import Engine
from dspine.decode.records import Completion
from dspine.decode.sampling import SamplingParams
from dspine.drafter.proposal import Proposal
from dspine.kernels.kv import RowCache, Span
from dspine.kernels.law import Law, draw, law_probs
from dspine.target.model import Target

TAPS = (0, 1)


@dataclass
class Known:
    """A sequence that the oracle knows, with the target's features of all its positions, (N, m·d)."""

    prompt: tuple[int, ...]
    tokens: list[int]
    script: tuple[int, ...]
    features: Tensor


@dataclass
class _Walk:
    """Where one row is: the sequences that its features still fit, how many it was shown, and its round."""

    fits: list[Known]
    seen: int = 0
    rounds: int = 0


class OracleCache(RowCache):
    """A row cache that carries the oracle's notes along with the rows."""

    def __init__(self, rows: int) -> None:
        super().__init__(1, rows)
        self.walks: list[_Walk | None] = [None] * rows

    def move(self, source: int, target: int) -> None:
        super().move(source, target)
        self.walks[target] = self.walks[source]
        self.walks[source] = None


@dataclass
class OracleDrafter:
    """Knows sequences; a script says how many proposals are right in each round, over and over.

    After the right ones comes one that is wrong by 1; the candidates behind it are right again, to tempt a verifier
    that does not stop.
    """

    target: Target
    block_size: int = 16
    max_positions: int = 1 << 20
    target_layer_ids: tuple[int, ...] = TAPS
    known: list[Known] = field(default_factory=list)
    calls: int = 0
    before_verify: Callable[[int], None] | None = None  # called with the number of the `propose` call
    confident: bool = False

    @property
    def candidates(self) -> int:
        return self.block_size - 1

    def learn(self, prompt: Sequence[int], continuation: Sequence[int], script: Sequence[int]) -> None:
        """Teach it a sequence; each prompt once."""
        tokens = [*prompt, *continuation]
        self.known.append(
            Known(tuple(prompt), tokens, tuple(script), features_of(self.target, tokens, self.target_layer_ids))
        )

    def rescript(self, *each: Sequence[int]) -> None:
        """Give the known sequences, in the order in which they were taught, other scripts."""
        self.known = [replace(k, script=tuple(script)) for k, script in zip(self.known, each, strict=True)]

    def new_cache(self, rows: int) -> OracleCache:
        return OracleCache(rows)

    def observe(self, cache: RowCache, span: Span, features: Tensor, counts: Sequence[int], tokens: Tensor) -> None:
        assert isinstance(cache, OracleCache)
        assert features.shape[:2] == (span.rows, span.width)
        cache.reserve(span.limit)
        for index, (start, count) in enumerate(zip(span.starts, counts, strict=True)):
            row = span.first + index
            if start == 0:
                cache.walks[row] = _Walk(list(self.known))
            walk = cache.walks[row]
            if count == 0:
                if start == 0:
                    cache.walks[row] = None  # not drafted
            else:
                assert walk is not None
                assert start == cache.lengths[row] or start == 0
                assert start <= walk.seen, f"row {row}: features at {walk.seen}..{start - 1} were left out"
                walk.seen = start + count
                assert start + count <= self.max_positions
                seen = features[index, :count]
                held = tokens[index, :count].tolist()
                walk.fits = [k for k in walk.fits if k.tokens[start : start + count] == held]
                assert walk.fits, f"row {row}: tokens at {start}..{start + count - 1} are of no known sequence"
                exact = seen.dtype == torch.float64 and not self.target.stateful  # states are kept in float32
                walk.fits = [k for k in walk.fits if _same(k.features[start : start + count], seen, exact)]
                assert walk.fits, f"row {row}: features at {start}..{start + count - 1} are of no known sequence"
            cache.commit(row, start + count)

    def propose(self, cache: RowCache, first: int, anchors: Tensor, law: Law, uniforms: Tensor | None) -> Proposal:
        assert isinstance(cache, OracleCache)
        assert len(law.temperature) == len(anchors)
        self.calls += 1
        if self.before_verify is not None:
            self.before_verify(self.calls)
        blocks = [self._block(cache, first + index, int(anchor)) for index, anchor in enumerate(anchors)]
        return Proposal(torch.tensor(blocks))

    def _block(self, cache: OracleCache, row: int, anchor: int) -> list[int]:
        walk, place = cache.walks[row], cache.lengths[row]
        if walk is None or place == 0:  # a row that is not drafted has no context
            return [0] * self.candidates
        assert place + self.candidates < self.max_positions
        known = next((k for k in walk.fits if len(k.tokens) > place and k.tokens[place] == anchor), None)
        assert known is not None, f"row {row}: anchor {anchor} at {place} is of no known sequence"
        right = known.script[walk.rounds % len(known.script)] if known.script else 0
        walk.rounds += 1
        block = (known.tokens[place + 1 : place + 1 + self.candidates] + [0] * self.candidates)[: self.candidates]
        if right < self.candidates:
            block[right] = (block[right] + 1) % self.target.vocab_size
        return block


@dataclass
class TableDrafter:
    """Samples place t from a fixed law that depends on the place and on the newest feature of the context.

    `support` ids a place are proposable (None: a dense law over all of them).
    """

    target: Target
    block_size: int = 5
    support: int | None = 64
    max_positions: int = 1 << 20
    target_layer_ids: tuple[int, ...] = TAPS
    confident: bool = False

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(5)
        width = len(self.target_layer_ids) * self.target.hidden_size
        shape = (self.candidates, self.support or self.target.vocab_size, width)
        self._weight = torch.randn(shape, generator=generator, dtype=self.target.dtype) / width**0.5
        picks = [torch.randperm(self.target.decodable, generator=generator) for _ in range(self.candidates)]
        self._ids = None if self.support is None else torch.stack(picks)[:, : self.support]

    @property
    def candidates(self) -> int:
        return self.block_size - 1

    def new_cache(self, rows: int) -> RowCache:
        return RowCache(1, rows, dtype=self.target.dtype)

    def observe(self, cache: RowCache, span: Span, features: Tensor, counts: Sequence[int], tokens: Tensor) -> None:
        cache.open(span)
        stored = features.unsqueeze(1)  # (B, 1, T, m·d)
        cache.write(0, stored, stored)
        for index, (start, count) in enumerate(zip(span.starts, counts, strict=True)):
            cache.commit(span.first + index, start + count)

    def propose(self, cache: RowCache, first: int, anchors: Tensor, law: Law, uniforms: Tensor | None) -> Proposal:
        rows = len(anchors)
        lengths = cache.lengths[first : first + rows]
        cache.open(Span(first, tuple(lengths), 1))
        blank = self._weight.new_zeros(rows, 1, 1, self._weight.shape[2])
        stored, _ = cache.write(0, blank, blank)
        newest = torch.stack([stored[index, 0, length - 1] for index, length in enumerate(lengths)])
        probs = law_probs(torch.einsum("bd,mkd->bmk", newest, self._weight), law)
        chosen = probs.argmax(-1) if uniforms is None else draw(probs, uniforms)
        if self._ids is None:
            return Proposal(chosen, probs=probs)
        support = self._ids.expand(rows, -1, -1)
        tokens = support.gather(2, chosen.unsqueeze(2)).squeeze(2)
        return Proposal(tokens, support=support, probs=probs)


def oracle(
    target: Target,
    prompts: Sequence[Sequence[int]],
    each: Sequence[Sequence[int]],
    *,
    length: int = 64,
    block_size: int = 16,
    params: SamplingParams | None = None,
    max_positions: int = 1 << 20,
    taps: tuple[int, ...] = TAPS,
) -> OracleDrafter:
    """An oracle that knows what plain decoding gives for prompts: `length` tokens each, beyond any EOS.

    Args:
        each: one script a prompt.
        params: of the plain decoding, where it is to be penalised, biased or constrained.
    """
    asked = (params or SamplingParams()).model_copy(update={"max_new_tokens": length, "ignore_eos": True})
    drafter = OracleDrafter(target, block_size, max_positions, taps)
    plain = Engine(target).generate(prompts, asked)
    for prompt, known, script in zip(prompts, plain, each, strict=True):
        drafter.learn(prompt, known.token_ids, script)
    return drafter


def outcome(completion: Completion) -> tuple[object, ...]:
    """What a caller sees of a completion, whatever the rounds were."""
    return completion.token_ids, completion.text, completion.finish_reason


def features_of(target: Target, tokens: Sequence[int], taps: Sequence[int]) -> Tensor:
    """Features (N, m·d) of a sequence, from one forward."""
    span = Span(0, (0,), len(tokens))
    features = target.forward(torch.tensor([list(tokens)]), target.new_cache(1), span, taps).features
    assert features is not None
    return features[0].clone()


def _same(one: Tensor, other: Tensor, exact: bool) -> bool:
    if one.shape != other.shape:
        return False
    tolerance = 1e-8 if exact else 1e-3
    return bool(torch.allclose(one, other, rtol=tolerance, atol=tolerance))
