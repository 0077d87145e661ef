"""The draft round of DSpine and of every baseline at a target's sizes, with random weights, by stage.

    python bench/draft_round.py --size qwen3-8b --dtype bfloat16 --batches 1,2,4,8,16,32,64     # on a GPU
    python bench/draft_round.py --size tiny --device cpu --dtype float32 --batches 1,2 --runs 2  # that all of it runs

Every drafter has layers of one shape, the same context, and M = block - 1 candidates. Each runs by its definitions, by
the kernels that it has (`--kernels fused`), as replayed CUDA graphs (`--captured`; on a CPU run again instead), and so
with norms and MLPs compiled (`--compile`). Times are medians over rounds, on CUDA read from events; there the last
column but one counts how often the host waited for the device inside a draft.
"""

from __future__ import annotations

import argparse
import json
import statistics
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import dspine  # noqa: F401  sets the threads before torch is imported

# isort: split
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from compiling import compile_rows
from dspine.drafter import DSpine, DSpineConfig, TransferSpace
from dspine.drafter.captured import CapturedDraft
from dspine.drafter.proposal import Drafter, Fusable
from dspine.drafter.registry import KINDS
from dspine.evaluate.cuda_marks import CudaMarks
from dspine.kernels.arithmetic import REFERENCE
from dspine.kernels.choice import choose
from dspine.kernels.kv import Span
from dspine.kernels.law import Law
from dspine.kernels.recording import CudaRecorder
from dspine.kernels.reference import unit_normalise
from dspine.stages import HostMarks, StageClock
from rerun import Rerun

COMMON = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
          "head_dim", "vocab_size", "num_target_layers", "target_layer_ids", "mask_token_id", "block_size")  # fmt: skip


@dataclass(frozen=True)
class Size:
    """Of a target's drafters."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    num_target_layers: int
    target_layer_ids: tuple[int, ...]
    num_hidden_layers: int = 5
    block_size: int = 16
    transfer_rank: int = 1024
    message_size: int = 512
    top_k: int = 16

    @property
    def mask_token_id(self) -> int:
        return self.vocab_size - 1


SIZES = {
    "tiny": Size(64, 128, 4, 2, 16, 320, 8, (1, 3, 5), 2, 4, 16, 16, 4),
    "qwen3-4b": Size(2560, 9728, 32, 8, 128, 151_936, 36, (1, 9, 17, 25, 33), transfer_rank=640, message_size=320),
    "qwen3-8b": Size(4096, 12_288, 32, 8, 128, 151_936, 36, (1, 9, 17, 25, 33)),
}
SERIAL = ("dflash", "domino", "dspark")  # no scores of theirs are tabulated here, so that no kernel is theirs
BASELINES: dict[str, dict[str, Any]] = {
    "dflash": {},
    "domino": {},
    "dspark": {},
    "dflash2": {},
    "eagle3": {"num_hidden_layers": 1},
}


def tables(size: Size, dtype: torch.dtype, device: torch.device) -> tuple[nn.Embedding, torch.Tensor]:
    """Embedding and head of a target, random."""
    generator = torch.Generator(device).manual_seed(0)
    rows = torch.randn(2, size.vocab_size, size.hidden_size, generator=generator, device=device).mul_(0.02).to(dtype)
    return nn.Embedding.from_pretrained(rows[0]), rows[1]


def dspine_of(size: Size, embedding: nn.Module, head: torch.Tensor) -> DSpine:
    """A DSpine of random weights; its codes are random too, since fitting them says nothing of the time."""
    config = DSpineConfig(**asdict(size) | {"mask_token_id": size.mask_token_id})
    generator = torch.Generator(head.device).manual_seed(1)
    shape = (size.vocab_size, size.transfer_rank)
    codes = unit_normalise(torch.randn(*shape, generator=generator, device=head.device))
    directions = torch.randn(size.transfer_rank, size.hidden_size, generator=generator, device=head.device)
    space = TransferSpace(torch.zeros(size.hidden_size, device=head.device), directions, codes)
    return DSpine(config, embedding, head, space)


def baseline_of(kind: str, size: Size, embedding: nn.Module, head: torch.Tensor) -> Any:
    given = {name: getattr(size, name) for name in COMMON} | BASELINES[kind]
    return KINDS[kind].build(KINDS[kind].config(**given), embedding, head, None)


def measured(
    drafter: Drafter, width: int, batch: int, context: int, temperature: float, runs: int, device: torch.device
) -> dict[str, float]:
    """Milliseconds of a draft of `batch` rows behind `context` positions: in all, and by stage."""
    generator = torch.Generator(device).manual_seed(2)
    cache = drafter.new_cache(batch)
    for start in range(0, context, 256):  # taking in the prompt is no part of a round
        count = min(256, context - start)
        features = torch.randn(batch, count, width, generator=generator, device=device)
        tokens = torch.zeros(batch, count, dtype=torch.int64, device=device)
        drafter.observe(cache, Span(0, (start,) * batch, count), features, [count] * batch, tokens)
    ones = [1.0] * batch
    law = Law.of([temperature] * batch, [0] * batch, ones, [0.0] * batch, device)
    noise = None if law.greedy else torch.rand(batch, drafter.candidates, generator=generator, device=device)
    anchors = torch.zeros(batch, dtype=torch.int64, device=device)

    def draft() -> None:
        drafter.propose(cache, 0, anchors, law, noise)

    for _ in range(3):
        draft()
    marks = CudaMarks(device) if device.type == "cuda" else HostMarks()
    whole = [_once(marks, draft) for _ in range(runs)]
    clock = StageClock(marks)
    with clock:
        for _ in range(runs):
            draft()
    syncs = {} if device.type != "cuda" else {"syncs": float(waits(draft))}
    stages = {stage.name: 1e3 * stage.seconds / runs for stage in clock.table()}
    return {"draft": 1e3 * statistics.median(whole)} | syncs | stages


def waits(run: Callable[[], None]) -> int:
    """How often the host waits for the device in a call, by torch's own watch."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(each.message) for each in caught)


