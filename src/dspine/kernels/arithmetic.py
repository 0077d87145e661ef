"""The arithmetic of a round as a set of functions: the plain definitions, and those that a CPU has beside them.

One rule: a set is whole. What differs from a set is made by replacing functions of it, and whoever drafts or judges is
given one set for all of a round; which one is found in `kernels/choice.py`.
Source: DSpine (arXiv 2609.36173), section on kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from dspine.kernels import accept, cpu, injection, reference
from dspine.kernels.injection import MessageWeights
from dspine.kernels.law import Law


@dataclass(frozen=True)
class Kernels:
    """The arithmetic of a round; what each function does is said at its plain definition.

    fused: whether these are the kernels, not the definitions.
    packs: whether those of the layers are for packed weights; others would be packed anew at every call, which takes
        longer than the definitions.
    """

    fused: bool
    neighbour_message: Callable[[Tensor, Tensor, MessageWeights], Tensor]
    candidate_message: Callable[[Tensor, Tensor, Tensor, MessageWeights], Tensor]
    write_and_norm: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
    refined_scores: Callable[[Tensor, Tensor, Tensor, float, Tensor, Tensor], Tensor]
    walk: Callable[[Tensor, Law, Tensor | None], tuple[Tensor, Tensor | None]]
    accept: Callable[[Tensor, Tensor, Tensor | None, Tensor | None, Tensor, Tensor], tuple[Tensor, Tensor]]
    accept_greedy: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    packs: bool = False


REFERENCE = Kernels(
    fused=False,
    neighbour_message=injection.neighbour_message,
    candidate_message=injection.candidate_message,
    write_and_norm=injection.write_and_norm,
    refined_scores=injection.refined_scores,
    walk=reference.walk,
    accept=accept.accept,
    accept_greedy=accept.accept_greedy,
)

CPU = Kernels(
    fused=True,
    neighbour_message=cpu.neighbour_message,
    candidate_message=cpu.candidate_message,
    write_and_norm=cpu.write_and_norm,
    refined_scores=cpu.refined_scores,
    walk=cpu.walk,
    accept=accept.accept,
    accept_greedy=cpu.accept_greedy,
    packs=True,
)
