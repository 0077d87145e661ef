"""DFlash, DFlash2, Domino and DSpark beside their authors' modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dspine.checkpoint import LayoutName
from dspine.drafter.parallel import ParallelDrafter
from dspine.kernels.kv import Span
from dspine.kernels.law import Law
from dspine.target.model import Target
from peers_common import CONTEXT, LAYERS, ROWS, TAPS, again, alive, apart, borrow, mask_of, ours, qwen3

SELECTOR = {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 12, "selector_top_k": 6}


class Block:
    """One block behind a context, run by both sides."""

    def __init__(self, drafter: Any, target: Target) -> None:
        assert isinstance(drafter, ParallelDrafter)
        self.drafter, config = drafter, drafter.config
        self.features = torch.randn(1, CONTEXT, config.feature_size)
        self.tokens = torch.randint(0, 200, (1, config.block_size))  # the anchor, and what is taught behind it
        rows = torch.full_like(self.tokens, config.mask_token_id)
        rows[:, 0] = self.tokens[:, 0]
        self.embedded = target.embedding(rows)
        self.first = config.logits_start
        cache = drafter.new_cache(1)
        drafter.observe(
            cache, Span(0, (0,), CONTEXT), self.features, (CONTEXT,), torch.zeros(1, CONTEXT, dtype=torch.int64)
        )
        self.hidden = drafter.draft_block(cache, 0, self.tokens[:, 0])  # (1, M, d)
        self.before = self.tokens[:, : drafter.candidates]  # the token before each place
        self.positions = torch.arange(CONTEXT + config.block_size)[None]

    def corrected(self) -> Tensor:
        """Our scores (1, M, V), with the correct tokens before each place."""
        selection = self.drafter.selection
        correction = selection.correction(self.hidden, self.before) @ selection.correction_head.T
        return self.drafter.tables.logits(self.hidden) + correction


def fields(target: Target, **own: Any) -> dict[str, Any]:
    return {"mask_token_id": mask_of(target), "target_layer_ids": TAPS, **own}


# ------------------------------------------------------------------ z-lab


def dflash(target: Target, folder: Path, sliding: bool = False) -> dict[str, float]:
    from dflash.model import DFlashDraftModel

    over: dict[str, Any] = {"block_size": ROWS, "dflash_config": fields(target)}
    if sliding:
        kinds = ["sliding_attention", "full_attention", "sliding_attention"]
        over |= {"layer_types": kinds, "sliding_window": 4, "use_sliding_window": True}
    model = alive(DFlashDraftModel(qwen3(target, **over)))
    block = Block(ours(model, folder, target), target)
    theirs = model(position_ids=block.positions, noise_embedding=block.embedded, target_hidden=block.features)
    return {"H": apart(theirs[:, block.first :], block.hidden)}


def dflash2(target: Target, folder: Path) -> dict[str, float]:
    from dflash.model import DFlash2DraftModel

    model = alive(DFlash2DraftModel(qwen3(target, dflash_config=fields(target, block_size=ROWS, **SELECTOR))))
    block = Block(ours(model, folder, target), target)
    theirs = model(position_ids=block.positions, noise_embedding=block.embedded, target_hidden=block.features)
    hidden = theirs[:, block.first :]
    logits = torch.nn.functional.linear(hidden, target.head_weight)
    path, _, q = model.candidate_selector.select(hidden, logits, block.tokens[:, 0], 1.0)
    drafter, uniforms = block.drafter, torch.rand(1, block.drafter.candidates)
    greedy = drafter.selection.select(block.hidden, block.tokens[:, 0], Law.of([0.0], [0], [1.0], [0.0]), uniforms)
    path = model.candidate_selector.select(hidden, logits, block.tokens[:, 0], 0.0)[0]
    drawn = drafter.selection.select(block.hidden, block.tokens[:, 0], Law.of([1.0], [0], [1.0], [0.0]), uniforms)
    assert drawn.probs is not None
    first = (drawn.probs[:, 0].sort().values, q[:, 0].sort().values)  # place 1: later ones depend on what was drawn
    return {
        "H": apart(hidden, block.hidden),
        "greedy walk": float((path != greedy.tokens).any()),
        "law of place 1": apart(*first),
    }


# ------------------------------------------------------------------ SpecForge


def _specforge(model: Any, target: Target, folder: Path) -> tuple[Block, Tensor, dict[str, float]]:
    block = Block(ours(alive(model), folder, target), target)
    hidden = model(
        position_ids=block.positions, noise_embedding=block.embedded, target_hidden=block.features, is_causal=False
    )
    found = {
        "H": apart(hidden[:, block.first :], block.hidden),
        "weights of our export": again(model, folder, target, LayoutName.specforge),
    }
    return block, hidden, found


def specforge_dflash(target: Target, folder: Path) -> dict[str, float]:
    from specforge.modeling.draft.dflash import DFlashDraftModel

    model = DFlashDraftModel(qwen3(target, block_size=ROWS, dflash_config=fields(target)))
    return _specforge(model, target, folder)[2]


def specforge_domino(target: Target, folder: Path, shift: bool) -> dict[str, float]:
    from specforge.modeling.draft.domino import DominoDraftModel

    own = {"emb_dim": 12, "gru_hidden_dim": 20, "pure_draft_prefix_len": 1, "shift_label": shift}
    config = qwen3(target, block_size=ROWS, dflash_config=fields(target, projector_type="domino", **own))
    model = DominoDraftModel(config)
    block, hidden, found = _specforge(model, target, folder)
    base = torch.nn.functional.linear(hidden, target.head_weight)[None]
    read = target.embedding(block.tokens)[None]
    scores = model.apply_logits_head(base, prev_token_embeddings=read, hidden_states=hidden[None])[0]
    return found | {"scores": apart(scores[:, block.first :], block.corrected())}


def specforge_dspark(target: Target, folder: Path, head: str) -> dict[str, float]:
    from specforge.modeling.draft.dspark import DSparkDraftModel

    own = {"markov_rank": 8, "markov_head_type": head, "enable_confidence_head": True}
    own |= {"confidence_head_with_markov": True, "projector_type": "dspark"}
    model = DSparkDraftModel(qwen3(target, block_size=ROWS, dflash_config=fields(target, **own)))
    block, hidden, found = _specforge(model, target, folder)
    base = torch.nn.functional.linear(hidden, target.head_weight)
    scores = model.apply_logits_head(base, prev_token_ids=block.tokens, hidden_states=hidden)
    confidence = model.predict_confidence(hidden, prev_token_ids=block.tokens)
    return found | {
        "scores": apart(scores, block.corrected()),
        "confidence": apart(confidence, block.drafter.selection.confidence_logits(block.hidden, block.before)),
    }


# ------------------------------------------------------------------ DeepSpec


def deepspec_dspark(target: Target, folder: Path, head: str) -> dict[str, float]:
    from deepspec.modeling.dspark.qwen3.modeling import Qwen3DSparkModel

    own = {"markov_rank": 8, "markov_head_type": head, "enable_confidence_head": True, "num_anchors": 4}
    config = qwen3(target, block_size=ROWS, confidence_head_with_markov=True, **fields(target), **own)
    model: Any = alive(Qwen3DSparkModel(config))
    borrow(model, target)
    block = Block(ours(model, folder, target), target)
    hidden = model._forward_backbone(
        position_ids=block.positions, noise_embedding=block.embedded, target_hidden_states=block.features
    )
    base = model.compute_logits(hidden)
    scores = model.markov_head.apply_block_logits(base, token_ids=block.tokens, hidden_states=hidden)
    confidence = model.predict_confidence_step(hidden, block.tokens)
    return {
        "H": apart(hidden, block.hidden),
        "scores": apart(scores, block.corrected()),
        "confidence": apart(confidence, block.drafter.selection.confidence_logits(block.hidden, block.before)),
    }


# ------------------------------------------------------------------ speculators


def _speculators(
    kind: str, target: Target, folder: Path, ids: Tensor | None, **own: Any
) -> tuple[Any, ParallelDrafter[Any], Tensor, Tensor, dict[str, float]]:
    """Packed blocks of one sequence, as in training: both sides, with the anchors that theirs drew."""
    from speculators import SpeculatorModel, SpeculatorModelConfig

    decoder = qwen3(target).to_diff_dict() | {"num_hidden_layers": LAYERS}
    settings = SpeculatorModelConfig.registry[kind](
        transformer_layer_config=decoder,
        draft_vocab_size=target.facts.vocab_size if ids is None else len(ids),
        block_size=ROWS,
        aux_hidden_state_layer_ids=[k + 1 for k in TAPS],
        mask_token_id=mask_of(target),
        **own,
    )
    settings.transformer_layer_config._attn_implementation = "eager"
    model: Any = alive(SpeculatorModel.registry[kind](settings))
    borrow(model, target, ids)
    if ids is not None:
        flags = torch.zeros(target.facts.vocab_size, dtype=torch.bool)
        flags[ids] = True
        model.load_vocab_mappings(flags, ids - torch.arange(len(ids)))
    drafter: Any = ours(model, folder, target)
    size, anchors_wanted = 40, 3
    features = torch.randn(1, size, drafter.config.feature_size)
    tokens = torch.randint(0, 200, (1, size))
    hidden, logits, _, _, index = model._backbone_forward(
        features,
        tokens,
        torch.ones(1, size),
        torch.zeros(1, size, target.facts.hidden_size),
        torch.zeros(1, size, dtype=torch.int64),
        max_anchors=anchors_wanted,
    )
    anchors = index.view(anchors_wanted, ROWS)[:, 0][None]
    taught = tokens[0, anchors[..., None] + torch.arange(drafter.candidates + 1)]  # (1, A, M+1)
    mine = drafter.blocks(features, torch.tensor([size]), anchors, taught)
    rows = slice(drafter.config.logits_start, None)
    hidden = hidden.view(1, anchors_wanted, ROWS, -1)[:, :, rows]
    logits = logits.view(1, anchors_wanted, ROWS, -1)[:, :, rows]
    found = {
        "H": apart(hidden, mine),
        "U": apart(logits, drafter.tables.logits(mine)),
        "weights of our export": again(model, folder, target, LayoutName.speculators),
    }
    return model, drafter, mine, taught, found


def speculators_dflash(target: Target, folder: Path) -> dict[str, float]:
    return _speculators("dflash", target, folder, torch.arange(5, 205, 2))[-1]


def speculators_dflash2(target: Target, folder: Path) -> dict[str, float]:
    model, drafter, mine, taught, found = _speculators("dflash2", target, folder, None, **SELECTOR)
    hidden, before = mine[0], taught[0, :, :-1]
    base, candidates = drafter.tables.top(hidden, SELECTOR["selector_top_k"])
    logits = drafter.tables.logits(hidden)
    theirs = model.candidate_selector.score_candidates(logits, hidden, before, candidates)
    scores = base + drafter.selection.candidate_selector(hidden, before[..., None], candidates)[..., 0, :]
    return found | {"scores": apart(theirs, scores)}


def speculators_dspark(target: Target, folder: Path, head: str) -> dict[str, float]:
    ids = torch.arange(5, 205, 2)
    own = {"markov_rank": 8, "markov_head_type": head}
    model, drafter, mine, taught, found = _speculators("dspark", target, folder, ids, **own)
    hidden, before = mine[0], taught[0, :, :-1]
    bias = model.markov_head.block_bias(prev_token_ids=before, hidden_states=hidden)
    selection = drafter.selection
    correction = selection.correction(hidden, before) @ selection.correction_head.T
    read = torch.cat((hidden, model.markov_head.prev_embeddings(before)), dim=-1)
    return found | {
        "bias": apart(bias, correction),
        "confidence": apart(model.confidence_head(read), selection.confidence_logits(hidden, before)),
    }
