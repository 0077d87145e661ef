"""Suspected faults of a drafter, each as a correction that can be tried on the loaded network.

One rule: a suspicion is a change that would put things right; whether it does is measured, and the network is as it
was when the trial is over. Sources: public failures of drafters that accept little: taps and rows off by one, rotary
bases lost between schemas, another mask token, another mask of the block, codes of another head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, cast

from torch import Tensor, nn

from dspine.checkpoint import check_mask_token
from dspine.drafter.backbone import RotaryEmbedding
from dspine.drafter.dspine import DSpine
from dspine.drafter.eagle3 import Eagle3
from dspine.drafter.parallel import ParallelDrafter
from dspine.drafter.registry import Network
from dspine.drafter.transfer import TransferSpace
from dspine.errors import CheckpointError, ConfigError
from dspine.evaluate.forcing import Forced, Passage, forced
from dspine.target.model import Target

Blocked = DSpine | ParallelDrafter[Any]
THETAS = (1e4, 1e5, 5e5, 1e6, 5e6, 1e7)  # what published models have


@dataclass(frozen=True)
class Suspect:
    """A correction.

    cause: what would be wrong, by a name. says: with this correction. fix: where to put it right.
    """

    cause: str
    says: str
    fix: str
    applied: Callable[[], AbstractContextManager[None]] = nullcontext
    taps: tuple[int, ...] | None = None
    shift: int = 0
    late: int = 0

    def tried(self, drafter: Network, passages: Sequence[Passage]) -> Forced:
        """The drafter's teacher-forced places with the correction."""
        with self.applied():
            return forced(drafter, passages, taps=self.taps, shift=self.shift, late=self.late)


def tapped_layers(target: Target, taps: Sequence[int]) -> tuple[int, ...]:
    """The layers that trials read: the drafter's and their neighbours, ascending."""
    near = {tap + step for tap in taps for step in (-1, 0, 1)}
    return tuple(sorted(tap for tap in near if 0 <= tap <= target.num_layers - 2))


def suspects(target: Target, drafter: Network) -> Iterator[Suspect]:
    """Every correction that can be tried on a drafter."""
    yield from _taps(target, drafter)
    yield from _rope(target, drafter)
    yield from _rows()
    if isinstance(drafter, Eagle3):
        return  # its drafts are no blocks: there is no mask token, and nothing to see the other way
    yield from _masks(target, drafter)
    yield from _sights(drafter)
    if isinstance(drafter, DSpine):
        yield from _codes(target, drafter)


def _taps(target: Target, drafter: Network) -> Iterator[Suspect]:
    known = tapped_layers(target, drafter.target_layer_ids)
    for step in (-1, 1):
        taps = tuple(tap + step for tap in drafter.target_layer_ids)
        if set(taps) <= set(known):
            fix = f"Set target_layer_ids to {list(taps)} in config.json: id k is the output of layer k, counted from 0."
            yield Suspect("taps", f"features of layers {list(taps)}", fix, taps=taps)


def _rope(target: Target, drafter: Network) -> Iterator[Suspect]:
    config = drafter.config
    for theta in sorted({target.facts.rope_theta, *THETAS} - {config.rope_theta}):
        rotary = RotaryEmbedding(config.head_dim, theta).to(target.device)
        swap = _swapping(drafter if isinstance(drafter, Eagle3) else drafter.backbone, rotary=rotary)
        yield Suspect("rope", f"a rotary base of {theta:g}", f"Set rope_theta to {theta:g} in config.json.", swap)


