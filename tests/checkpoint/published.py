"""Folders in the public layouts, written by hand from their documented schema for the tiny target (F1).

Nothing here comes from our writers: names, shapes, prefixes and fields are those that the authors document.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tests.support.tiny_target import EOS, MASK
from torch import Tensor

from dspine.target.model import Target

D, FFN, HEADS, GROUPS, DIM, V, N = 64, 96, 4, 2, 16, 320, 6
LAYERS, TAPS = 2, [1, 2, 4]
G, E, R, RHO = 24, 12, 8, 10  # GRU, its projection, Markov rank, selector rank
IDS = torch.cat((torch.arange(10, 90), torch.arange(200, 240, 2)))  # a draft vocabulary of 100


@dataclass(frozen=True)
class Folder:
    """What is to be written, and how the network must name it.

    tensors: by the file's names. ours: the file's name → the network's own, where trained.
    sizes: fields of the network's config, as documented for this folder.
    """

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    ours: dict[str, str]
    kind: str
    layout: str
    sizes: dict[str, Any]
    ids: Tensor | None = None
    dtype: torch.dtype = field(default=torch.float32)

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        save_file(self.tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder


def rows(shapes: dict[str, tuple[int, ...]], dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Random tensors; norms and vectors around one."""
    made = torch.Generator().manual_seed(7)
    drawn = {name: torch.randn(shape, generator=made) * 0.1 for name, shape in shapes.items()}
    return {name: (t + 1 if name.endswith("norm.weight") else t).to(dtype) for name, t in drawn.items()}


def layer(prefix: str, inputs: int = D, qk_norm: bool = True) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (D,),
        "post_attention_layernorm.weight": (D,),
        "self_attn.q_proj.weight": (HEADS * DIM, inputs),
        "self_attn.k_proj.weight": (GROUPS * DIM, inputs),
        "self_attn.v_proj.weight": (GROUPS * DIM, inputs),
        "self_attn.o_proj.weight": (D, HEADS * DIM),
        "mlp.gate_proj.weight": (FFN, D),
        "mlp.up_proj.weight": (FFN, D),
        "mlp.down_proj.weight": (D, FFN),
    }
    if qk_norm:
        shapes |= {"self_attn.q_norm.weight": (DIM,), "self_attn.k_norm.weight": (DIM,)}
    return {prefix + name: shape for name, shape in shapes.items()}


