"""A training step of DSpine beside a plain, unchunked one: steps a second and peak memory; on a GPU, its utilisation.

    python bench/train_step.py                                # three sizes, on the CPU
    python bench/train_step.py --device cuda --sizes qwen3-8b  # random weights and features of that target's sizes

The plain step is the objective as it is written down: all logits at once, their softmaxes and losses differentiated by
torch. Each version runs in a process of its own (memory), in turns (a machine that others use is slow for both alike).
"x plain" is how many steps it takes in the time of a plain one, the median over turns; on a CPU by processor time,
which the work of others hardly changes.
Positions are supervised labels. Model FLOPs are those of the matrix products that training needs, by the rows that are
real, six a weight and row where weights are trained; utilisation is against --peak-tflops.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import dspine  # noqa: F401  sets the threads before torch is imported
from dspine.drafter import DSpine, DSpineConfig, TransferSpace
from dspine.train.blocks import Blocks, cut_blocks, draw_anchors
from dspine.train.learner import Learner
from dspine.train.objectives.dspine import DSpineObjective, Weights
from dspine.train.objectives.objective import Moment, Terms
from dspine.train.sequences import SequenceBatch, teachers

MOMENT = Moment(step=0, epoch=0, learning_rate=1e-4, beta=0.5)


@dataclass(frozen=True)
class Size:
    """Of target and drafter, and of a step."""

    width: int
    inner: int
    layers: int
    heads: tuple[int, int, int]  # query heads, key heads, width of one
    vocabulary: int
    rank: int
    block: int
    sequences: int
    length: int
    anchors: int


SIZES = {
    "small": Size(128, 384, 2, (4, 2, 32), 8_192, 64, 8, 4, 192, 24),
    "medium": Size(256, 768, 3, (8, 4, 32), 32_768, 128, 8, 4, 256, 32),
    "large": Size(576, 1536, 3, (9, 3, 64), 49_152, 256, 8, 4, 320, 48),
    "qwen3-8b": Size(4096, 12_288, 5, (32, 8, 128), 151_936, 1024, 16, 4, 3072, 512),
}


class PlainObjective(DSpineObjective):
    """The same loss with every row's logits at once, differentiated by torch."""

    def terms(self, batch: SequenceBatch, blocks: Blocks, moment: Moment) -> Terms:
        drafter, rows = self.drafter, blocks.supervised.nonzero(as_tuple=True)
        states = drafter.blocks(
            batch.features,
            batch.lengths,
            blocks.anchors,
            blocks.tokens,
        )
        labels, hidden = blocks.labels[rows], states.hidden[rows].float()
        w = torch.exp(-rows[2].float() / self.weights.gamma)
        at = blocks.anchors[rows[0], rows[1]] + rows[2]
        head = drafter.head.float()
        log_q = (hidden @ head.T).log_softmax(-1)
        p = (batch.hidden[rows[0], at] @ head.T - batch.lse[rows[0], at, None]).exp()
        candidates = log_q.topk(drafter.config.top_k, dim=-1).indices
        held = p.gather(1, candidates)
        refined = drafter.refine(states.last, blocks.predecessors, states.farther)[rows].float()
        log_r = drafter.candidate_scores(refined, candidates).log_softmax(-1)
        hit = candidates == labels[:, None]
        mass = held.sum(-1)
        heavy = mass > self.weights.candidate_mass
        r_l1 = (log_r.exp() - held / torch.where(heavy, mass, 1.0)[:, None]).abs().sum(-1)
        goal = drafter.codes[labels]
        cosines = torch.stack([(readout[rows].float() * goal).sum(-1) for readout in states.readouts])
        sums = [
            -(w * log_q.gather(1, labels[:, None])[:, 0]).sum(),
            (w * (log_q.exp() - p).abs().sum(-1)).sum(),
            -(w * torch.where(hit, log_r, 0.0).sum(-1)).sum(),
            (w * heavy * r_l1).sum(),
            (w * (1 - cosines)).sum(),
        ]
        counts = [w.sum(), w.sum(), (w * hit.any(-1)).sum(), (w * heavy).sum(), w.sum()]
        return Terms(torch.stack(sums), torch.stack(counts), torch.zeros(4, drafter.candidates, device=w.device))


def learner_of(size: Size, version: str, device: str, precision: torch.dtype) -> Learner:
    """A learner over random tables."""
    torch.manual_seed(0)
    heads, groups, dim = size.heads
    config = DSpineConfig(
        hidden_size=size.width, intermediate_size=size.inner, num_hidden_layers=size.layers, num_attention_heads=heads,
        num_key_value_heads=groups, head_dim=dim, vocab_size=size.vocabulary, num_target_layers=36,
        target_layer_ids=(1, 9, 17, 25, 33), mask_token_id=size.vocabulary - 1, block_size=size.block,
        transfer_rank=size.rank, message_size=size.rank // 2, top_k=8, max_position_embeddings=8192,
    )  # fmt: skip
    embedding = nn.Embedding(size.vocabulary, size.width, device=device).requires_grad_(False)
    head = torch.randn(size.vocabulary, size.width, device=device) * size.width**-0.5
    drafter = DSpine(config, embedding, head, TransferSpace.fit(head, size.rank)).to(device)
    kind = PlainObjective if version == "plain" else DSpineObjective
    goal = kind(drafter, Weights(), precision=precision, seed=0)
    return Learner(drafter, goal, clip=1.0, anchors_per_sample=size.anchors, precision=precision, seed=0)