def _masks(target: Target, drafter: Blocked) -> Iterator[Suspect]:
    tokenizer = target.tokenizer
    special = [*getattr(tokenizer, "added_tokens_decoder", {}), *tokenizer.all_special_ids]
    rows = len(cast(Tensor, target.embedding.weight))
    for token in list(dict.fromkeys([*special, *range(target.decodable, min(rows, target.decodable + 4)), rows - 1])):
        if token == drafter.form.mask_token_id or token >= rows:
            continue
        try:
            check_mask_token(token, target)
        except CheckpointError:
            continue
        swap = _swapping(drafter, form=replace(drafter.form, mask_token_id=token))
        name = f"{token} ({tokenizer.convert_ids_to_tokens(token)})"
        yield Suspect("mask_token", f"the mask token {name}", f"Set mask_token_id to {token} in config.json.", swap)


def _rows() -> Iterator[Suspect]:
    for late, which in ((1, "next place"), (-1, "place before")):
        yield Suspect(
            "rows",
            f"rows read as those of the {which}",
            "The weights follow another convention of rows (logits_start): row k predicts the token at its own "
            "position in DSpine and DFlash, the one after it in DSpark and Domino. Convert it by its own layout.",
            late=late,
        )
    for shift, which in ((1, "one position later"), (-1, "one position earlier")):
        yield Suspect(
            "context",
            f"features taken {which}",
            "The features that it was trained with are of other positions: look at how they were made.",
            shift=shift,
        )


def _sights(drafter: Blocked) -> Iterator[Suspect]:
    sights = tuple(replace(sight, causal=not sight.causal) for sight in drafter.form.sights)
    swap = _swapping(drafter, form=replace(drafter.form, sights=sights))
    yield Suspect(
        "sight", "rows of a block that see each other the other way", "Correct is_causal in config.json.", swap
    )


def _codes(target: Target, drafter: DSpine) -> Iterator[Suspect]:
    try:
        space = TransferSpace.fit(target.head_weight.detach().float(), drafter.config.transfer_rank)
    except ConfigError:
        return
    readout = cast(nn.Linear, drafter.injection.readouts[0]).weight.detach().float()
    signs = (readout * space.directions).sum(-1, keepdim=True).sign()  # an eigenvector has none of its own
    fresh = TransferSpace(space.mean, space.basis * signs, space.codes * signs[:, 0])
    yield Suspect(
        "codes",
        "transfer codes made anew from the target's head",
        "The stored codes are not this head's, or in another order: fetch the checkpoint again.",
        _swapping(drafter, space=fresh),
    )


def _swapping(owner: Any, **values: Any) -> Callable[[], AbstractContextManager[None]]:
    """A context in which attributes of an object have other values."""

    @contextmanager
    def swapped() -> Iterator[None]:
        before = {name: getattr(owner, name) for name in values}
        try:
            for name, value in values.items():
                setattr(owner, name, value)
            yield
        finally:
            for name, value in before.items():
                setattr(owner, name, value)

    return swapped


@dataclass(frozen=True)
class Gain:
    """What a correction brings, a place: accuracy, and the logarithm of the likelihood; with standard errors."""

    accuracy: float
    accuracy_error: float
    likelihood: float
    likelihood_error: float

    @property
    def clear(self) -> bool:
        """Whether it puts something right: half a point a place at least, likelier, both four errors from nothing."""
        sure = self.accuracy > 4 * self.accuracy_error and self.likelihood > 4 * self.likelihood_error
        return sure and self.accuracy >= 0.005


def gain(before: Forced, after: Forced) -> Gain:
    """The difference at the places that both know; errors are over anchors, whose places are not independent."""
    both = before.known & after.known
    counts = both.sum(1)
    rows = counts > 0
    if not bool(rows.any()):
        return Gain(0.0, 0.0, 0.0, 0.0)

    def mean(values: Tensor) -> tuple[float, float]:
        each = (values * both).sum(1)[rows] / counts[rows]
        error = float(each.std() / len(each) ** 0.5) if len(each) > 1 else float("inf")
        return float(each.mean()), error

    accuracy, accuracy_error = mean(after.right.float() - before.right.float())
    likelihood, likelihood_error = mean(after.likelihood - before.likelihood)
    return Gain(accuracy, accuracy_error, likelihood, likelihood_error)