def backbone(convolved: bool = False) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (D, len(TAPS) * D), "hidden_norm.weight": (D,)}
    shapes["norm.weight"] = (D,)
    for index in range(LAYERS):
        shapes |= layer(f"layers.{index}.")
        for conv in ("attention_conv", "mlp_conv") if convolved else ():
            shapes[f"layers.{index}.{conv}.base_kernel"] = (2, 2, D)
            shapes[f"layers.{index}.{conv}.kernel_projection.weight"] = (4 * D // 16, D)
    return shapes


def qwen3(**over: Any) -> dict[str, Any]:
    """The Qwen3 part of a config, as SpecForge's example configs spell it."""
    return {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "dtype": "float32",
        "eos_token_id": EOS,
        "head_dim": DIM,
        "hidden_act": "silu",
        "hidden_size": D,
        "initializer_range": 0.02,
        "intermediate_size": FFN,
        "layer_types": ["full_attention"] * LAYERS,
        "max_position_embeddings": 4096,
        "max_window_layers": LAYERS,
        "model_type": "qwen3",
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": GROUPS,
        "num_target_layers": N,
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "rope_theta": 50000,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": V,
        **over,
    }


SIZES: dict[str, Any] = {
    "hidden_size": D,
    "intermediate_size": FFN,
    "num_attention_heads": HEADS,
    "num_key_value_heads": GROUPS,
    "head_dim": DIM,
    "vocab_size": V,
    "rms_norm_eps": 1e-6,
    "rope_theta": 50000.0,
    "num_target_layers": N,
    "target_layer_ids": tuple(TAPS),
}
BLOCK = {**SIZES, "num_hidden_layers": LAYERS, "mask_token_id": MASK, "is_causal": False, "sliding_layers": ()}
DFLASH = {"mask_token_id": MASK, "target_layer_ids": TAPS}


def module_names(names: list[str], *, strip: str = "") -> dict[str, str]:
    """The network's names of a parallel drafter's tensors: heads belong to its selection, all else to its backbone."""
    heads = ("prefix_gru.", "embed_proj.", "markov_head.", "confidence_head.", "candidate_selector.")
    found = {}
    for name in names:
        bare = name.removeprefix(strip)
        found[name] = ("selection." if bare.startswith(heads) else "backbone.") + bare
    return found


# ------------------------------------------------------------------ z-lab and Domino


def zlab_dflash(target: Target) -> Folder:
    config = qwen3(architectures=["DFlashDraftModel"], auto_map={"AutoModel": "dflash.DFlashDraftModel"})
    tensors = rows(backbone(), torch.bfloat16)
    sizes = {**BLOCK, "block_size": 5, "logits_start": 1}
    config |= {"block_size": 5, "dflash_config": {**DFLASH}}
    return Folder(config, tensors, module_names(list(tensors)), "dflash", "z-lab", sizes, dtype=torch.bfloat16)


def zlab_dflash_newer(target: Target) -> Folder:
    """Newer files: block size inside dflash_config, rope_parameters, a `model.` prefix, sliding layers."""
    config = qwen3(
        layer_types=["sliding_attention", "full_attention"], sliding_window=9, use_sliding_window=True, is_causal=False
    )
    del config["rope_theta"]
    config |= {
        "rope_parameters": {"rope_theta": 50000.0, "rope_type": "default"},
        "architectures": ["DFlashDraftModel"],
    }
    config["dflash_config"] = {**DFLASH, "block_size": 5, "mask_token": "<|mask|>"}
    tensors = {f"model.{name}": tensor for name, tensor in rows(backbone()).items()}
    sizes = {**BLOCK, "block_size": 5, "logits_start": 1, "sliding_layers": (0,), "sliding_window": 9}
    return Folder(config, tensors, module_names(list(tensors), strip="model."), "dflash", "z-lab", sizes)


def zlab_dflash2(target: Target) -> Folder:
    config = qwen3(architectures=["DFlash2DraftModel"])
    config["dflash_config"] = {
        **DFLASH,
        "block_size": 4,
        "conv_kernel_size": 2,
        "conv_group_size": 16,
        "selector_rank": RHO,
        "selector_top_k": 6,
    }
    shapes = backbone(convolved=True)
    shapes |= {
        "candidate_selector.predecessor_codebook.weight": (V, RHO),
        "candidate_selector.successor_codebook.weight": (V, RHO),
        "candidate_selector.hidden_projection.weight": (RHO, D),
    }
    tensors = rows(shapes)
    ours = {
        name: ("selection." + name.replace("codebook.weight", "codebook")) if "selector" in name else f"backbone.{name}"
        for name in tensors
    }
    sizes = {**BLOCK, "block_size": 4, "conv_taps": 2, "conv_group_size": 16, "selector_rank": RHO, "top_k": 6}
    return Folder(config, tensors, ours, "dflash2", "z-lab", sizes)


def domino(target: Target, shift: bool = True, prefix: str = "") -> Folder:
    config = qwen3(architectures=["DominoDraftModel"], emb_dim=E, block_size=5)
    config["dflash_config"] = {
        **DFLASH,
        "projector_type": "domino",
        "pure_draft_prefix_len": 1,
        "emb_dim": E,
        "gru_hidden_dim": G,
        "shift_label": shift,
    }
    head: dict[str, tuple[int, ...]] = {
        "prefix_gru.weight_ih_l0": (3 * G, D),
        "prefix_gru.weight_hh_l0": (3 * G, G),
        "embed_proj.0.weight": (E, D + G),
        "embed_proj.2.weight": (V, E),
    }
    tensors = rows(backbone() | {prefix + name: shape for name, shape in head.items()})
    sizes = {**BLOCK, "block_size": 5, "logits_start": 0 if shift else 1, "gru_hidden_size": G, "projection_size": E}
    return Folder(config, tensors, module_names(list(tensors), strip=prefix), "domino", "Domino", sizes)


# ------------------------------------------------------------------ DSpark


def markov(kind: str = "vanilla", drafted: int = V, bias: bool = True) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "markov_head.markov_w1.weight": (V, R),
        "markov_head.markov_w2.weight": (drafted, R),
        "confidence_head.proj.weight": (1, D + R),
    }
    if bias:
        shapes["confidence_head.proj.bias"] = (1,)
    if kind == "gated":
        shapes |= {"markov_head.gate_proj.weight": (R, D + R), "markov_head.gate_proj.bias": (R,)}
    if kind == "rnn":
        shapes |= {"markov_head.joint_proj.weight": (3 * R, 2 * R + D), "markov_head.joint_proj.bias": (3 * R,)}
    return shapes


DSPARK = {**BLOCK, "logits_start": 0, "markov_rank": R, "confidence": True, "confidence_with_markov": True}


def specforge_dspark(target: Target) -> Folder:
    config = qwen3(architectures=["DSparkDraftModel"], block_size=4, is_causal=True)
    config["dflash_config"] = {
        **DFLASH,
        "attention_mode": "gqa",
        "confidence_head_alpha": 1.0,
        "confidence_head_with_markov": True,
        "enable_confidence_head": True,
        "markov_head_type": "gated",
        "markov_rank": R,
        "projector_type": "dspark",
    }
    tensors = rows(backbone() | markov("gated"))
    sizes = {**DSPARK, "block_size": 4, "markov_head": "gated", "is_causal": True}
    return Folder(config, tensors, module_names(list(tensors)), "dspark", "SpecForge", sizes)


