"""What one pass of DSpine's layers over blocks leaves behind, and what training may put in a predecessor's place.

One rule: places 1..M of every block, never the anchor's row. Source: DSpine (arXiv 2609.36173), sections on injection
and on the training curriculum.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class BlockStates:
    """What one pass over blocks leaves behind, place 1..M of each block.

    hidden: (..., M, d) the ordinary output after the final norm.
    last: (..., M, d) u_L, the last layer's state before its injection.
    farther: (..., M, a) what the last layer hears from farther away than the predecessor; None where the reach is 1.
    heard: per layer, (..., M, d): the state *after* that layer's injection; empty unless asked for.
    readouts: per layer, unit vectors (..., M, r): their readouts; empty unless asked for.
    """

    hidden: Tensor
    last: Tensor
    farther: Tensor | None
    heard: list[Tensor]
    readouts: list[Tensor]

    def grouped(self, *leading: int) -> BlockStates:
        """The same with the blocks' dimension split into `leading` ones."""

        def split(x: Tensor) -> Tensor:
            return x.reshape(*leading, *x.shape[1:])

        return BlockStates(
            hidden=split(self.hidden),
            last=split(self.last),
            farther=None if self.farther is None else split(self.farther),
            heard=[split(state) for state in self.heard],
            readouts=[split(readout) for readout in self.readouts],
        )


@dataclass(frozen=True)
class Replacement:
    """Correct predecessors for the first layers of some blocks (training only).

    codes: (B, M, r) unit codes of the tokens x_s .. x_{s+M-1} that precede places 1..M.
    chosen: bool (B, 1, 1), the blocks whose draw came up.
    layers: how many layers are replaced, from the first.
    """

    codes: Tensor
    chosen: Tensor
    layers: int