def _once(marks: Any, run: Callable[[], None]) -> float:
    start = marks.mark()
    run()
    return float(marks.seconds(start, marks.mark()))


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="qwen3-8b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="bfloat16")
    parser.add_argument("--batches", default="1,2,4,8,16,32,64")
    parser.add_argument("--drafters", default=",".join(["dspine", *BASELINES]))
    parser.add_argument("--kernels", choices=("auto", "reference", "fused"), default="auto")
    parser.add_argument("--captured", action="store_true", help="as replayed CUDA graphs, too")
    parser.add_argument("--compile", action="store_true", help="with compiled norms and MLPs, too")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    device, dtype, size = torch.device(args.device), getattr(torch, args.dtype), SIZES[args.size]
    embedding, head = tables(size, dtype, device)
    kernels, report = choose(args.kernels, device, dtype), []
    table = Table("drafter", "batch", "draft ms", "host waits", "by stage")
    torch.set_default_device(device)
    for name in args.drafters.split(","):
        torch.manual_seed(0)
        made = dspine_of(size, embedding, head) if name == "dspine" else baseline_of(name, size, embedding, head)
        network = made.to(device=device, dtype=dtype).eval()
        width = network.config.feature_size
        recorder = CudaRecorder() if device.type == "cuda" else Rerun()
        ways: list[tuple[str, Any, bool]] = [(name, REFERENCE, False)]
        if isinstance(network, Fusable) and kernels.fused and name not in SERIAL:
            ways.append((f"{name}, fused", kernels, False))
        if args.captured:
            ways.append((f"{name}, captured", kernels, True))
        if args.compile:  # the last: the network stays so
            ways.append((f"{name}, compiled", kernels, args.captured))
        for label, arithmetic, captured in ways:
            if isinstance(network, Fusable):
                network.kernels = arithmetic
            if label.endswith("compiled"):
                compile_rows(network, "inductor" if device.type == "cuda" else "eager")
            drafter: Drafter = CapturedDraft(network, recorder) if captured else network
            for batch in map(int, args.batches.split(",")):
                found = measured(drafter, width, batch, args.context, args.temperature, args.runs, device)
                report.append({"drafter": label, "batch": batch, "milliseconds": found})
                parts = ", ".join(f"{key.split('/')[1]} {value:.3f}" for key, value in found.items() if "/" in key)
                table.add_row(label, str(batch), f"{found['draft']:.3f}", f"{found.get('syncs', 0):.0f}", parts)
        del made, network, drafter
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    facts = {
        "size": args.size, "dtype": args.dtype, "device": where, "context": args.context, "runs": args.runs,
        "temperature": args.temperature, "torch": torch.__version__,
    }  # fmt: skip
    Console(width=140).print(table, facts)
    if args.json is not None:
        args.json.write_text(json.dumps({"facts": facts, "rows": report}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