def deepspec_dspark(target: Target, kind: str = "rnn", bias: bool = True) -> Folder:
    """A copy of the target's config with fields of its own, and frozen copies of the target's tables."""
    config = qwen3(
        architectures=["Qwen3DSparkModel"],
        block_size=4,
        mask_token_id=MASK,
        target_layer_ids=TAPS,
        num_anchors=512,
        markov_rank=R,
        markov_head_type=kind,
        enable_confidence_head=True,
        confidence_head_with_markov=True,
    )
    tensors = rows(backbone() | markov(kind, bias=bias))
    ours = module_names(list(tensors))
    sizes = {**DSPARK, "block_size": 4, "markov_head": kind}
    return Folder(config, tensors | tables(target), ours, "dspark", "DeepSpec", sizes)


def deepspec_dflash(target: Target) -> Folder:
    """DeepSpec's DFlash is its DSpark class of rank 0: rows that predict the next token."""
    config = qwen3(
        architectures=["Qwen3DSparkModel"],
        block_size=4,
        mask_token_id=MASK,
        target_layer_ids=TAPS,
        num_anchors=512,
        markov_rank=0,
        enable_confidence_head=False,
    )
    tensors = rows(backbone())
    sizes = {**BLOCK, "block_size": 4, "logits_start": 0}
    return Folder(config, tensors | tables(target), module_names(list(tensors)), "dflash", "DeepSpec", sizes)


def tables(target: Target) -> dict[str, Tensor]:
    """Copies of the target's tables, as frozen files hold them."""
    weight = target.embedding.weight
    assert isinstance(weight, Tensor)
    return {
        "embed_tokens.weight": weight.detach().clone().bfloat16(),
        "lm_head.weight": target.head_weight.detach().clone().bfloat16(),
    }


# ------------------------------------------------------------------ EAGLE-3

EAGLE = {**SIZES, "num_hidden_layers": 1, "block_size": 8}


def eagle(name: str, qk_norm: bool = False) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (D, len(TAPS) * D), f"{name}hidden_norm.weight": (D,)}
    return shapes | {"norm.weight": (D,)} | layer(name, inputs=2 * D, qk_norm=qk_norm)


def maps(ids: Tensor = IDS) -> dict[str, Tensor]:
    """d2t as offsets, t2d as flags."""
    flags = torch.zeros(V, dtype=torch.bool)
    flags[ids] = True
    return {"d2t": ids - torch.arange(len(ids)), "t2d": flags}


def specforge_eagle3(target: Target) -> Folder:
    config = qwen3(
        architectures=["LlamaForCausalLMEagle3"], model_type="llama", num_hidden_layers=1, draft_vocab_size=len(IDS)
    )
    for absent in ("layer_types", "num_target_layers", "head_dim"):
        del config[absent]
    config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": TAPS, "use_aux_hidden_state": True}
    tensors = rows(eagle("midlayer.") | {"lm_head.weight": (len(IDS), D)})
    ours = {name: name for name in tensors}
    tensors |= maps() | {"embed_tokens.weight": tables(target)["embed_tokens.weight"]}
    sizes = {**EAGLE, "qk_norm": False, "own_head": True}
    return Folder(config, tensors, ours, "eagle3", "SpecForge", sizes, IDS)


def deepspec_eagle3(target: Target) -> Folder:
    config = qwen3(
        architectures=["Qwen3Eagle3Model"],
        num_hidden_layers=1,
        layer_types=["full_attention"],
        target_layer_ids=TAPS,
        ttt_length=3,
        step_loss_decay=0.8,
        draft_num_hidden_layers=1,
        target_model_name_or_path="tiny",
    )
    tensors = rows(eagle("layers.0.", qk_norm=True))
    ours = {name: name.replace("layers.0.", "midlayer.") for name in tensors}
    sizes = {**EAGLE, "qk_norm": True, "own_head": False, "block_size": 4}
    return Folder(config, tensors | tables(target), ours, "eagle3", "DeepSpec", sizes)


# ------------------------------------------------------------------ speculators


