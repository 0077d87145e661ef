"""The EAGLE-3 drafter: one decoder layer that drafts token by token, fed by its own output.

One rule: row i pairs the feature of position i with the token behind it, at rotary position i, and predicts x_{i+2}; a
draft step is the next row, with the layer's own output (before the norm) in place of the feature that does not exist
yet. Source: EAGLE-3 (arXiv 2503.01840); draft vocabulary and own head as in SpecForge, norms of queries and keys and
the target's head as in DeepSpec's retrain.

    g_i = W_fc F_i;   x = [norm(E(x_{i+1})) ; norm(g_i)];   h = g_i + Attn(x);   out = h + MLP(norm(h))
    scores of x_{i+2} = head(norm(out));   the next step's g = out

Keys and values depend on a row's inputs alone, since there is one layer: observing a feature projects it, and attends
to nothing. The row of the newest feature waits for its token, the next anchor, so each slot's g stays in the cache.
Draft steps write behind it, and the next round's true features are written over them.

Candidates are a chain. The published tree (several candidates a place, verified at once) needs what the caches here
do not have: a slot is an absolute position, so two candidates for one place would be written to one slot; and a query
sees every slot up to its own position, where a node of a tree sees its ancestors alone. It would take a draft and a
target forward with slots apart from positions and a mask of ancestors, a move of the accepted path's slots into
line after the verdict, and a verdict over trees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dspine.drafter.backbone import MLP, Attention, RMSNorm, RotaryEmbedding
from dspine.drafter.config import BackboneConfig, default_taps
from dspine.drafter.markov import ConfidenceHead
from dspine.drafter.proposal import Proposal
from dspine.drafter.serial import serial_walk
from dspine.drafter.tables import TargetTables
from dspine.drafter.unrolled import UnrolledAttention
from dspine.errors import ConfigError
from dspine.facts import TargetFacts
from dspine.kernels.attention import grouped_attention
from dspine.kernels.kv import DeviceSpan, RowCache, Span
from dspine.kernels.law import Law
from dspine.kernels.layer import Attend, Rotary
from dspine.kernels.packed import pack
from dspine.stages import stage

TAPS = 3
CONTEXT, FEATURES = 0, 1  # layers of the cache: keys and values; every slot's g, with values of no width


@dataclass(frozen=True)
class Eagle3Config(BackboneConfig):
    """Sizes of an EAGLE-3 drafter; M = block_size - 1 draft steps. It has no mask token to embed.

    qk_norm: whether queries and keys are normalised (DeepSpec's retrain).
    own_head: whether the head is trained with the drafter, from the target's rows on; else it is the target's.
    confidence: whether a head estimates how likely each candidate is to be accepted.
    """

    num_hidden_layers: int = 1
    target_layer_ids: tuple[int, ...] = (1, 17, 33)
    block_size: int = 8
    qk_norm: bool = False
    own_head: bool = True
    confidence: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_hidden_layers != 1:
            raise ConfigError(
                f"drafter config: num_hidden_layers is {self.num_hidden_layers}",
                "EAGLE-3 has one layer: its keys and values must not depend on what other rows see.",
            )

    @classmethod
    def for_target(cls, facts: TargetFacts, mask_token_id: int, **overrides: Any) -> Self:
        if "target_layer_ids" not in overrides:
            overrides["target_layer_ids"] = default_taps(facts.num_layers, TAPS)
        return super().for_target(facts, mask_token_id, **overrides)


class MidLayer(nn.Module):
    """The decoder layer: attention reads the token's embedding beside the feature, the residual is the feature's."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNorm(width, eps)
        self.hidden_norm = RMSNorm(width, eps)
        self.self_attn = Attention(config, inputs=2 * width, qk_norm=config.qk_norm)
        self.post_attention_layernorm = RMSNorm(width, eps)
        self.mlp = MLP(config)

    def inputs(self, embedded: Tensor, feature: Tensor) -> Tensor:
        """(B, T, d) each → (B, T, 2d), the embedding first."""
        return torch.cat((self.input_layernorm(embedded), self.hidden_norm(feature)), dim=-1)

    def forward(self, embedded: Tensor, feature: Tensor, rotary: Rotary, attend: Attend) -> Tensor:
        """embedded, feature (B, T, d) → (B, T, d), which is the next step's feature."""
        x = self.inputs(embedded, feature)
        keys, values = self.self_attn.keys_values(x, rotary)
        mixed = attend(CONTEXT, self.self_attn.queries(x, rotary), keys, values)
        heard = feature + self.self_attn.output(mixed)
        out: Tensor = heard + self.mlp(self.post_attention_layernorm(heard))
        return out


class Eagle3(nn.Module):
    """A drafter for one target.

    Args:
        config: sizes.
        embedding, head: the target's, see `TargetTables`.
        draft_ids: (V_d) sorted ids that may be proposed; None = the whole vocabulary.
    """

    def __init__(
        self, config: Eagle3Config, embedding: nn.Module, head: Tensor, draft_ids: Tensor | None = None
    ) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(config.feature_size, config.hidden_size, bias=False)
        self.midlayer = MidLayer(config)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary = RotaryEmbedding(config.head_dim, config.rope_theta)
        self.tables = TargetTables(embedding, head, draft_ids)
        self.lm_head: nn.Linear | None = None
        if config.own_head:
            rows = self.tables.head if draft_ids is None else self.tables.head[draft_ids]
            self.lm_head = nn.Linear(config.hidden_size, len(rows), bias=False)
            with torch.no_grad():
                self.lm_head.weight.copy_(rows)
        self.confidence_head = ConfidenceHead(config.hidden_size) if config.confidence else None

    def pack(self) -> None:
        """Arrange the weights for the processor's matrix kernels: for decoding, not for training or saving."""
        self.requires_grad_(False)
        pack(self)
        if self.lm_head is None:
            self.tables.pack(self.dtype)

    @property
    def block_size(self) -> int:
        return self.config.block_size

    @property
    def candidates(self) -> int:
        return self.config.candidates

    @property
    def draft_width(self) -> int:
        return self.block_size

    @property
    def target_layer_ids(self) -> tuple[int, ...]:
        return self.config.target_layer_ids

    @property
    def max_positions(self) -> int:
        return self.config.max_position_embeddings

    @property
    def confident(self) -> bool:
        return self.confidence_head is not None

    @property
    def head(self) -> Tensor:
        """The target's LM head (V, d)."""
        return self.tables.head

    @property
    def draft_ids(self) -> Tensor | None:
        return self.tables.draft_ids

    @property
    def dtype(self) -> torch.dtype:
        return self.norm.weight.dtype

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of the proposable tokens: final-normed (..., d) → (..., V_d)."""
        if self.lm_head is None:
            return self.tables.logits(hidden)
        scores: Tensor = self.lm_head(hidden)
        return scores

    # ---------------------------------------------------------------- training

    def unroll(self, features: Tensor, tokens: Tensor, steps: int | None = None) -> Tensor:
        """Draft from every position of a batch of sequences, with the correct tokens fed back.

        Args:
            features: (N, S, m·d), target features of positions 0..S-1; tokens: (N, S) int64. Both padded on the right.
            steps: draft steps; None = M.

        Returns:
            (steps, N, S, d), final-normed: row i of step σ (from 0) predicts the token at i+2+σ. Rows whose inputs lie
            beyond the sequence mean nothing.
        """
        size = tokens.shape[1]
        where = torch.arange(size, device=tokens.device).expand(len(tokens), -1)
        feature: Tensor = self.fc(features.to(self.dtype))
        attend = UnrolledAttention()
        states = []
        for step in range(self.candidates if steps is None else steps):
            ahead = min(step + 1, size)
            embedded = self._embed(F.pad(tokens[:, ahead:], (0, ahead)))
            feature = self.midlayer(embedded, feature, self.rotary(where + step, self.dtype), attend)
            states.append(self.norm(feature))
        return torch.stack(states)

    # ---------------------------------------------------------------- decoding

    def new_cache(self, rows: int) -> RowCache:
        return RowCache(2, rows, dtype=self.dtype, device=self.norm.weight.device)

    def observe(self, cache: RowCache, span: Span, features: Tensor, counts: Sequence[int], tokens: Tensor) -> None:
        self.take_in(cache, span, features, tokens)
        cache.commit_span(span, counts)

    def take_in(self, cache: RowCache, span: Span | DeviceSpan, features: Tensor, tokens: Tensor) -> None:
        cache.open(span)
        fused = self.fc(features.to(self.dtype)).unsqueeze(1)
        cache.write(FEATURES, fused, fused[..., :0])
        late = (span.positions(tokens.device)[:, :1] == 0).long()
        # The feature before the span's has waited for its first token; the span's last waits for the next. Its row is
        # written only where nothing lies before the span, with a token that means nothing, and again when drafting.
        rows = span.moved(-1, span.width)
        places = late + torch.arange(span.width, device=tokens.device)
        following = F.pad(tokens, (0, 1)).gather(1, places)
        cache.open(rows)
        x = self.midlayer.inputs(self._embed(following), self._features(cache, rows))
        rotary = self.rotary(rows.positions(tokens.device), self.dtype)
        cache.write(CONTEXT, *self.midlayer.self_attn.keys_values(x, rotary))

    def propose(self, cache: RowCache, first: int, anchors: Tensor, law: Law, uniforms: Tensor | None) -> Proposal:
        starts = tuple(cache.lengths[first : first + len(anchors)])
        return self.propose_at(cache, Span(first, starts, self.draft_width), anchors, law, uniforms)

    def propose_at(
        self, cache: RowCache, span: Span | DeviceSpan, anchors: Tensor, law: Law, uniforms: Tensor | None
    ) -> Proposal:
        newest = span.moved(-1, 1)
        cache.open(newest)
        feature = self._features(cache, newest)
        states: list[Tensor] = []  # M of (B, d): what each place's scores are made from

        def step(place: int, previous: Tensor) -> Tensor:
            nonlocal feature
            feature = self.step(cache, newest.moved(place, 1), previous, feature)
            states.append(self.norm(feature[:, 0]))
            with stage("draft/head"):
                return self.logits(states[-1])  # (B, V_d)

        tokens, probs = serial_walk(step, anchors, self.candidates, self.tables, law, uniforms)
        confidence = None
        if self.confidence_head is not None:
            with stage("draft/confidence"):
                confidence = self.confidence_head.chances(self.confidence_head(torch.stack(states, dim=1)))
        return self.tables.proposal(tokens, probs, confidence)

    def step(self, cache: RowCache, span: Span | DeviceSpan, tokens: Tensor, feature: Tensor) -> Tensor:
        """One draft step: tokens (B,) with the features (B, 1, d) of the position before each, at the span's slots.

        Returns:
            the layer's output (B, 1, d), not normed: scores by `logits(norm(·))`, and the next step's feature.
        """
        cache.open(span)
        mask = span.causal_mask(tokens.device)

        def attend(layer: int, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            return grouped_attention(query, *cache.write(layer, keys, values), mask)

        with stage("draft/backbone"):
            rotary = self.rotary(span.positions(tokens.device), self.dtype)
            out: Tensor = self.midlayer(self._embed(tokens[:, None]), feature, rotary, attend)
        return out

    def _embed(self, tokens: Tensor) -> Tensor:
        embedded: Tensor = self.tables.embedding(tokens).to(self.dtype)
        return embedded

    def _features(self, cache: RowCache, span: Span | DeviceSpan) -> Tensor:
        """g of the open span's slots: (B, T, d)."""
        stored, _ = cache.read(FEATURES)
        each = torch.arange(span.rows, device=stored.device)[:, None]
        return stored[each, 0, span.positions(stored.device)]
