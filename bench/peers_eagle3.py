"""EAGLE-3 beside its re-implementations: training-time test and chain, with the correct tokens fed back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, LlamaConfig

from dspine.checkpoint import LayoutName
from dspine.drafter.eagle3 import Eagle3
from dspine.target.model import Target
from peers_common import TAPS, again, alive, apart, borrow, ours, qwen3

STEPS, SIZE = 4, 14


def _inputs(drafter: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Features, tokens, and our normed states (steps, S, d) of every row."""
    assert isinstance(drafter, Eagle3)
    features = torch.randn(1, SIZE, drafter.config.feature_size)
    tokens = torch.randint(0, 200, (1, SIZE))
    return features, tokens, drafter.unroll(features, tokens, STEPS)[:, 0]


def _whole(step: int) -> slice:
    """Rows whose token at this step lies in the sequence."""
    return slice(0, SIZE - 1 - step)


def _llama(target: Target, **over: Any) -> LlamaConfig:
    said = qwen3(target, 1).to_dict()
    kept = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    kept += ("max_position_embeddings", "rope_parameters", "rms_norm_eps", "num_target_layers")
    return LlamaConfig(num_hidden_layers=1, pad_token_id=0, **{key: said[key] for key in kept}, **over)


def specforge_eagle3(target: Target, folder: Path) -> dict[str, float]:
    from specforge.modeling.draft.llama3_eagle import LlamaForCausalLMEagle3, prepare_decoder_attention_mask

    ids = torch.arange(5, 205, 2)
    eagle = {"eagle_aux_hidden_state_layer_ids": TAPS, "use_aux_hidden_state": True}
    model: Any = alive(LlamaForCausalLMEagle3(_llama(target, draft_vocab_size=len(ids), eagle_config=eagle)))
    model.embed_tokens.weight.data.copy_(target.embedding.weight)  # type: ignore[arg-type]
    model.d2t.copy_(ids - torch.arange(len(ids)))
    model.t2d.zero_()[ids] = True
    drafter: Any = ours(model, folder, target)
    features, tokens, mine = _inputs(drafter)
    hidden, kept = model.project_hidden_states(features), [[], []]
    seen = prepare_decoder_attention_mask(torch.ones(1, SIZE, dtype=torch.bool), (1, SIZE), hidden, 0)
    worst = 0.0
    for step in range(STEPS):
        ahead = torch.nn.functional.pad(tokens[:, step + 1 :], (0, step + 1))
        hidden = model.backbone(
            input_embeds=model.embed_input_ids(ahead),
            hidden_states=hidden,
            cache_hidden=kept,
            attention_mask=seen,
            position_ids=torch.arange(SIZE)[None],
        )
        rows = _whole(step)
        worst = max(worst, apart(model.compute_logits(hidden)[0, rows], drafter.logits(mine[step, rows])))
    return {
        f"scores of {STEPS} steps": worst,
        "weights of our export": again(model, folder, target, LayoutName.specforge),
    }


def deepspec_eagle3(target: Target, folder: Path) -> dict[str, float]:
    """A chain from the last row of a context, as at decoding."""
    from deepspec.modeling.eagle3.qwen3.modeling import Qwen3Eagle3Model

    config = qwen3(target, 1, target_layer_ids=TAPS, ttt_length=STEPS, step_loss_decay=0.8)
    model: Any = alive(Qwen3Eagle3Model(config))
    model.config._attn_implementation = "sdpa"
    borrow(model, target)
    drafter: Any = ours(model, folder, target)
    features, tokens, mine = _inputs(drafter)
    context, cache, worst = SIZE - STEPS, DynamicCache(), 0.0
    hidden, read = features[:, :context], tokens[:, 1 : context + 1]
    where = torch.arange(context)[None]
    for step in range(STEPS):
        out = model(hidden_states=hidden, input_ids=read, position_ids=where, past_key_values=cache, use_cache=True)
        hidden = out[:, -1:]
        worst = max(worst, apart(model.compute_logits(hidden)[0, 0], drafter.logits(mine[step, context - 1])))
        read, where = tokens[:, context + 1 + step : context + 2 + step], where[:, -1:] + 1
    return {f"scores of {STEPS} steps": worst}


def speculators_eagle3(target: Target, folder: Path) -> dict[str, float]:
    from speculators import SpeculatorModel, SpeculatorModelConfig

    ids = torch.arange(5, 205, 2)
    settings = SpeculatorModelConfig.registry["eagle3"](
        transformer_layer_config=_llama(target).to_diff_dict(),
        draft_vocab_size=len(ids),
        eagle_aux_hidden_state_layer_ids=[k + 1 for k in TAPS],
    )
    settings.transformer_layer_config._attn_implementation = "eager"
    model: Any = alive(SpeculatorModel.registry["eagle3"](settings))
    model.embed_tokens.weight.data.copy_(target.embedding.weight)  # type: ignore[arg-type]
    flags = torch.zeros(target.facts.vocab_size, dtype=torch.bool)
    flags[ids] = True
    model.load_vocab_mappings(flags, ids - torch.arange(len(ids)))
    drafter: Any = ours(model, folder, target)
    features, tokens, mine = _inputs(drafter)
    scores: list[Tensor] = []
    hook = model.lm_head.register_forward_hook(lambda module, given, out: scores.append(out[0]))
    ahead = torch.nn.functional.pad(tokens[:, 1:], (0, 1))  # row i: the feature of i with the token behind it
    model(features, ahead, torch.zeros(1, SIZE, dtype=torch.int64), ttt_steps=STEPS)
    hook.remove()
    worst = max(apart(scores[s][_whole(s)], drafter.logits(mine[s, _whole(s)])) for s in range(STEPS))
    return {
        f"scores of {STEPS} steps": worst,
        "weights of our export": again(model, folder, target, LayoutName.speculators),
    }
