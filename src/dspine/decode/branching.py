"""One round with trees: the target judges every branch of a block at once, and the path that it would have taken
stands.

One rule: a token of the output is always the target's own choice behind the tokens before it (its argmax, or a draw
from its law with the noise of that position), and the tree only decides how many choices one forward can tell. So a
tree needs no law of its own; what it emits is plain decoding's output up to rounding, and in greedy rows exactly that
where a forward's results do not depend on what goes through together (`Target.alike`).

A row's block is what its cache lacks (the anchor last), then the tree: the line in the slots of its positions, side
branches behind (`kernels/branches.py`). Accepted tokens of the line stay where they lie. Those of a side branch have a
neighbour's slot, and were summed in another order: their keys and values are made again, in line, by the next round.
And where the last bit counts, a side branch is followed only as far as the target's choice is beyond doubt.

Sources: tree verification of SpecInfer (arXiv 2305.09781) with the target-only sampling of Medusa (arXiv 2401.10774)
and SGLang; the tree is DSpine's transition cache (arXiv 2609.36173), see `drafter/tree.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dspine.decode.judge import Mixture, Ruling, logprobs_of
from dspine.decode.noise import uniform_rows
from dspine.decode.processors import mask_undecodable
from dspine.decode.records import Logprob
from dspine.decode.rows import Row
from dspine.drafter.tree import Tree
from dspine.errors import TargetError
from dspine.kernels.kv import Span
from dspine.kernels.law import draw, law_probs, likeliest
from dspine.kernels.ragged import Ragged
from dspine.kernels.upload import upload
from dspine.stages import stage
from dspine.target.model import Target

DOUBT = 2.0**-6  # of the largest logit: a runner-up this near may be the best by another order of summation
UNNUMBERED = -1  # in place of a choice


@dataclass(frozen=True)
class Block:
    """The new tokens of one row's round.

    known: tokens that the cache lacks, the anchor last.
    tree: what may follow.
    """

    known: Sequence[int]
    tree: Tree

    @property
    def tokens(self) -> list[int]:
        return [*self.known, *self.tree.tokens]

    @property
    def line(self) -> int:
        """New tokens in line."""
        return len(self.known) + self.tree.line

    @property
    def parents(self) -> tuple[int, ...]:
        """What each side branch follows, among the new tokens."""
        return tuple(parent + len(self.known) for parent in self.tree.parents[self.tree.line :])

    @property
    def followers(self) -> list[dict[int, int]]:
        """By new token from the anchor on: the tokens that may follow it, and which new tokens they are."""
        anchor = len(self.known) - 1
        found: list[dict[int, int]] = [{} for _ in range(len(self.tree.tokens) + 1)]
        for node, (token, parent) in enumerate(zip(self.tree.tokens, self.tree.parents, strict=True)):
            found[parent + 1][token] = anchor + 1 + node
        return found


@dataclass(frozen=True)
class Path:
    """A row's way through its tree.

    ruling: what the row gets; of its tokens, nodes of the tree but for the target's own at the end, where there is one.
    steps: the new tokens behind which they were chosen, the anchor first.
    stands: new tokens in line that stand: what the cache holds from now on, behind what it held.
    places: places of the tree that were judged.
    """

    ruling: Ruling
    steps: list[int]
    stands: int
    places: int


def span_of(blocks: Sequence[Block], held: Sequence[int]) -> Span:
    """Where the new tokens of all rows go, behind what their caches hold."""
    counts = [len(block.tokens) for block in blocks]
    parents = tuple(block.parents for block in blocks)
    return replace(Span.of(0, held, counts), parents=parents if any(parents) else None)


def ids_of(blocks: Sequence[Block], device: torch.device) -> Tensor:
    """The new tokens of all rows, (B, T) int64, filled up behind the shorter ones."""
    tokens = [block.tokens for block in blocks]
    width = max(map(len, tokens))
    return upload(torch.tensor([own + own[-1:] * (width - len(own)) for own in tokens]), device)


def judged(
    target: Target, rows: Sequence[Row], mixture: Mixture, hidden: Tensor, blocks: Sequence[Block]
) -> list[Path]:
    """Follow the target's choices through the tree of every row.

    A row whose own logits processor raises, or whose law is not a number, is ended with that error; the others go on.

    Args:
        hidden: (B, T, d) final-normed hidden states of the new tokens.
    """
    layout = Ragged([len(block.tokens) for block in blocks], hidden.shape[1], hidden.device)
    with stage("verify/head"):
        raw = target.logits(layout.line(hidden))  # (N, V)
    with stage("verify/law"):
        choices = _choices(target, rows, mixture, raw, layout, blocks)
    with stage("verify/accept"):
        paths = []
        for index, (row, block) in enumerate(zip(rows, blocks, strict=True)):
            own = layout.row(index)
            walk = _Walk(target, row, mixture, index, block, raw[own], choices[own])
            paths.append(walk.path())
        return paths


def along(paths: Sequence[Path], ids: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens (B, W) and features (B, W, m·d) along the paths, of ids (B, T) and features (B, T, m·d); the first new
    token fills up the shorter ones."""
    width = max(1, *(len(path.steps) for path in paths))
    steps = [path.steps + [0] * (width - len(path.steps)) for path in paths]
    where = upload(torch.tensor(steps), ids.device)
    return ids.gather(1, where), features[torch.arange(len(paths), device=ids.device)[:, None], where]


