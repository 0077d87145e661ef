"""The nano target: a Qwen3 of 1.5 million parameters, trained on nano's own text.

One rule: everything follows from the recipe and its seed; the folder is written aside and renamed when it is
complete, so that an interrupted run leaves no half-written model. A run takes minutes and starts anew when it was
interrupted.
"""

from __future__ import annotations

import math
import random
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from dspine.train.nano.batches import IGNORED, Batch, batches, encode
from dspine.train.nano.corpus import conversations
from dspine.train.nano.tokenizer import train_tokenizer

Report = Callable[[str], None]


@dataclass(frozen=True)
class NanoTargetRecipe:
    """Sizes and the run. The defaults made the committed model."""

    seed: int = 1
    conversations: int = 24_000  # different training conversations
    tokenizer_conversations: int = 8_000  # of which so many train the tokenizer
    vocabulary: int = 2048
    hidden_size: int = 128
    intermediate_size: int = 384
    layers: int = 6
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    max_positions: int = 1024
    steps: int = 1000
    batch_tokens: int = 2048  # a step, padding included
    matrix_rate: float = 1.5e-2  # peak learning rate of the layers' matrices
    embedding_rate: float = 4e-3  # peak learning rate of embedding and norms
    warmup_steps: int = 40
    weight_decay: float = 0.05
    clip: float = 1.0
    log_steps: int = 50


def train_nano_target(
    folder: str | Path, recipe: NanoTargetRecipe | None = None, *, report: Report | None = None
) -> Path:
    """Train tokenizer and model and save them as a transformers folder in bfloat16.

    Args:
        folder: where to; it must not exist.
        recipe: sizes and run; the defaults are the committed model's.
        report: takes progress lines; standard error when not given.

    Returns:
        The folder.

    Raises:
        FileExistsError: if the folder exists: a trained model is never overwritten.
    """
    folder, recipe = Path(folder), recipe or NanoTargetRecipe()
    report = report or _to_stderr
    if folder.exists():
        raise FileExistsError(f"{folder} exists; remove it or give another folder")
    report(f"nano target: writing {recipe.conversations} conversations and training the tokenizer")
    texts = conversations(recipe.seed, recipe.tokenizer_conversations)
    tokenizer = train_tokenizer(
        (part for row in texts for message in row["messages"] for part in (message["role"], message["content"])),
        recipe.vocabulary,
        max_length=recipe.max_positions,
    )
    rows = encode(conversations(recipe.seed, recipe.conversations), tokenizer, recipe.max_positions)
    torch.manual_seed(recipe.seed)
    model = build_model(recipe, tokenizer)
    stream = batches(rows, recipe.batch_tokens, tokenizer.pad_token_id, random.Random(recipe.seed))
    _fit(model, (next(stream) for _ in range(recipe.steps)), recipe, report)
    return _save(model, tokenizer, folder)


def build_model(recipe: NanoTargetRecipe, tokenizer: Any) -> Any:
    """The untrained model, float32."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=recipe.hidden_size,
        intermediate_size=recipe.intermediate_size,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.kv_heads,
        head_dim=recipe.head_dim,
        max_position_embeddings=recipe.max_positions,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=True,
        initializer_range=0.05,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen3ForCausalLM(config)


def batch_loss(model: Any, batch: Batch) -> Tensor:
    """Mean cross-entropy over the batch's labels; the head is applied to labelled positions only."""
    # Padding stands on the right, so the causal mask alone keeps it from every labelled position.
    hidden = model.model(input_ids=batch.ids, use_cache=False).last_hidden_state  # (B, T, d)
    counts = batch.labels != IGNORED
    logits = model.lm_head(hidden[counts]).float()  # (labels, V)
    return functional.cross_entropy(logits, batch.labels[counts])


def _fit(model: Any, stream: Any, recipe: NanoTargetRecipe, report: Report) -> None:
    optimisers = _optimisers(model, recipe)
    model.train()
    started, mean = time.monotonic(), math.nan
    for step, batch in enumerate(stream, 1):
        loss = batch_loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        for optimiser, peak in optimisers:
            for group in optimiser.param_groups:
                group["lr"] = peak * _rate(step, recipe)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        mean = loss.item() if math.isnan(mean) else 0.95 * mean + 0.05 * loss.item()
        if step % recipe.log_steps == 0 or step == recipe.steps:
            spent = time.monotonic() - started
            report(f"nano target: step {step}/{recipe.steps}, loss {mean:.3f}, {spent:.0f} s")


def _optimisers(model: Any, recipe: NanoTargetRecipe) -> list[tuple[torch.optim.Optimizer, float]]:
    """Optimisers and their peak rates: Muon for the layers' matrices, AdamW for embedding and norms.

    Muon needs about a third fewer steps than AdamW alone to reach the same loss, which matters when
    the whole run is a few minutes of CPU.
    """
    named = list(model.named_parameters())
    matrices = [p for name, p in named if p.ndim == 2 and "embed" not in name]
    rest = [p for name, p in named if p.ndim != 2 or "embed" in name]
    muon = torch.optim.Muon(
        matrices, lr=recipe.matrix_rate, weight_decay=recipe.weight_decay, adjust_lr_fn="match_rms_adamw"
    )
    adamw = torch.optim.AdamW(rest, lr=recipe.embedding_rate, betas=(0.9, 0.95), weight_decay=0.0)
    return [(muon, recipe.matrix_rate), (adamw, recipe.embedding_rate)]


def _rate(step: int, recipe: NanoTargetRecipe) -> float:
    """Share of the peak learning rate at a step (from 1): linear warm-up, cosine to zero."""
    if step <= recipe.warmup_steps:
        return step / recipe.warmup_steps
    done = (step - recipe.warmup_steps) / max(1, recipe.steps - recipe.warmup_steps)
    return 0.5 * (1 + math.cos(math.pi * done))


def _save(model: Any, tokenizer: Any, folder: Path) -> Path:
    aside = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    aside.parent.mkdir(parents=True, exist_ok=True)
    model = model.to(torch.bfloat16).eval()
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        do_sample=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model.save_pretrained(aside)
    tokenizer.save_pretrained(aside)
    return aside.rename(folder)


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