def nested(method: str, drafted: int, **over: Any) -> dict[str, Any]:
    """speculators' config: the decoder's in a section of its own, no word of the target's depth."""
    decoder = qwen3(rope_parameters={"rope_theta": 50000.0, "rope_type": "default"})
    for absent in ("rope_theta", "rope_scaling", "num_target_layers"):
        del decoder[absent]
    return {
        "architectures": ["DFlashSpeculator"],
        "speculators_model_type": method,
        "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": method,
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": drafted,
                    "accept_tolerance": 0.0,
                    "verifier_accept_k": 1,
                }
            ],
            "verifier": {"name_or_path": "tiny-qwen3", "architectures": ["Qwen3ForCausalLM"]},
        },
        "transformer_layer_config": decoder,
        "draft_vocab_size": V,
        "dtype": "float32",
        **over,
    }


BLOCKS = {
    "block_size": 4,
    "mask_token_id": MASK,
    "aux_hidden_state_layer_ids": [2, 3, 5],
    "sliding_window_non_causal": False,
    "target_hidden_size": D,
}


def speculators_dflash(target: Target) -> Folder:
    """An older file of a restricted vocabulary, without `sample_from_anchor`."""
    config = nested("dflash", 3, **BLOCKS) | {"draft_vocab_size": len(IDS)}
    tensors = rows(backbone())
    ours = module_names(list(tensors))
    tensors |= maps() | {"lm_head.weight": target.head_weight.detach()[IDS].clone()}
    sizes = {**BLOCK, "block_size": 4, "logits_start": 1}
    return Folder(config, tensors, ours, "dflash", "speculators", sizes, IDS)


def speculators_dflash2(target: Target) -> Folder:
    own = {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": RHO, "selector_top_k": 6}
    config = nested("dflash2", 3, **BLOCKS, **own) | {"sample_from_anchor": False, "sliding_window_non_causal": True}
    shapes = backbone(convolved=True)
    shapes |= {
        "candidate_selector.predecessor_codebook": (V, RHO),
        "candidate_selector.successor_codebook": (V, RHO),
        "candidate_selector.hidden_projection.weight": (RHO, D),
    }
    tensors = rows(shapes)
    sizes = {**BLOCK, "block_size": 4, "conv_taps": 2, "conv_group_size": 16, "selector_rank": RHO, "top_k": 6}
    return Folder(config, tensors, module_names(list(tensors)), "dflash2", "speculators", sizes)


def speculators_dspark(target: Target) -> Folder:
    own = {"markov_rank": R, "markov_head_type": "vanilla", "enable_confidence_head": True}
    config = nested("dspark", 4, **BLOCKS, **own) | {"draft_vocab_size": len(IDS), "sample_from_anchor": True}
    config["confidence_head_with_markov"] = True
    tensors = rows(backbone() | markov(drafted=len(IDS)))
    ours = module_names(list(tensors))
    tensors |= maps() | {"lm_head.weight": target.head_weight.detach()[IDS].clone()}
    sizes = {**DSPARK, "block_size": 4, "markov_head": "vanilla"}
    return Folder(config, tensors, ours, "dspark", "speculators", sizes, IDS)


def speculators_eagle3(target: Target) -> Folder:
    config = nested("eagle3", 5) | {"draft_vocab_size": len(IDS), "architectures": ["Eagle3Speculator"]}
    config |= {"norm_before_residual": False, "norm_before_fc": False, "fc_norm": False, "norm_output": False}
    config |= {"eagle_aux_hidden_state_layer_ids": [2, 3, 5], "embed_requires_grad": False, "target_hidden_size": None}
    config["transformer_layer_config"] |= {"num_hidden_layers": 1, "layer_types": ["full_attention"]}
    tensors = rows(eagle("layers.0.") | {"lm_head.weight": (len(IDS), D)})
    ours = {name: name.replace("layers.0.", "midlayer.") for name in tensors}
    tensors |= maps() | {"embed_tokens.weight": tables(target)["embed_tokens.weight"]}
    sizes = {**EAGLE, "qk_norm": False, "own_head": True, "block_size": 6}
    return Folder(config, tensors, ours, "eagle3", "speculators", sizes, IDS)


FOLDERS: dict[str, Callable[[Target], Folder]] = {
    "z-lab DFlash": zlab_dflash,
    "z-lab DFlash, newer": zlab_dflash_newer,
    "z-lab DFlash2": zlab_dflash2,
    "Domino, shifted": domino,
    "Domino, not shifted, older names": lambda target: domino(target, shift=False, prefix="logit_head."),
    "SpecForge DSpark": specforge_dspark,
    "SpecForge EAGLE-3": specforge_eagle3,
    "DeepSpec DSpark": deepspec_dspark,
    "DeepSpec DSpark without bias": lambda target: deepspec_dspark(target, "vanilla", bias=False),
    "DeepSpec DFlash": deepspec_dflash,
    "DeepSpec EAGLE-3": deepspec_eagle3,
    "speculators DFlash": speculators_dflash,
    "speculators DFlash2": speculators_dflash2,
    "speculators DSpark": speculators_dspark,
    "speculators EAGLE-3": speculators_eagle3,
}
