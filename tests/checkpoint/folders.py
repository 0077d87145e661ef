"""A tiny DSpine drafter (fixture F4) on disk, and ways to spoil a copy of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tests.support.tiny_target import MASK
from torch import Tensor

from dspine.drafter.config import DSpineConfig
from dspine.drafter.dspine import DSpine
from dspine.drafter.proposal import Proposal
from dspine.drafter.transfer import TransferSpace
from dspine.kernels.kv import Span
from dspine.kernels.law import Law
from dspine.target.model import Target

TRAINING = {
    "steps": 12,
    "warmup_steps": 3,
    "replacement_layers": 1,
    "ce_weight": 0.2,
    "prompts": "tiny",
    "sources": ["made up"],
}


def tiny_config(target: Target, **overrides: Any) -> DSpineConfig:
    """Fixture F4: two layers of width 64, rank 16, message 8, K = 4, blocks of 4, over fixture F1."""
    sizes: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": target.vocab_size,
        "rope_theta": 20000.0,
        "max_position_embeddings": 4096,
        "num_target_layers": 6,
        "target_layer_ids": (1, 3, 4),
        "mask_token_id": MASK,
        "block_size": 4,
        "transfer_rank": 16,
        "message_size": 8,
        "top_k": 4,
    }
    return DSpineConfig(**{**sizes, **overrides})


def random_drafter(target: Target, draft_ids: Tensor | None = None, **overrides: Any) -> DSpine:
    """A drafter none of whose parameters has its initial value, so that each one shows in what it proposes."""
    config = tiny_config(target, **overrides)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(5)
        head = target.head_weight.detach()
        drafter = DSpine(config, target.embedding, head, TransferSpace.fit(head, config.transfer_rank), draft_ids)
        for parameter in drafter.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return drafter.to(target.dtype).eval()


@torch.no_grad()
def proposal(drafter: DSpine, temperature: float = 0.0) -> Proposal:
    """What the drafter proposes for two rows after five positions of fixed features."""
    size = len(drafter.target_layer_ids) * drafter.config.hidden_size
    features = torch.randn(2, 5, size, generator=torch.Generator().manual_seed(1)).to(drafter.dtype)
    cache = drafter.new_cache(2)
    drafter.observe(cache, Span(0, (0, 0), 5), features, (5, 5), torch.zeros(2, 5, dtype=torch.int64))
    law = Law.of([temperature] * 2, [0] * 2, [1.0] * 2, [0.0] * 2)
    uniforms = torch.rand(2, drafter.candidates, generator=torch.Generator().manual_seed(2)) if temperature else None
    return drafter.propose(cache, 0, torch.tensor([65, 66]), law, uniforms)


def same_proposal(one: DSpine, other: DSpine) -> bool:
    """Whether both propose the same tokens, greedy and sampled, and the sampled ones from the same law, bit for bit."""
    greedy, sampled = [proposal(d) for d in (one, other)], [proposal(d, 1.0) for d in (one, other)]
    laws = [p.probs for p in sampled if p.probs is not None]
    return torch.equal(greedy[0].tokens, greedy[1].tokens) and len(laws) == 2 and torch.equal(*laws)


def edit_config(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


def put(*keys: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """A change of a config: the value at a path of keys."""

    def change(config: dict[str, Any]) -> None:
        for key in keys[:-1]:
            config = config.setdefault(key, {})
        config[keys[-1]] = value

    return change


def drop(*keys: str) -> Callable[[dict[str, Any]], None]:
    """A change of a config: no such key."""

    def change(config: dict[str, Any]) -> None:
        for key in keys[:-1]:
            config = config[key]
        del config[keys[-1]]

    return change


def edit_tensors(folder: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    path = folder / "model.safetensors"
    tensors = dict(load_file(path))
    change(tensors)
    path.unlink()
    save_file(tensors, path)


def to_split(folder: Path, wrapped: bool = True) -> None:
    """Turn a folder in SpecForge's layout into the authors' split one."""
    moved: dict[str, Tensor] = {}

    def strip(tensors: dict[str, Tensor]) -> None:
        del tensors["transfer_ready"]
        moved["codes"] = tensors.pop("transfer_codes")

    edit_tensors(folder, strip)
    save_file(moved, folder / "transfer.safetensors")
    config = json.loads((folder / "config.json").read_text())
    del config["dspine_format"]
    (folder / "config.json").write_text(json.dumps({"config": config} if wrapped else config))


def copy_of(folder: Path, place: Path) -> Path:
    return Path(shutil.copytree(folder, place))


def snapshot(folder: Path) -> Mapping[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
