"""The decoder of Llama-like targets with few, fused calls: what a round on a CPU spends its time in.

One rule: the same function as transformers' own forward, whose modules and weights it borrows; only sums are taken
in another order. A layer of transformers makes about fifty small calls, which cost as much as its matrix products
when one row or a block of eight goes through; `PackedLayer` makes about twenty. Kinds: Llama, Mistral, Qwen2 (bias),
Qwen3 (norms of queries and keys).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from dspine.kernels.attention import fold_mask, grouped_attention
from dspine.kernels.kv import Span
from dspine.kernels.layer import Norm, PackedLayer, layer_packable, signed
from dspine.kernels.packed import packable
from dspine.kernels.ragged import Ragged
from dspine.target.anatomy import Anatomy
from dspine.target.cache import TargetCache

Masks = Callable[[str, Span], Tensor | None]

FILLED = 32  # tokens; ragged rows of up to so many are attended together, filled up: a call costs more than filling


def fusible(parts: Anatomy) -> bool:
    """Whether a `FusedDecoder` can stand for this model's decoder here."""
    config = parts.config
    return (
        parts.known
        and packable(parts.embedding_rows)
        and getattr(config, "hidden_act", None) in ("silu", "swish")
        and all(layer_packable(layer) for layer in parts.layers)
    )


@dataclass(frozen=True)
class Run:
    """Neighbouring rows of a span, which attention takes together.

    rows: of the open span. tokens: where theirs lie, all tokens of the span end to end.
    layout: their tokens as rows, and back.
    limit: slots that they read.
    masks: by kind of layer, additive, for query heads folded into the query; None: everything is seen.
    """

    rows: slice
    tokens: slice
    layout: Ragged
    limit: int
    masks: Mapping[str, Tensor | None]

    def attend(self, line: Tensor, keys: Tensor, values: Tensor, kind: str, scale: float) -> Tensor:
        """What these rows hear: queries (N, H, D) of all tokens, keys and values (B, G, S, D) → (own, H, D)."""
        query = self.layout.rows(line[self.tokens]).transpose(1, 2)  # (rows, H, T, D)
        slots = (self.rows, slice(None), slice(self.limit))
        heard = grouped_attention(query, keys[slots], values[slots], self.masks[kind], scale)
        return self.layout.line(heard.transpose(1, 2))


class FusedDecoder:
    """All layers of a target whose parts are `fusible`. Its linear layers are packed in place.

    Args:
        parts: of the model; transformers' own forward keeps working, with the packed layers.

    Attributes:
        heads: query heads, key/value heads, and numbers of a head.
    """

    def __init__(self, parts: Anatomy) -> None:
        decoder: Any = parts.decoder
        attentions: list[Any] = [layer.self_attn for layer in parts.layers]
        self._embedding = parts.embedding
        self._rotary = decoder.rotary_emb
        self._kinds = parts.kinds
        self._scales = [float(attention.scaling) for attention in attentions]
        self._layers = [
            PackedLayer(layer, _norm_of, int(attention.head_dim))
            for layer, attention in zip(parts.layers, attentions, strict=True)
        ]
        self._norm = _norm_of(decoder.norm)
        config = parts.config
        self.heads = (config.num_attention_heads, config.num_key_value_heads, self._layers[0].head_dim)
        self._share = config.num_attention_heads // config.num_key_value_heads

    def __call__(
        self, ids: Tensor, span: Span, cache: TargetCache, masks: Masks, taps: Sequence[int]
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Run new tokens through the layers.

        Args:
            ids: (B, T), or (1, N) of a ragged span.
            cache: opened for `span`.
            masks: what a kind of layer sees of a span, bool (B or 1, 1, T, limit), True = visible; None: all.
            taps: layer ids.

        Returns:
            final-normed hidden states (B, T, d), and the outputs (B, T, d) of the tapped layers; (1, N, d) of a ragged
            span.
        """
        x = self._embedding(ids)
        rotary = signed(*cast(tuple[Tensor, Tensor], self._rotary(x, span.positions(x.device))))
        runs = self._runs(span, masks, x)

        def attend(layer: int, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            kind, scale = self._kinds[layer], self._scales[layer]
            seen = cache.rows.write(layer, keys, values)
            if span.counts is None:
                return grouped_attention(query, *seen, runs[0].masks[kind], scale)
            line = query[0].transpose(0, 1)  # (N, H, D)
            heard = torch.cat([run.attend(line, *seen, kind, scale) for run in runs])
            return heard.transpose(0, 1)[None]

        rows, outputs = len(x), {}
        times = self._layers[0].copies(ids.numel())
        x = x.repeat(times, 1, 1) if times > 1 else x
        for index, layer in enumerate(self._layers):
            x = layer(index, x, rotary, attend, copies=times)
            if index in taps:
                outputs[index] = x[:rows]
        return self._norm(x[:rows]), outputs

    def _runs(self, span: Span, masks: Masks, like: Tensor) -> list[Run]:
        """The runs of a span, with masks that were folded and made additive once for all layers."""
        found, at = [], 0
        for part in [span] if span.width <= FILLED else span.runs():
            seen = {kind: masks(kind, part) for kind in dict.fromkeys(self._kinds)}
            folded = {k: None if m is None else _additive(fold_mask(m, self._share), like) for k, m in seen.items()}
            first = part.first - span.first
            rows, tokens = slice(first, first + part.rows), slice(at, at + part.tokens)
            found.append(Run(rows, tokens, Ragged(part.each, part.width, like.device), part.limit, folded))
            at = tokens.stop
        return found


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    """0 where the mask (B or 1, 1, T, S) is True, -inf elsewhere, in the type of `like`."""
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill_(~mask, -torch.inf)


def _norm_of(module: Any) -> Norm:
    """A norm of transformers', whose scale multiplies in the model's type."""
    return Norm(module.weight.detach(), float(module.variance_epsilon))
