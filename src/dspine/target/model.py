"""The frozen target model: tokens in; final hidden states, tapped features and logits out.

One rule: `forward` is the only way through the model, for prefill, plain decoding and verification alike, so
that all of them compute the same numbers. Conventions: `hidden` is normed (what the head reads), layer id k is
the output of decoder layer k, a slot of the cache is an absolute position.
Source: DSpine (arXiv 2609.36173), target features; layer ids as in published checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dspine.errors import TargetError
from dspine.facts import TargetFacts
from dspine.kernels.alike import ALIKE, attention_alike, products_alike
from dspine.kernels.attention import ALIKE_ENDS, EVEN_ENDS
from dspine.kernels.kv import DeviceSpan, Span
from dspine.kernels.packed import PackedLinear
from dspine.kernels.ragged import Ragged
from dspine.target import attention, selfcheck
from dspine.target.anatomy import CONVOLUTION, FULL, LINEAR, SLIDING, Anatomy, examine
from dspine.target.cache import TargetCache
from dspine.target.decoder import FusedDecoder, fusible
from dspine.target.describe import context_limit_of, digest_rows, end_ids, facts_of, readable_ids
from dspine.target.mixers import wrap
from dspine.target.rollback import Asked, Rollback
from dspine.target.states import Method, StateCache, always
from dspine.target.taps import Taps, check_taps, concatenate


@dataclass(frozen=True)
class TargetOutput:
    """`hidden` (B, T, d), final-normed; `features` (B, T, len(taps)·d) in the order of the taps, or None."""

    hidden: Tensor
    features: Tensor | None

    @classmethod
    def stack(cls, parts: Sequence[TargetOutput], width: int) -> TargetOutput:
        """The outputs of groups of rows as one, `width` tokens a row."""
        features = [part.features for part in parts if part.features is not None]
        hidden = [part.hidden for part in parts]
        return cls(_stacked(hidden, width), _stacked(features, width) if features else None)


# (new tokens (B, T), cache, span, taps): as `Target.forward`.
Forward = Callable[[Tensor, TargetCache, Span, Sequence[int]], TargetOutput]


class Target:
    """Somebody's causal language model, frozen, behind one forward.

    Args:
        packed: whether the linear layers may be rearranged, in place, for the processor's matrix kernels, and the
            decoder run in fused calls, where this model and this machine allow it. Several times as fast on a CPU;
            the model goes on working, but its linear layers hold no readable weights any more.
        rollback: how the states of a hybrid model are brought back to the accepted place, see `target/rollback.py`:
            "snapshot", "replay", or "auto" for what is measured to be quicker here. Other models have no states.

    Attributes:
        name: what it was loaded as.
        model, tokenizer: the transformers objects.
        fused: the decoder in fused calls, or None where transformers' own forward is run.
        vocab_size: rows of the head; `logits` are that wide.
        decodable: ids at or above it have no text (padding rows of the vocabulary) and are never emitted.
        context_limit: positions that the model was made for.
        eos_ids: every id that ends an answer, of generation config, config and tokenizer together.
        embedding, head_weight: shared with the model; (V, d) for the latter.

    Raises:
        TargetError: if the model is of a kind that is not supported.
    """

    def __init__(
        self, model: Any, tokenizer: Any, *, name: str, packed: bool = False, rollback: Asked = "auto"
    ) -> None:
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
        self._mixers = [wrap(module, layer) for layer, module in self._parts.mixers.items()]
        self.rollback = Rollback(self, rollback)
        self._additive_masks = False
        self.fused: FusedDecoder | None = None
        self._settle_attention()
        if packed and fusible(self._parts):
            self._pack()

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
    def wide_head(self) -> Tensor:
        """The head's rows in float32, for whoever needs products of them more exact than the target's own."""
        return self.head_weight.detach().float()

    @cached_property
    def head_digest(self) -> str:
        """sha256 of the head's rows as bfloat16 (hex): the same whichever dtype the model was loaded in."""
        return digest_rows(self.head_weight)

    @cached_property
    def alike(self) -> int | None:
        """Most tokens of a forward up to which each token's result does not depend on the others, bit for bit.

        None where there is no such number. Then a block and its tokens one by one differ in rounding, as everywhere.
        """
        if self.fused is None or self.dtype != torch.bfloat16:
            return None
        packed = (module for module in self.model.modules() if isinstance(module, PackedLinear))
        return ALIKE if products_alike(packed) and attention_alike(*self.fused.heads) else None

    @property
    def ragged(self) -> bool:
        """Whether a forward of rows of different widths costs what its tokens cost; else each costs as the widest."""
        return self.fused is not None

    @property
    def stateful(self) -> bool:
        """Whether layers keep states, so that rows of one prefill must be of one length."""
        return bool(self._parts.mixers)

    @property
    def brought_back(self) -> dict[str, Asked]:
        """How states are brought back, as a fact beside what was measured; empty where there are none."""
        return {"rollback": self.rollback.asked} if self.stateful else {}

    def new_cache(self, rows: int, rollback: Method | None = None) -> TargetCache:
        """An empty cache for `rows` rows.

        Args:
            rollback: how states are brought back, where not as this target was asked to.
        """
        method = self.rollback.method if rollback is None else always(rollback)
        states = StateCache(rows, method) if self.stateful else None
        return TargetCache(self.num_layers, rows, dtype=self.dtype, device=self.device, states=states)

    @torch.no_grad()
    def forward(self, ids: Tensor, cache: TargetCache, span: Span, taps: Sequence[int] = ()) -> TargetOutput:
        """Run new tokens through the model; their keys and values are written where `span` says.

        Committed lengths are not touched: the caller sets `cache.rows.lengths` when it knows what stays.

        Of a ragged span, a row's tokens beyond its own count are filling: nothing depends on them, what is returned for
        them means nothing, and where the target is `ragged` they are not even computed.

        Args:
            ids: (B, T) int64, B = span.rows, T = span.width.
            taps: layer ids whose outputs to return, each in 0..num_layers-2.

        Raises:
            TargetError: for taps that are out of range or repeated; side branches, where layers keep states.
        """
        if ids.shape != (span.rows, span.width):
            raise ValueError(f"ids {tuple(ids.shape)} for a span of {span.rows} rows and {span.width} tokens")
        if span.parents is not None and self.stateful:
            raise TargetError(f"{self.name} keeps recurrent states, which take in one line of tokens, no branches")
        if self.fused is not None:
            exact = self.dtype == torch.bfloat16 and span.width <= ALIKE  # a wider row is a prompt's
            span = replace(span, ends=ALIKE_ENDS if exact else EVEN_ENDS)
        if not self.ragged:
            span = span.even
        if self.alike is None or span.tokens <= self.alike:
            return self._run(ids, span, cache, taps)
        groups = span.groups(self.alike)
        parts = torch.split(ids, [group.rows for group in groups])
        outputs = [self._run(part, group, cache, taps) for part, group in zip(parts, groups, strict=True)]
        return TargetOutput.stack(outputs, span.width)

    @torch.no_grad()
    def forward_at(
        self, ids: Tensor, cache: TargetCache, span: Span | DeviceSpan, taps: Sequence[int] = ()
    ) -> TargetOutput:
        """`forward` through transformers' decoder, (B, T, d) of ids (B, T); the host need not know where they lie."""
        cache.open(span)
        hidden, outputs = self._model_forward(ids, span, cache, taps)
        return TargetOutput(hidden, concatenate(outputs, taps) if taps else None)

    def _run(self, ids: Tensor, span: Span, cache: TargetCache, taps: Sequence[int]) -> TargetOutput:
        """The output (B, T, d) of a span that goes through in one piece, T = span.width."""
        if self.fused is None:
            return self.forward_at(ids, cache, span, taps)
        cache.open(span)
        check_taps(taps, self.num_layers)
        rows = Ragged(span.each, span.width, self.device)
        ids = ids[:, : span.width]
        line = ids if rows.even else rows.line(ids)[None]
        hidden, outputs = self.fused(line, span, cache, self._mask_of, taps)
        features = concatenate(outputs, taps) if taps else None
        if rows.even:
            return TargetOutput(hidden, features)
        return TargetOutput(rows.rows(hidden[0]), None if features is None else rows.rows(features[0]))

    def _model_forward(
        self, ids: Tensor, span: Span | DeviceSpan, cache: TargetCache, taps: Sequence[int]
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Hidden states and outputs of the tapped layers through transformers' decoder and its hooks."""
        masks = {kind: self._mask_of(kind, span) for kind in self._parts.sees}
        arguments = {
            "input_ids": ids,
            "attention_mask": masks if len(masks) > 1 else next(iter(masks.values())),
            # Filling may lie behind the last position, where there is no embedding and other rotary frequencies begin.
            "position_ids": span.positions(self.device).clamp_(max=self.context_limit - 1),
            "use_cache": True,
            self._parts.cache_argument: cache,
        }
        with self._taps.recording(taps) as outputs:
            hidden: Tensor = self._parts.decoder(**arguments)[0]
        return hidden, outputs

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits (..., V) of final-normed hidden states (..., d), as the model itself would give them."""
        if self.alike is not None and hidden.shape[:-1].numel() > self.alike:
            rows = torch.split(hidden.flatten(0, -2), self.alike)
            return torch.cat([self._parts.head(part) for part in rows]).view(*hidden.shape[:-1], -1)
        logits: Tensor = self._parts.head(hidden)
        return logits if self._parts.known else _after_head(logits, self._parts.config)

    def _mask_of(self, kind: str, span: Span | DeviceSpan) -> Tensor | None:
        """What layers of a kind see. Those that keep a state take no mask: their rows hold no padding that stays."""
        if kind in (LINEAR, CONVOLUTION):
            return None
        visible = span.causal_mask(self.device, self._windows[kind])
        if not self._additive_masks:
            return visible
        # The layers' own attention adds its mask to the scores; a boolean one would be added as 0 and 1.
        if visible is None:
            return torch.zeros(1, 1, 1, span.limit, dtype=self.dtype, device=self.device)
        lowest = torch.finfo(self.dtype).min
        return torch.zeros(visible.shape, dtype=self.dtype, device=self.device).masked_fill_(~visible, lowest)

    def _pack(self) -> None:
        head = self._parts.head
        self.fused = FusedDecoder(self._parts)
        if type(head) is nn.Linear:
            packed = PackedLinear(head, keep=True)
            self.model.set_output_embeddings(packed)
            self._parts = replace(self._parts, head=packed)

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
        try:
            self._check_ways()
        except attention.AttentionUnsupported:
            raise
        except TargetError:
            if not self._mixers:
                raise
            for mixer in self._mixers:
                mixer.resumes = False
            self._check_ways()

    def _check_ways(self) -> None:
        ids = selfcheck.probe_ids(self.decodable, self.device)
        # Mixers compute in float32, whatever their model is in.
        dtype = torch.float32 if self.stateful and self.dtype == torch.float64 else self.dtype
        for method in self.rollback.possible if self.stateful else (None,):
            run = partial(self._probe, self.new_cache(2, method))
            with self._narrowed(selfcheck.WINDOW):
                selfcheck.check(self.name, self.model, run, ids, dtype)

    def _probe(self, cache: TargetCache, ids: Tensor, span: Span) -> Tensor:
        return self.logits(self.forward(ids, cache, span).hidden)

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


def _stacked(parts: Sequence[Tensor], width: int) -> Tensor:
    """Rows (B, at most `width`, d) of several groups as one (B, `width`, d), narrower ones filled up."""
    return torch.cat([F.pad(part, (0, 0, 0, width - part.shape[1])) for part in parts])


def _after_head(logits: Tensor, config: Any) -> Tensor:
    """What some model classes do behind the head (Granite, Cohere, Gemma)."""
    if divisor := getattr(config, "logits_scaling", None):
        logits = logits / divisor
    if factor := getattr(config, "logit_scale", None):
        logits = logits * factor
    if cap := getattr(config, "final_logit_softcapping", None):
        logits = torch.tanh(logits / cap) * cap
    return logits
