"""From logits to the law that a token is drawn from.

One rule: one function makes the law of the target and of the drafter alike, and what is drawn is drawn from the
very float32 tensor that is later called p or q. Source: DSpine (arXiv 2609.36173), section on sampling; order as in
the field: temperature, top-k, softmax, top-p, min-p, renormalise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dspine.kernels.truncation import Cut, truncated

_NEGATIVE_INFINITY = 0xFF80  # its bits in bfloat16: above them lies what is no number, its sign set


@dataclass(frozen=True)
class Law:
    """Sampling parameters of B rows, each a tensor (B,) on the device of the logits.

    temperature 0 means greedy; top_k 0, top_p 1 and min_p 0 mean off.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    greedy: bool  # every row has temperature 0
    drawn: bool  # none has
    cut: tuple[int, ...] | None  # rows that are drawn and use top-k, top-p or min-p; None: the device alone knows

    @classmethod
    def of(
        cls,
        temperature: list[float],
        top_k: list[int],
        top_p: list[float],
        min_p: list[float],
        device: torch.device | str | None = None,
    ) -> Law:
        return cls(
            temperature=torch.tensor(temperature, dtype=torch.float32, device=device),
            top_k=torch.tensor(top_k, dtype=torch.int64, device=device),
            top_p=torch.tensor(top_p, dtype=torch.float32, device=device),
            min_p=torch.tensor(min_p, dtype=torch.float32, device=device),
            greedy=all(t == 0 for t in temperature),
            drawn=all(t > 0 for t in temperature),
            cut=tuple(
                row
                for row, (t, k, p, m) in enumerate(zip(temperature, top_k, top_p, min_p, strict=True))
                if t > 0 and (k > 0 or p < 1 or m > 0)
            ),
        )

    @classmethod
    def greedy_rows(cls, rows: int, device: torch.device | str | None = None) -> Law:
        return cls.of([0.0] * rows, [0] * rows, [1.0] * rows, [0.0] * rows, device)

    def rows(self, index: list[int]) -> Law:
        """The law of some of the rows, in the order of `index`."""
        return Law.of(
            self.temperature[index].tolist(),
            self.top_k[index].tolist(),
            self.top_p[index].tolist(),
            self.min_p[index].tolist(),
            self.temperature.device,
        )


def law_probs(logits: Tensor, law: Law) -> Tensor:
    """Probabilities after the sampling parameters.

    Args:
        logits: (B, ..., V), any float type; -inf marks what cannot be drawn.
        law: parameters of the B rows.

    Returns:
        float32 (B, ..., V), each row summing to 1; one-hot at the argmax where the temperature is 0.
    """
    if law.greedy:
        return _one_hot(logits)
    spread = (-1,) + (1,) * (logits.dim() - 1)
    temperature = law.temperature.view(spread)
    greedy = temperature == 0
    scores = logits.float() / torch.where(greedy, torch.ones_like(temperature), temperature)
    probs = torch.softmax(scores, dim=-1)
    if law.cut is None:
        probs = torch.where(_cuts(law).view(spread), _truncated(scores, probs, law, slice(None)), probs)
    elif law.cut:
        # A row that truncates nothing keeps its plain softmax, bit for bit: its law must not depend on its company.
        rows = slice(None) if len(law.cut) == len(probs) else list(law.cut)
        probs[rows] = _truncated(scores, probs, law, rows)
    if not law.drawn:
        probs = torch.where(greedy, _one_hot(logits), probs)
    return probs


def _truncated(scores: Tensor, probs: Tensor, law: Law, rows: slice | list[int]) -> Tensor:
    """Truncated laws (R, ..., V) of some rows of scores (B, ..., V), the temperature applied, and of their softmax."""
    part, flat = probs[rows], (-1, probs.shape[-1])
    places = part[..., 0].numel() // len(part)
    cut = Cut(*(each[rows].repeat_interleave(places)[:, None] for each in (law.top_k, law.top_p, law.min_p)))
    return truncated(scores[rows].reshape(flat), part.reshape(flat), cut).view(part.shape)


def _cuts(law: Law) -> Tensor:
    """Which rows truncate anything, bool (B,)."""
    return (law.top_k > 0) | (law.top_p < 1) | (law.min_p > 0)


def _one_hot(logits: Tensor) -> Tensor:
    best = likeliest(logits).unsqueeze(-1)
    return torch.zeros(logits.shape, dtype=torch.float32, device=logits.device).scatter_(-1, best, 1.0)


def likeliest(scores: Tensor) -> Tensor:
    """The id of the best score, the first of equal ones; a score that is no number is the best: (..., V) → (...)."""
    if scores.device.type != "cpu":
        return scores.argmax(dim=-1)
    best = _likeliest_by_bits(scores.detach()) if scores.dtype == torch.bfloat16 else None
    if best is None:
        # torch's argmax goes through a vocabulary one by one, numpy's does not: about a twentieth of the time.
        known = scores if scores.dtype == torch.float64 else scores.float()  # numpy knows no bfloat16
        best = np.asarray(known.detach().numpy().argmax(axis=-1))
    return torch.from_numpy(best)


def _likeliest_by_bits(scores: Tensor) -> NDArray[np.int64] | None:
    """The same of bfloat16 scores without making them wide; None where the bits do not tell.

    Positive numbers are in the order of their bits as integers. Below them lie the negative ones, in reversed order,
    and what is no number where its sign is set.
    """
    bits = scores.contiguous().view(torch.int16).numpy()
    best = np.asarray(bits.argmax(axis=-1))
    if bits.view(np.uint16).max(initial=0) > _NEGATIVE_INFINITY:
        return None
    return best if (np.take_along_axis(bits, best[..., None], -1) > 0).all() else None


def known(probs: Tensor) -> Tensor:
    """A drafter's laws (..., K), in place, with rows that are no numbers made uniform.

    An overflow in a drafter's network costs candidates then, and no more: they are drawn from these laws and judged by
    them, as from any. Of the target's law nothing is made up: there it is an error.
    """
    return probs.nan_to_num_(nan=1 / probs.shape[-1])  # a softmax that is no number is so in the whole row


def draw(probs: Tensor, uniforms: Tensor) -> Tensor:
    """Draw one id a row by inverse CDF; an id of probability 0 is never drawn.

    Args:
        probs: (..., V), non-negative, not all 0 in a row; need not sum to 1.
        uniforms: (...) in [0, 1).

    Returns:
        ids (...) int64.
    """
    cdf = probs.double().cumsum(-1)  # float64: a float32 sum over the vocabulary would misplace rare tokens
    mark = (uniforms.double() * cdf[..., -1]).unsqueeze(-1)
    return torch.searchsorted(cdf, mark, right=True).squeeze(-1)