def batch_of(size: Size, device: str) -> SequenceBatch:
    """Random sequences, a quarter of each a prompt, with random features and a law of their own."""
    shape = (size.sequences, size.length)
    made = torch.Generator(device).manual_seed(1)
    mask = (torch.arange(size.length, device=device) >= size.length // 4).expand(shape).clone()
    taught = teachers(mask)[..., None]
    hidden = torch.randn(*shape, size.width, device=device, generator=made) * taught
    return SequenceBatch(
        sample_ids=tuple(f"random/{i}" for i in range(size.sequences)),
        ids=torch.randint(0, size.vocabulary - 1, shape, device=device, generator=made),
        loss_mask=mask,
        lengths=torch.full((size.sequences,), size.length, device=device),
        features=torch.randn(*shape, 5 * size.width, device=device, generator=made),
        hidden=hidden,
        lse=taught[..., 0] * 10.0,
    )


def model_flops(size: Size, batch: SequenceBatch, learner: Learner) -> float:
    """Of one step: three times two a weight and row where weights are trained, less where they are frozen."""
    drafter = learner.drafter
    anchors = [
        draw_anchors(mask, size.anchors, seed=0, epoch=0, sample=name)
        for mask, name in zip(batch.loss_mask.cpu(), batch.sample_ids, strict=True)
    ]
    cut = cut_blocks(batch.ids.cpu(), batch.loss_mask.cpu(), batch.lengths.cpu(), anchors, drafter.candidates)
    heads, groups, dim = size.heads
    context, rows, labels = batch.ids.numel(), cut.count * size.block, int(cut.supervised.sum())
    keys_values = 2 * size.width * groups * dim
    layer = 2 * size.width * heads * dim + keys_values + 3 * size.width * size.inner
    seen = float(cut.anchors[cut.valid].sum()) * size.block + rows * (size.block + 1) / 2  # (query, key) pairs
    trained = context * (5 * size.width**2 + size.layers * keys_values) + rows * size.layers * layer
    trained += rows * size.layers * (2 * size.width * size.rank + size.width * size.rank // 2 + 2 * size.rank**2)
    trained += size.layers * seen * heads * dim * 2
    head = labels * size.vocabulary * size.width * (2 + 2 + 4)  # forward, the teacher's forward, one gradient of two
    return 6 * trained + head


def measured(name: str, version: str, device: str, bf16: bool, steps: int) -> dict[str, float]:
    """In this process: seconds of the fastest step, by the clock and of the processor (on a GPU by the clock), peak
    memory over what was held before, and what a step was."""
    size, precision = SIZES[name], torch.bfloat16 if bf16 else torch.float32
    learner, batch = learner_of(size, version, device, precision), batch_of(size, device)
    before = held(device)
    taken, spent, report = [], [], None
    for _ in range(steps + 1):
        started, working = time.perf_counter(), time.process_time()
        report = learner.step([batch], MOMENT)
        if device == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - started)
        spent.append(taken[-1] if device == "cuda" else time.process_time() - working)
    assert report is not None
    return {
        "seconds": min(taken[1:]),
        "spent": min(spent[1:]),
        "peak": held(device) - before,
        "positions": report.tokens,
        "loss": report.loss,
        "flops": model_flops(size, batch, learner),
    }


def held(device: str) -> float:
    """Most bytes so far."""
    if device == "cuda":
        return float(torch.cuda.max_memory_allocated())
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * (1 if sys.platform == "darwin" else 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="small,medium,large", help=f"of {', '.join(SIZES)}")
    parser.add_argument("--versions", default="dspine,plain")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--bf16", action="store_true", help="matrix products in bfloat16, as on CUDA always")
    parser.add_argument("--steps", type=int, default=3, help="timed steps of a turn; the fastest counts")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--peak-tflops", type=float, default=989.0, help="of the device; an H200 in bfloat16: 989")
    parser.add_argument("--one", nargs=2, metavar=("SIZE", "VERSION"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    bf16 = args.bf16 or args.device == "cuda"
    if args.one:
        print(json.dumps(measured(args.one[0], args.one[1], args.device, bf16, args.steps)))
        return
    for name in args.sizes.split(","):
        versions = args.versions.split(",")
        turns: dict[str, list[dict[str, Any]]] = {version: [] for version in versions}
        for turn in range(args.turns):
            for version in versions[:: (-1) ** turn]:  # who begins changes
                command = [sys.executable, __file__, *sys.argv[1:], "--one", name, version]
                out = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                turns[version].append(out)
                took = f"{out['seconds']:.3f} s, {out['spent']:.3f} s of it working"
                print(f"{name}, turn {turn + 1} of {args.turns}, {version}: {took}", file=sys.stderr)
        Console().print(table(name, turns, args.peak_tflops if args.device == "cuda" else None))


def table(name: str, turns: dict[str, list[dict[str, Any]]], peak_tflops: float | None) -> Table:
    """Of one size: a line a version."""
    made = Table("version", "steps/s", "x plain", "peak MB", "positions/s", "GFLOP/s", "loss", title=name)
    for version, of in turns.items():
        seconds, first = min(out["seconds"] for out in of), of[0]
        ratios = [plain["spent"] / out["spent"] for plain, out in zip(turns.get("plain", ()), of, strict=False)]
        rate = first["flops"] / seconds
        used = f"{rate / 1e9:.0f}" + ("" if peak_tflops is None else f" ({rate / 1e12 / peak_tflops:.0%})")
        made.add_row(
            version, f"{1 / seconds:.2f}", f"{median(ratios):.2f}" if ratios else "-", f"{first['peak'] / 1e6:.0f}",
            f"{first['positions'] / seconds:.0f}", used, f"{first['loss']:.6f}",
        )  # fmt: skip
    return made


if __name__ == "__main__":
    main()
