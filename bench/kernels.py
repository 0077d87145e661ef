"""Each fused kernel against its definition (eager and compiled), and against what moving its bytes must take.

    python bench/kernels.py --size qwen3-8b --dtype bfloat16          # on a GPU
    TRITON_INTERPRET=1 python bench/kernels.py --size tiny --device cpu --runs 1   # that all of it runs

Times are medians of the device's own events, after warm-up, for a batch of rows; a round counts what it calls L times
(message, write) L times. The floor is bytes that must be moved / --bandwidth, and multiplications / --tflops, whichever
is longer. On the CPU the interpreter's times mean nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import dspine  # noqa: F401  sets the threads before torch is imported

# isort: split
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from dspine.kernels.arithmetic import REFERENCE, Kernels
from dspine.kernels.choice import choose
from dspine.kernels.injection import MessageWeights
from dspine.kernels.law import Law
from dspine.kernels.reference import unit_normalise


@dataclass(frozen=True)
class Size:
    """Of a drafter: width d, rank r, message a, layers L, places M, candidates K, vocabulary V."""

    width: int
    rank: int
    message: int
    layers: int
    places: int
    top: int
    vocabulary: int


SIZES = {
    "tiny": Size(48, 24, 16, 2, 3, 4, 300),
    "qwen3-4b": Size(2560, 640, 320, 5, 15, 16, 151_936),
    "qwen3-8b": Size(4096, 1024, 512, 5, 15, 16, 151_936),
}


@dataclass(frozen=True)
class Case:
    """One kernel: how it is run, calls a round, bytes that it must move and products that it must make."""

    name: str
    run: Callable[[Kernels], Any]
    calls: int
    moved: int
    products: int


def cases(size: Size, batch: int, dtype: torch.dtype, device: torch.device) -> list[Case]:
    generator = torch.Generator(device).manual_seed(0)
    each = torch.finfo(dtype).bits // 8

    def made(*shape: int, kind: torch.dtype = dtype) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device, dtype=torch.float32).to(kind)

    d, r, a, m, k, v = size.width, size.rank, size.message, size.places, size.top, size.vocabulary
    rows = batch * m
    weights = MessageWeights(*(made(a, r) * r**-0.5 for _ in range(3)), made(a), r**0.5)
    said, block, written = made(batch, m, r), made(batch, m + 1, d), made(batch, m, d)
    codes, scale = unit_normalise(made(v, r, kind=torch.float32)), made(d)
    candidates = torch.randint(0, v, (batch, m, k), device=device)
    writes, head = made(batch, m, k, d), made(v, d) * d**-0.5
    scores, uniforms = made(batch, m, k, k), torch.rand(batch, m + 1, device=device)
    sampled = Law.of([1.0] * batch, [0] * batch, [0.95] * batch, [0.0] * batch, device)
    greedy = Law.greedy_rows(batch, device)
    p = torch.softmax(made(batch, m + 1, v, kind=torch.float32), -1)
    q, tokens = torch.softmax(made(batch, m, k, kind=torch.float32), -1), candidates[..., 0].contiguous()
    lengths = torch.full((batch,), m, device=device)
    choices = torch.cat((tokens, tokens[:, :1]), dim=1)
    gates = 3 * a * r * each
    return [
        Case("neighbour message", lambda x: x.neighbour_message(said, codes[:batch], weights), size.layers,
             gates + rows * (r + a) * each, 3 * rows * r * a),
        Case("write and norm", lambda x: x.write_and_norm(block, written, scale, 1e-6), size.layers,
             4 * rows * d * each, 0),
        Case("candidate message", lambda x: x.candidate_message(said, codes, candidates, weights), 1,
             gates + rows * k * (4 * r + a * each), 3 * rows * k * r * a),
        Case("refined scores", lambda x: x.refined_scores(block[:, 1:], writes, scale, 1e-6, head, candidates), 1,
             rows * (2 * k + 1) * d * each, rows * k * k * d),
        Case("walk, greedy", lambda x: x.walk(scores, greedy, None), 1, rows * k * each, 0),
        Case("walk, sampled", lambda x: x.walk(scores, sampled, uniforms[:, :m]), 1, rows * k * (each + 4), 0),
        Case("accept, greedy", lambda x: x.accept_greedy(choices, tokens, lengths), 1, 3 * rows * 8, 0),
        Case("accept, sampled", lambda x: x.accept(p, tokens, candidates, q, uniforms, lengths), 1, batch * v * 4, 0),
    ]  # fmt: skip


def seconds(run: Callable[[], Any], device: torch.device, runs: int) -> float:
    """Median seconds of a call, of the device where it has a clock."""
    for _ in range(min(runs, 5)):
        run()
    found = []
    for _ in range(runs):
        if device.type == "cuda":
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            run()
            stop.record()
            torch.cuda.synchronize()
            found.append(start.elapsed_time(stop) / 1e3)
        else:
            begun = perf_counter()
            run()
            found.append(perf_counter() - begun)
    return statistics.median(found)


def compiled(case: Case, device: torch.device, runs: int) -> float | None:
    """The definition through torch.compile; None where that does not work."""
    try:
        return seconds(torch.compile(lambda: case.run(REFERENCE), dynamic=False), device, runs)
    except Exception as error:  # noqa: BLE001  whatever a compiler raises: there is no figure then
        print(f"{case.name}: torch.compile failed: {type(error).__name__}")
        return None


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="qwen3-8b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="bfloat16")
    parser.add_argument("--batches", default="1,8,64")
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--compile", action="store_true", help="time the compiled definition too")
    parser.add_argument("--bandwidth", type=float, default=4.8e12, help="bytes a second of the device's memory")
    parser.add_argument("--tflops", type=float, default=790, help="of matrix products, in this number format")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    device, dtype = torch.device(args.device), getattr(torch, args.dtype)
    fused, report = choose("fused", device, dtype), []
    table = Table("kernel", "batch", "fused µs", "eager µs", "compiled µs", "floor µs", "of floor", "µs a round")
    for batch in map(int, args.batches.split(",")):
        for case in cases(SIZES[args.size], batch, dtype, device):
            ours = seconds(lambda case=case: case.run(fused), device, args.runs)
            eager = seconds(lambda case=case: case.run(REFERENCE), device, args.runs)
            best = compiled(case, device, args.runs) if args.compile else None
            floor = max(case.moved / args.bandwidth, 2 * case.products / (args.tflops * 1e12))
            row = {
                "kernel": case.name, "batch": batch, "fused_us": 1e6 * ours, "eager_us": 1e6 * eager,
                "compiled_us": None if best is None else 1e6 * best, "floor_us": 1e6 * floor,
                "of_floor": floor / ours, "moved_bytes": case.moved, "round_us": 1e6 * ours * case.calls,
            }  # fmt: skip
            report.append(row)
            shown = "-" if best is None else f"{1e6 * best:.1f}"
            table.add_row(
                case.name, str(batch), f"{row['fused_us']:.1f}", f"{row['eager_us']:.1f}", shown,
                f"{row['floor_us']:.2f}", f"{row['of_floor']:.0%}", f"{row['round_us']:.1f}",
            )  # fmt: skip
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU, interpreter"
    facts = {"size": args.size, "dtype": args.dtype, "device": name, "torch": torch.__version__, "runs": args.runs}
    Console(width=120).print(table, facts)
    if args.json is not None:
        args.json.write_text(json.dumps({"facts": facts, "rows": report}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
