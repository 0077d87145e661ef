"""The trained modules of a drafter, filled strictly.

One rule: the names are those of the files (`checkpoint/schema.py`); one too many or too few is an error of the load.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import mlx.core as mx
from mlx import nn

from dspine.drafter.config import BackboneConfig, DSpineConfig
from dspine.serve.mlx.backbone import Backbone
from dspine.serve.mlx.injection import Injection
from dspine.serve.mlx.target import check_bits, group_size_of


class ConfidenceHead(nn.Module):
    """σ(ζ_k / T_k) with ζ = w · x + b: the chance that a place is accepted if those before it are.

    Args:
        width: of what it reads.
        temperatures: T_1..T_M of a calibration; None: they are 1.
    """

    def __init__(self, width: int, temperatures: Sequence[float] | None) -> None:
        super().__init__()
        self.proj = nn.Linear(width, 1)
        self._temperatures = None if temperatures is None else tuple(temperatures)

    def __call__(self, x: mx.array) -> mx.array:
        """(M, width) → (M,) float32."""
        logits = self.proj(x).squeeze(-1).astype(mx.float32)
        return mx.sigmoid(logits if self._temperatures is None else logits / mx.array(self._temperatures))


class Network(nn.Module):
    """Backbone, DSpine's injection, and a confidence head, as far as the sizes ask for them.

    Args:
        confidence: the confidence head; None: there is none.
    """

    def __init__(self, config: BackboneConfig, confidence: ConfidenceHead | None) -> None:
        super().__init__()
        self.backbone = Backbone(config)
        if isinstance(config, DSpineConfig):
            self.injection = Injection(config)
        if confidence is not None:
            self.confidence_head = confidence

    @property
    def confident(self) -> bool:
        return "confidence_head" in self

    def fill(self, weights: Mapping[str, mx.array]) -> None:
        """Take in all weights by their names."""
        self.load_weights(list(weights.items()), strict=True)
        mx.eval(self.parameters())

    def quantise(self, bits: int) -> None:
        """Keep the backbone's matrices in 4 or 8 bits; injection, norms and codes stay as they are.

        Raises:
            TargetError: another number of bits.
        """
        check_bits(bits)
        group = group_size_of(self.backbone.norm.weight.shape[0])

        def fits(path: str, module: nn.Module) -> bool:
            return isinstance(module, nn.Linear) and module.weight.shape[-1] % group == 0

        nn.quantize(self.backbone, group_size=group, bits=bits, class_predicate=fits)
        mx.eval(self.parameters())