def _choices(
    target: Target, rows: Sequence[Row], mixture: Mixture, raw: Tensor, layout: Ragged, blocks: Sequence[Block]
) -> list[int]:
    """The target's choice behind every new token, (N), `UNNUMBERED` where its logits are not numbers; of rows whose
    logits are processed, anything."""
    scores = raw
    if target.decodable < raw.shape[-1]:
        scores = raw.clone()
        mask_undecodable(scores, target.decodable)
    choices = likeliest(scores)
    if mixture.sampled:
        each = [index for index in mixture.sampled for _ in range(layout.counts[index])]
        taken = torch.cat([torch.arange(layout.row(index).start, layout.row(index).stop) for index in mixture.sampled])
        lines = upload(taken, raw.device)
        noise = torch.cat([_noise(rows[index], blocks[index]) for index in mixture.sampled]).to(raw.device)
        choices = choices.clone()
        choices[lines] = draw(law_probs(scores[lines], mixture.law.rows(each)), noise)
    size = scores.shape[-1]  # a draw from no law ends behind the vocabulary, an argmax on the NaN itself
    reached = scores.gather(1, choices.clamp(max=size - 1)[:, None]).squeeze(1)
    found: list[int] = choices.masked_fill((choices >= size) | reached.isnan(), UNNUMBERED).tolist()
    return found


def _noise(row: Row, block: Block) -> Tensor:
    """The uniforms (n) that plain decoding draws with behind each new token: those of the position that follows."""
    drawn = uniform_rows([row.request.seed or 0], "next", [row.position + 1], block.tree.places + 1)[0]
    depths = [0] * len(block.known)
    for parent in block.tree.parents:
        depths.append(depths[len(block.known) + parent] + 1)
    return drawn[torch.tensor(depths)]


class _Walk:
    """One row's way through its tree.

    Args:
        index: of the row in the mixture.
        raw: (n, V) logits behind its new tokens. choices: the target's, where nothing is processed.
    """

    def __init__(
        self, target: Target, row: Row, mixture: Mixture, index: int, block: Block, raw: Tensor, choices: list[int]
    ) -> None:
        self._row = row
        self._block = block
        self._raw = raw
        self._choices = choices
        self._index = index
        self._mixture = mixture
        self._processed = row.request.processor.active(row.generated)
        self._doubts = target.alike is not None and row.request.params.greedy

    def path(self) -> Path:
        """The tokens that the target chooses, as far as the tree tells."""
        anchor = len(self._block.known) - 1
        followers = self._block.followers
        steps: list[int] = []
        tokens: list[int] = []
        step, end, error = anchor, False, None
        while not end:
            try:
                chosen = self._chosen(step, tokens)
            except _FaultError as fault:
                chosen, error = None, fault.cause
            if chosen is None:  # what was accepted so far is the end of the round
                break
            steps.append(step)
            tokens.append(chosen)
            following = followers[step - anchor].get(chosen)
            step, end = (step, True) if following is None else (following, False)
        accepted = len(tokens) - 1 if end else len(tokens)
        ruling = Ruling(accepted, tokens, self._logprobs(steps, tokens), error)
        stood = steps if end else [*steps, step]
        stands = anchor + 1 + sum(anchor < each < self._block.line for each in stood)
        return Path(ruling, steps, stands, self._block.tree.places if end else accepted)

    def _chosen(self, step: int, tokens: Sequence[int]) -> int | None:
        """The target's choice behind a new token that stands; None where it is in doubt."""
        scores, choice = self._raw[step], self._choices[step]
        if self._processed:
            scores = self._processed_at(step, tokens)
            choice = self._drawn(scores, len(tokens))
        if choice == UNNUMBERED:
            raise _FaultError(TargetError(f"request {self._row.request.id}: the target's logits are not numbers"))
        if self._doubts and step >= self._block.line and not _beyond_doubt(scores, choice, self._raw[step]):
            return None
        return choice

    def _processed_at(self, step: int, tokens: Sequence[int]) -> Tensor:
        processed = self._row.request.processor(self._raw[step : step + 1], [*self._row.tokens, *tokens], [])
        if processed.error is not None:
            raise _FaultError(processed.error)
        return processed.scores[0]

    def _drawn(self, scores: Tensor, ahead: int) -> int:
        row = self._row
        if row.request.params.greedy:
            best = int(likeliest(scores[None])[0])
            return UNNUMBERED if bool(scores[best].isnan()) else best
        noise = uniform_rows([row.request.seed or 0], "next", [row.position + 1 + ahead], 1, scores.device)[0]
        drawn = int(draw(law_probs(scores[None], self._mixture.law.rows([self._index])), noise)[0])
        return drawn if drawn < len(scores) else UNNUMBERED

    def _logprobs(self, steps: list[int], tokens: list[int]) -> list[Logprob]:
        asked = self._row.request.params.logprobs
        return [] if asked is None else logprobs_of(self._raw[steps], tokens, asked)


class _FaultError(Exception):
    """What ends a row in the middle of its walk."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


def _beyond_doubt(scores: Tensor, choice: int, raw: Tensor) -> bool:
    """Whether no score (V) but that of the choice is near the best, by the size of the logits (V) they are made of.

    A sum is off by a share of what was added up, wherever it ends: a best score near 0 is as much in doubt as any.
    """
    best, (low, high) = float(scores[choice]), raw.aminmax()
    size = max(abs(best), -float(low), float(high))
    return int((scores >= best - size * DOUBT).sum()) == 1
