"""The mlx backend of a command: a target and its drafter on MLX, and what a number was measured on."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from dspine.cli.console import note, waiting
from dspine.cli.heavy import uncollected
from dspine.cli.options import Dtype
from dspine.errors import ConfigError

if TYPE_CHECKING:
    from dspine.decode.policy import Verify
    from dspine.serve.mlx.engine import MlxEngine
    from dspine.serve.mlx.proposal import MlxDrafter
    from dspine.serve.mlx.target import MlxTarget


@dataclass(frozen=True)
class MlxModels:
    """As `Models`, on MLX.

    bits, drafter_bits: what the weights were rounded to here; None: they are as they were stored.
    """

    target: MlxTarget
    drafter: str | None
    network: MlxDrafter | None
    engine: MlxEngine
    verify: Verify | None
    bits: int | None
    drafter_bits: int | None

    def measured_on(self) -> dict[str, Any]:
        """What a number that this engine gave was measured on."""
        from dspine.checkpoint import drafter_digest

        return {
            "backend": "mlx",
            "target": self.target.name,
            "head_digest": self.target.head_digest,
            "drafter": self.drafter,
            "drafter_digest": drafter_digest(self.drafter) if self.drafter else None,
            "dtype": str(self.target.dtype).removeprefix("torch."),
            "bits": self.bits,
            "drafter_bits": self.drafter_bits,
            "device": self.target.device,
            "verify": self.verify,
        }


def open_mlx_models(
    target: str,
    drafter: str | None,
    *,
    dtype: Dtype | None = None,
    device: str | None = None,
    thinking: bool | None = None,
    verify: str | None = None,
    bits: int | None = None,
    drafter_bits: int | None = None,
) -> MlxModels:
    """Load a target and its drafter on MLX, and make an engine.

    Args:
        verify: what `--verify` says; None: all candidates.

    Raises:
        typer.BadParameter: a number format that MLX has not, or a rule that is not known.
        DspineError: MLX is not here, or a model cannot be loaded or does not fit.
    """
    from dspine.cli.options import verify_choice
    from dspine.decode.policy import split_lookup
    from dspine.serve.mlx.installed import require_mlx

    require_mlx()
    if dtype is Dtype.float64:
        raise typer.BadParameter("--dtype float64: MLX has float32, bfloat16 and float16 weights")
    rule = "full" if verify is None else verify_choice(verify)
    if split_lookup(rule)[1]:
        raise typer.BadParameter(f"--verify {verify}: the mlx backend looks nothing up")
    with waiting(f"Loading {target}"), uncollected(), warnings.catch_warnings(record=True) as caught:
        import torch

        from dspine.checkpoint import CheckpointWarning
        from dspine.serve.mlx.engine import MlxEngine
        from dspine.serve.mlx.loading import load_mlx_pair, use_device

        warnings.simplefilter("always", CheckpointWarning)
        use_device(device)
        kind = getattr(torch, dtype) if dtype else None
        loaded, network = load_mlx_pair(
            target, drafter, dtype=kind, bits=bits, drafter_bits=drafter_bits, thinking=thinking
        )
    for warning in caught:
        note(f"warning: {warning.message}")
    try:
        engine = MlxEngine(loaded, network, verify=rule)
    except ConfigError as fault:
        raise typer.BadParameter(f"--verify {rule}: {fault.what}; {fault.fix}") from fault
    used = drafter_bits if network is not None else None
    return MlxModels(loaded, drafter, network, engine, None if network is None else rule, bits, used)
