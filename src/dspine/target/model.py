"""The frozen target model: tokens in; final hidden states, tapped features and logits out.

One rule: `forward` is the only way through the model, for prefill, plain decoding and verification alike, so
that all of them compute the same numbers. Conventions: `hidden` is normed (what the head reads), layer id k is
the output of decoder layer k, a slot of the cache is an absolute position.
Source: DSpine (arXiv 2609.36173), target features; layer ids as in published checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from dspine.errors import TargetError
from dspine.facts import TargetFacts
from dspine.kernels.kv import Span
from dspine.target import attention, selfcheck
from dspine.target.anatomy import FULL, SLIDING, Anatomy, examine
from dspine.target.cache import TargetCache
from dspine.target.describe import context_limit_of, digest_rows, end_ids, facts_of, readable_ids
from dspine.target.taps import Taps, concatenate


@dataclass(frozen=True)
class TargetOutput:
    """`hidden` (B, T, d), final-normed; `features` (B, T, len(taps)·d) in the order of the taps, or None."""

    hidden: Tensor
    features: Tensor | None


class Target:
    """Somebody's causal language model, frozen, behind one forward.

    Attributes:
        name: what it was loaded as.
        model, tokenizer: the transformers objects.
        vocab_size: rows of the head; `logits` are that wide.
        decodable: ids at or above it have no text (padding rows of the vocabulary) and are never emitted.
        context_limit: positions that the model was made for.
        eos_ids: every id that ends an answer, of generation config, config and tokenizer together.
        embedding, head_weight: shared with the model; (V, d) for the latter.

    Raises:
        TargetError: if the model is of a kind that is not supported.
    """

    def __init__(self, model: Any, tokenizer: Any, *, name: str) -> None:
        attention.register()
        self.name = name
        self.model = model.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        self._parts: Anatomy = examine(model)
        self._taps = Taps(self._parts.layers)
        config = self._parts.config
        self.embedding: nn.Module = self._parts.embedding
        self.device: torch.device = self._parts.embedding_rows.device
        self.dtype: torch.dtype = self._parts.embedding_rows.dtype
        self.hidden_size = int(config.hidden_size)
        self.num_layers = len(self._parts.layers)
        self.vocab_size = self._parts.head_rows
        self.decodable = min(readable_ids(tokenizer), self.vocab_size, len(self._parts.embedding_rows))
        self.context_limit = context_limit_of(config)
        self.eos_ids = end_ids(model, tokenizer)
        self._windows: dict[str, int | None] = {FULL: None, SLIDING: self._parts.window}
        self._additive_masks = False
        self._settle_attention()

    @property
    def facts(self) -> TargetFacts:
        """Sizes that a drafter for this target is built from."""
        return facts_of(self._parts.config, self.vocab_size)

    @property
    def head_weight(self) -> Tensor:
        """The head's rows (V, d), the model's own storage.

        Raises:
            TargetError: if the head is quantised to integers; plain decoding still works then.
        """
        weight = getattr(self._parts.head, "weight", None)
        if not isinstance(weight, Tensor) or not weight.is_floating_point() or weight.ndim != 2:
            found = weight.dtype if isinstance(weight, Tensor) else "no weight"
            raise TargetError(
                f"the head of {self.name} is a {type(self._parts.head).__name__} with {found}: a drafter needs "
                "its rows as floating-point numbers",
                "Load the target with an unquantised lm_head.",
            )
        return weight

    @cached_property
    def head_digest(self) -> str:
        """sha256 of the head's rows as bfloat16 (hex): the same whichever dtype the model was loaded in."""
        return digest_rows(self.head_weight)

    def new_cache(self, rows: int) -> TargetCache:
        """An empty cache for `rows` rows."""
        return TargetCache(self.num_layers, rows, dtype=self.dtype, device=self.device)

    @torch.no_grad()
    def forward(self, ids: Tensor, cache: TargetCache, span: Span, taps: Sequence[int] = ()) -> TargetOutput:
        """Run new tokens through the model; their keys and values are written where `span` says.

        Committed lengths are not touched: the caller sets `cache.rows.lengths` when it knows what stays.

        Args:
            ids: (B, T) int64, B = span.rows, T = span.width.
            taps: layer ids whose outputs to return, each in 0..num_layers-2.

        Raises:
            TargetError: for taps that are out of range or repeated.
        """
        if ids.shape != (span.rows, span.width):
            raise ValueError(f"ids {tuple(ids.shape)} for a span of {span.rows} rows and {span.width} tokens")
        cache.open(span)
        arguments = {
            "input_ids": ids,
            "attention_mask": self._masks(span),
            "position_ids": span.positions(self.device),
            "use_cache": True,
            self._parts.cache_argument: cache,
        }
        with self._taps.recording(taps) as outputs:
            hidden: Tensor = self._parts.decoder(**arguments)[0]
        return TargetOutput(hidden, concatenate(outputs, taps) if taps else None)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits (..., V) of final-normed hidden states (..., d), as the model itself would give them."""
        logits: Tensor = self._parts.head(hidden)
        return logits if self._parts.known else _after_head(logits, self._parts.config)

    def _masks(self, span: Span) -> Tensor | dict[str, Tensor | None] | None:
        kinds = set(self._parts.kinds)
        if len(kinds) == 1:
            return self._mask(span, self._windows[kinds.pop()])
        return {kind: self._mask(span, window) for kind, window in self._windows.items()}

    def _mask(self, span: Span, window: int | None) -> Tensor | None:
        visible = span.causal_mask(self.device, window)
        if not self._additive_masks:
            return visible
        # The layers' own attention adds its mask to the scores; a boolean one would be added as 0 and 1.
        if visible is None:
            return torch.zeros(1, 1, 1, span.limit, dtype=self.dtype, device=self.device)
        lowest = torch.finfo(self.dtype).min
        return torch.zeros(visible.shape, dtype=self.dtype, device=self.device).masked_fill_(~visible, lowest)

    def _settle_attention(self) -> None:
        """Take the grouped kernel if the model can use it, else the attention that its layers bring along."""
        settable: bool = type(self.model)._can_set_attn_implementation()
        self._additive_masks = not settable
        if settable:
            self.model.set_attn_implementation(attention.NAME)
        if self._parts.known:
            return
        try:
            self._check()
        except attention.AttentionUnsupported:
            self.model.set_attn_implementation("eager")
            self._additive_masks = True
            self._check()

    def _check(self) -> None:
        cache = self.new_cache(2)
        ids = selfcheck.probe_ids(self.decodable, self.device)
        with self._narrowed(selfcheck.WINDOW):
            selfcheck.check(
                self.name,
                self.model,
                lambda new, span: self.logits(self.forward(new, cache, span).hidden),
                ids,
                self.dtype,
            )

    @contextmanager
    def _narrowed(self, window: int) -> Iterator[None]:
        """Sliding layers see only `window` slots meanwhile, in our masks and in those that the model builds."""
        if self._parts.window is None:
            yield
            return
        config, own = self._parts.config, self._parts.window
        config.sliding_window = self._windows[SLIDING] = window
        try:
            yield
        finally:
            config.sliding_window = self._windows[SLIDING] = own


def _after_head(logits: Tensor, config: Any) -> Tensor:
    """What some model classes do behind the head (Granite, Cohere, Gemma)."""
    if divisor := getattr(config, "logits_scaling", None):
        logits = logits / divisor
    if factor := getattr(config, "logit_scale", None):
        logits = logits * factor
    if cap := getattr(config, "final_logit_softcapping", None):
        logits = torch.tanh(logits / cap) * cap
    return logits
