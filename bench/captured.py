"""Whole rounds at a target's sizes, random weights: eager, replayed from recordings, and with compiled norms and MLPs.

    python bench/captured.py --size qwen3-8b --batches 1,8 --compile             # on a GPU
    python bench/captured.py --size tiny --device cpu --dtype float32 --compile  # that all of it runs

One engine a way and batch, DSpine's or another drafter, greedy; the same prompts of random tokens. On a CPU nothing is
recorded: what would be replayed is run again. Per round: wall time, the device's time of the draft and of the target's
forward, and how often the host waited for the device. "same" counts the answers that are those of the eager engine,
token for token; in half precision a tie may part them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

import dspine  # noqa: F401  sets the threads before torch is imported

# isort: split
import torch
import transformers
from rich.console import Console
from rich.table import Table

from compiling import compile_rows
from draft_round import SIZES, Size, baseline_of, dspine_of, waits
from dspine.decode.engine import Engine
from dspine.decode.sampling import SamplingParams
from dspine.drafter.registry import KINDS
from dspine.evaluate.cuda_marks import CudaMarks
from dspine.stages import StageClock
from dspine.target import load_target
from dspine.target.model import Target
from rerun import Rerun

PARTS = ("draft", "verify/forward", "verify", "commit")


def random_target(size: Size, dtype: torch.dtype, device: torch.device) -> Target:
    """A random Qwen3 of a size; any tokenizer will do."""
    fields = asdict(size)
    names = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size")
    config = transformers.Qwen3Config(
        **{name: fields[name] for name in names},
        num_hidden_layers=size.num_target_layers,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        initializer_range=0.3 if size is SIZES["tiny"] else 0.02,
    )
    torch.manual_seed(0)
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            model = transformers.Qwen3ForCausalLM(config)
    finally:
        torch.set_default_dtype(default)
    return Target(model, load_target("nano").tokenizer, name="random Qwen3")


def measured(engine: Engine, prompts: list[list[int]], rounds: int, device: torch.device) -> dict[str, Any]:
    """What `rounds` rounds of all prompts take, once everything is warm, and the answers."""
    params = SamplingParams(max_new_tokens=rounds, ignore_eos=True)
    engine.generate(prompts, params)
    clock = StageClock(CudaMarks(device) if device.type == "cuda" else None)
    with clock:
        answers = engine.generate(prompts, params)
    count = max(len(answer.rounds) for answer in answers)
    spent = {stage.name: 1e3 * stage.seconds / count for stage in clock.table()}
    parts = {part: sum(spent[name] for name in _outermost(spent, part)) for part in PARTS}
    start = perf_counter()
    engine.generate(prompts, params)
    if device.type == "cuda":
        torch.cuda.synchronize()
    found: dict[str, Any] = {"round": 1e3 * (perf_counter() - start) / count} | parts
    if device.type == "cuda":
        for prompt in prompts:
            engine.add(prompt, params)
        engine.step()  # the prefill
        engine.step()
        found["waits"] = waits(engine.step)
        while engine.pending:
            engine.step()
    return found | {"tokens": [answer.token_ids for answer in answers]}


def _outermost(spent: dict[str, float], part: str) -> list[str]:
    """The stages of a part that lie in no other one of it."""
    inside = [name for name in spent if name == part or name.startswith(part + "/")]
    return [name for name in inside if not any(name.startswith(other + "/") for other in inside)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="qwen3-8b")
    parser.add_argument("--drafter", choices=KINDS, default="dspine")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="bfloat16")
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--context", type=int, default=300, help="tokens of a prompt")
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--compile", action="store_true", help="a third way: recorded with compiled norms and MLPs")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    device, dtype, size = torch.device(args.device), getattr(torch, args.dtype), SIZES[args.size]
    target = random_target(size, dtype, device)
    tables = (target.embedding, target.head_weight)
    with device:
        made = dspine_of(size, *tables) if args.drafter == "dspine" else baseline_of(args.drafter, size, *tables)
    drafter = made.to(device=device, dtype=dtype).eval().requires_grad_(False)
    recorders: Any = "on" if device.type == "cuda" else Rerun
    ways: list[tuple[str, Any, Callable[[], object]]] = [
        ("eager", "off", lambda: None),
        ("captured", recorders, lambda: None),
    ]
    if args.compile:
        backend = "inductor" if device.type == "cuda" else "eager"
        ways.append(
            ("captured, compiled", recorders, lambda: [compile_rows(x, backend) for x in (target.model, drafter)])
        )
    generator, report = torch.Generator().manual_seed(1), []
    table = Table("way", "batch", "round ms", *(f"{part} ms" for part in PARTS), "host waits", "same")
    eager: dict[int, list[tuple[int, ...]]] = {}
    batches = [int(batch) for batch in args.batches.split(",")]
    prompts = torch.randint(target.decodable, (max(batches), args.context), generator=generator).tolist()
    for way, capture, prepare in ways:
        prepare()
        for batch in batches:
            engine = Engine(target, drafter, max_batch=batch, capture=capture)
            found = measured(engine, prompts[:batch], args.rounds, device)
            tokens = found.pop("tokens")
            same = sum(one == other for one, other in zip(tokens, eager.setdefault(batch, tokens), strict=True))
            report.append({"way": way, "batch": batch, "milliseconds": found, "same": same})
            shown = [f"{found[name]:.3f}" for name in ("round", *PARTS)]
            table.add_row(way, str(batch), *shown, str(found.get("waits", "-")), f"{same} of {batch}")
            del engine
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU, run again"
    facts = {
        "size": args.size, "drafter": args.drafter, "dtype": args.dtype, "device": where, "context": args.context,
        "rounds": args.rounds, "torch": torch.__version__,
    }  # fmt: skip
    Console(width=140).print(table, facts)
    if args.json is not None:
        args.json.write_text(json.dumps({"facts": facts, "rows": report}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
