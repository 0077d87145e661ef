"""Snapshot against replay: what going back costs on a hybrid target, in time and memory, by the length of the block.

    python bench/hybrid.py                       # a random model: gated delta nets beside full attention
    python bench/hybrid.py --target MODEL --rows 4 --dtype bfloat16

Time is a round's (the forward over the block, and half of it accepted), in units of a plain step of the same rows;
memory is that of the states at the end of the forward, in units of what the rows hold between rounds. Both ways and the
plain step are run in turn, and each counts with its quickest run; on a CPU by the processor's time, so that what else
the machine does counts for little.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from time import perf_counter, process_time

import torch
import transformers
from rich.console import Console
from rich.table import Table

import dspine  # noqa: F401  sets the threads before torch is imported
from dspine.target import load_target
from dspine.target.model import Target
from dspine.target.rollback import METHODS, measure

SIZES = {
    "vocab_size": 1024,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def random_target(dtype: torch.dtype) -> Target:
    """A random Qwen3.5 of eight layers, two of them with full attention; any tokenizer will do."""
    torch.manual_seed(0)
    model = transformers.Qwen3_5ForCausalLM(transformers.Qwen3_5TextConfig(**SIZES)).to(dtype)
    return Target(model, load_target("nano").tokenizer, name="random Qwen3.5")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--blocks", default="4,8,16,32")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    dtype = getattr(torch, args.dtype)
    target = load_target(args.target, dtype=dtype) if args.target else random_target(dtype)
    blocks = [int(block) for block in args.blocks.split(",")]
    held = args.rows * target.rollback.row_bytes
    sizes = [("replay", 1), *((method, block) for block in blocks for method in METHODS)]
    clock = process_time if target.device.type == "cpu" else perf_counter
    seconds = dict.fromkeys(sizes, float("inf"))
    memory = dict.fromkeys(sizes, 0.0)
    with torch.inference_mode():
        for _ in range(args.turns):
            for method, block in sizes:
                cost = measure(target, method, args.rows, block, clock)
                seconds[method, block] = min(seconds[method, block], cost.seconds)
                memory[method, block] = cost.bytes / held
    plain = seconds["replay", 1]
    table = Table("block", *(f"{method}, {what}" for what in ("time", "memory") for method in METHODS))
    rows = []
    for block in blocks:
        times = {method: round(seconds[method, block] / plain, 2) for method in METHODS}
        sizes_held = {method: round(memory[method, block], 2) for method in METHODS}
        rows.append({"block": block, "time": times, "memory": sizes_held})
        table.add_row(str(block), *(str(each[method]) for each in (times, sizes_held) for method in METHODS))
    facts = {
        "target": target.name,
        "rows": args.rows,
        "dtype": args.dtype,
        "device": str(target.device),
        "threads": torch.get_num_threads(),
        "clock": clock.__name__,
        "state_bytes_a_row": target.rollback.row_bytes,
    }
    Console().print(table, facts)
    if args.json is not None:
        args.json.write_text(json.dumps({"facts": facts, "rows": rows}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
