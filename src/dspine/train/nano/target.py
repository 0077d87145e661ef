"""The nano target: a Qwen3 of 1.5 million parameters, trained on nano's own text.

One rule: everything follows from the recipe and its seed. The folder appears whole or not at all, and a run that was
stopped goes on from its last checkpoint to the same weights.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import shutil
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from dspine.checkpoint.folder import replacing
from dspine.config import NanoTargetRecipe
from dspine.errors import ConfigError
from dspine.progress import say
from dspine.target.weights import quiet
from dspine.train.interrupt import StopRequest
from dspine.train.nano.batches import IGNORED, Batch, batches, encode
from dspine.train.nano.corpus import conversations
from dspine.train.nano.tokenizer import train_tokenizer
from dspine.train.state import Progress, load_state, save_state

RECORD = "build.json"  # in the finished folder: the recipe that it was made by
LOG_STEPS = 50
# What may differ between the sessions of one run: it changes no number.
FREE = {"save_steps"}

Optimisers = dict[str, tuple[torch.optim.Optimizer, float]]
"""By name: the optimiser and its peak learning rate."""


def train_nano_target(folder: str | Path, recipe: NanoTargetRecipe) -> Path:
    """Train tokenizer and model and save them as a transformers folder in bfloat16, unless that was done before.

    Checkpoints lie beside the folder until it is finished.

    Returns:
        The folder.

    Raises:
        ConfigError: the folder exists and was not made by this recipe: a trained model is never overwritten.
        KeyboardInterrupt: after Ctrl-C, once the run is saved; the next call goes on from there.
    """
    folder = Path(folder)
    state = folder.with_name(f"{folder.name}-checkpoints")
    if folder.exists():
        _refuse_others(folder, recipe)
    else:
        tokenizer, stream = _text(recipe)
        torch.manual_seed(recipe.seed)
        model = build_model(recipe, tokenizer)
        _fit(model, stream, recipe, state)
        _save(model, tokenizer, folder, recipe)
    shutil.rmtree(state, ignore_errors=True)
    return folder


def _refuse_others(folder: Path, recipe: NanoTargetRecipe) -> None:
    try:
        made_by = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{folder} was not made by build.target: it holds no {RECORD}",
            "Remove it or give another `output`; to use it as it is, name it in `target` and leave build.target out.",
        ) from error
    asked = recipe.model_dump(mode="json", exclude=FREE)
    differing = [f"{key}: {made_by.get(key)} → {value}" for key, value in asked.items() if made_by.get(key) != value]
    if differing:
        raise ConfigError(
            f"{folder} was made with another build.target: {'; '.join(differing)}",
            "Remove it or give another `output`.",
        )


def _text(recipe: NanoTargetRecipe) -> tuple[Any, Iterator[Batch]]:
    """The tokenizer, and the batches of the run."""
    say(f"nano target: writing {recipe.conversations} conversations and training the tokenizer")
    texts = conversations(recipe.seed, recipe.tokenizer_conversations)
    tokenizer = train_tokenizer(
        (part for row in texts for message in row["messages"] for part in (message["role"], message["content"])),
        recipe.vocabulary,
        max_length=recipe.max_positions,
    )
    rows = encode(conversations(recipe.seed, recipe.conversations), tokenizer, recipe.max_positions)
    stream = batches(rows, recipe.batch_tokens, tokenizer.pad_token_id, random.Random(recipe.seed))
    return tokenizer, islice(stream, recipe.steps)


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


def _fit(model: Any, stream: Iterator[Batch], recipe: NanoTargetRecipe, state: Path) -> None:
    """Train to the end, or to an interrupt, from the last checkpoint in `state` if there is one."""
    optimisers = _optimisers(model, recipe)
    identity = {"build.target": _digest(recipe)}
    progress = _resume(model, optimisers, state, identity)
    started, mean = time.monotonic() - progress.seconds, math.nan
    model.train()
    with StopRequest() as stop:
        for batch in islice(stream, progress.step, None):
            loss = _step(model, batch, optimisers, progress.step + 1, recipe)
            progress.step += 1
            progress.seconds = time.monotonic() - started
            mean = loss if math.isnan(mean) else 0.95 * mean + 0.05 * loss
            if progress.step % LOG_STEPS == 0 or progress.step == recipe.steps:
                say(f"nano target: step {progress.step}/{recipe.steps}, loss {mean:.3f}, {progress.seconds:.0f} s")
            if stop.asked or progress.step % recipe.save_steps == 0 or progress.step == recipe.steps:
                optimiser_state = {name: optimiser.state_dict() for name, (optimiser, _) in optimisers.items()}
                save_state(state, progress, model.state_dict(), optimiser_state, identity, keep=1)
            if stop.asked:
                say(f"nano target: interrupted at step {progress.step}; give the same command again to go on.")
                raise KeyboardInterrupt


def _step(model: Any, batch: Batch, optimisers: Optimisers, step: int, recipe: NanoTargetRecipe) -> float:
    """One optimiser step (from 1); returns its loss."""
    loss = batch_loss(model, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
    for optimiser, peak in optimisers.values():
        for group in optimiser.param_groups:
            group["lr"] = peak * _rate(step, recipe)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
    return loss.item()


def _resume(model: Any, optimisers: Optimisers, state: Path, identity: dict[str, str]) -> Progress:
    found = load_state(state, identity)
    if found is None:
        return Progress()
    progress, weights, optimiser_state = found
    model.load_state_dict(weights)
    for name, (optimiser, _) in optimisers.items():
        optimiser.load_state_dict(optimiser_state[name])
    say(f"nano target: going on from step {progress.step}")
    return progress


def _digest(recipe: NanoTargetRecipe) -> str:
    return hashlib.sha256(recipe.model_dump_json(exclude=FREE).encode()).hexdigest()


def _optimisers(model: Any, recipe: NanoTargetRecipe) -> Optimisers:
    """The run's optimisers: Muon for the layers' matrices, AdamW for embedding and norms.

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
    return {"muon": (muon, recipe.matrix_rate), "adamw": (adamw, recipe.embedding_rate)}


def _rate(step: int, recipe: NanoTargetRecipe) -> float:
    """Share of the peak learning rate at a step (from 1): linear warm-up, cosine to zero."""
    if step <= recipe.warmup_steps:
        return step / recipe.warmup_steps
    done = (step - recipe.warmup_steps) / max(1, recipe.steps - recipe.warmup_steps)
    return 0.5 * (1 + math.cos(math.pi * done))


def _save(model: Any, tokenizer: Any, folder: Path, recipe: NanoTargetRecipe) -> None:
    model = model.to(torch.bfloat16).eval()
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        do_sample=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with replacing(folder, lambda name: True) as fresh, quiet():
        model.save_pretrained(fresh)
        tokenizer.save_pretrained(fresh)
        (fresh / RECORD).write_text(recipe.model_dump_json(indent=2) + "\n", encoding="utf-8")
    say(f"nano target: saved in {folder}")
