"""A model of mlx-lm behind one forward: tokens in, logits and tapped features out.

One rule: logits are the model's own, whatever it does behind its head; taps look on and change nothing. Layer id k is
the output of decoder layer k, from 0. Source: DSpine (arXiv 2609.36173), target features.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from functools import cached_property
from typing import Any

import mlx.core as mx
import torch
from mlx_lm.models.cache import RotatingKVCache, make_prompt_cache
from mlx_lm.utils import quantize_model
from torch import Tensor

from dspine.errors import TargetError
from dspine.serve.mlx.arrays import to_torch, torch_dtype
from dspine.serve.mlx.rows import rows_of
from dspine.target.describe import context_limit_of, digest_rows, end_ids, readable_ids
from dspine.target.taps import check_taps

_ROWS_AT_ONCE = 8192
BITS = (4, 8)


class MlxTarget:
    """Somebody's language model, frozen.

    Args:
        model: mlx-lm's.
        tokenizer: transformers'.
        described: has the `config` and the `generation_config` that transformers reads from the model's folder.
        name: what it was loaded as.

    Attributes:
        vocab_size: rows of the head. decodable: ids at or above it have no text and are never emitted.
        context_limit: positions that the model was made for; the sliding window, where mlx-lm leaves that out.
        eos_ids: every id that ends an answer.
        embedding, head: modules of the model; the same one where they are tied.

    Raises:
        TargetError: a model whose parts are not where mlx-lm's text models have them.
    """

    def __init__(self, model: Any, tokenizer: Any, described: Any, *, name: str) -> None:
        owner = _owner(model, name)
        inner = owner.model
        config = described.config.get_text_config(decoder=True)
        self.name = name
        self.model = model
        self.tokenizer = tokenizer
        self.embedding = inner.embed_tokens
        self._tied = not hasattr(owner, "lm_head")
        self.head = self.embedding if self._tied else owner.lm_head
        self.hidden_size = int(config.hidden_size)
        self.num_layers = len(inner.layers)
        self.vocab_size = int(self.head.weight.shape[0])
        self.decodable = min(readable_ids(tokenizer), self.vocab_size, int(self.embedding.weight.shape[0]))
        self.context_limit = min(context_limit_of(config), _window_left_out(config, make_prompt_cache(model)))
        self.eos_ids = end_ids(described, tokenizer)
        self.bits: int | None = None
        self._owner = owner
        self._recorded: dict[int, mx.array] = {}
        self._tapped: set[int] = set()

    @property
    def dtype(self) -> torch.dtype:
        """Number format of what the layers hand on."""
        return torch_dtype(rows_of(self.embedding, mx.array([0])).dtype)

    @property
    def device(self) -> str:
        """Where it runs: cpu or gpu."""
        return "gpu" if mx.default_device() == mx.Device(mx.gpu) else "cpu"

    @property
    def head_weight(self) -> Tensor:
        """The head's rows (V, d), a copy.

        Raises:
            TargetError: they have been rounded to fewer bits here, so that codes made of them would be others.
        """
        if self.bits is not None:
            raise TargetError(
                f"{self.name} was quantised to {self.bits} bits already, and a drafter's codes are made of the rows "
                "from before",
                "Load the drafter first, then quantise.",
            )
        rows = mx.arange(self.vocab_size)
        parts = [rows_of(self.head, rows[at : at + _ROWS_AT_ONCE]) for at in range(0, self.vocab_size, _ROWS_AT_ONCE)]
        return torch.cat([to_torch(part) for part in parts])

    @cached_property
    def head_digest(self) -> str:
        """sha256 of the head's rows as bfloat16 (hex), from before any quantising here."""
        return digest_rows(self.head_weight)

    def check_embedding(self) -> None:
        """Refuse a model whose first layer reads anything but the rows of its embedding: a drafter could not.

        Raises:
            TargetError: naming the model.
        """
        seen: list[mx.array] = []
        self._listen(0, lambda args, output: seen.append(args[0]))
        ids = mx.array([[1, 2, 3]])
        self.model(ids, cache=make_prompt_cache(self.model))
        self._listen(0, None)
        if not mx.array_equal(seen[0], self.embedding(ids)).item():
            raise TargetError(
                f"{self.name}: {type(self.model).__module__} changes its embeddings before the first layer",
                "A drafter here reads the rows as they are: decode this model plainly (--no-drafter).",
            )

    def quantise(self, bits: int) -> None:
        """Round the weights to 4 or 8 bits, as mlx-lm does; the head's digest stays that of before.

        Raises:
            TargetError: another number of bits, or a model that is quantised already.
        """
        check_bits(bits)
        if hasattr(self.embedding, "scales") or hasattr(self.head, "scales") or self.bits is not None:
            raise TargetError(f"{self.name} is quantised already", "Leave out the number of bits.")
        _ = self.head_digest
        with redirect_stdout(sys.stderr):  # mlx-lm says how many bits came of it, where answers go
            self.model, _ = quantize_model(self.model, {}, group_size_of(self.hidden_size), bits)
        self.embedding = self._owner.model.embed_tokens
        self.head = self.embedding if self._tied else self._owner.lm_head
        self.bits = bits
        mx.eval(self.model.parameters())

    def new_caches(self) -> list[Any]:
        """Empty caches of the model's own kinds."""
        caches: list[Any] = make_prompt_cache(self.model)
        return caches

    def forward(self, ids: mx.array, caches: list[Any], taps: Sequence[int] = ()) -> tuple[mx.array, mx.array | None]:
        """Run new tokens (T,): logits (T, V), and features (1, T, len(taps)·d) or None. Nothing is evaluated yet."""
        check_taps(taps, self.num_layers)
        for tap in taps:
            self._tap(tap)
        logits = self.model(ids[None], cache=caches)[0]
        features = mx.concatenate([self._recorded[tap] for tap in taps], axis=-1) if taps else None
        self._recorded.clear()
        return logits, features

    def head_logits(self, hidden: mx.array) -> mx.array:
        """Scores (..., V) of final-normed states (..., d) by the head alone."""
        return self.embedding.as_linear(hidden) if self._tied else self.head(hidden)

    def _tap(self, layer: int) -> None:
        if layer not in self._tapped:
            self._tapped.add(layer)
            self._listen(layer, lambda args, output: self._recorded.__setitem__(layer, output))

    def _listen(self, layer: int, heard: Any) -> None:
        """Let `heard(arguments, output)` look on at a layer's calls; None ends it.

        The layer becomes one of a class of its own: a call is looked up there, and the weights stay where they are.
        """
        module = self._owner.model.layers[layer]
        kind = getattr(type(module), "unheard", type(module))
        if heard is None:
            module.__class__ = kind
            return

        def call(self: Any, *args: Any, **named: Any) -> Any:
            output = kind.__call__(self, *args, **named)
            heard(args, output[0] if isinstance(output, tuple) else output)
            return output

        module.__class__ = type(kind.__name__, (kind,), {"__call__": call, "unheard": kind})


def check_bits(bits: int) -> None:
    """Refuse numbers of bits other than 4 and 8.

    Raises:
        TargetError: naming them.
    """
    if bits not in BITS:
        raise TargetError(f"weights of {bits} bits", f"Give {' or '.join(map(str, BITS))}.")


def group_size_of(width: int) -> int:
    """Weights that share a scale: 64 as mlx-lm has it, 32 in narrow models."""
    return 64 if width % 64 == 0 else 32


def _window_left_out(config: Any, caches: Sequence[Any]) -> int:
    """The sliding window of a model that mlx-lm runs without one: up to there both are the same; else no bound."""
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    return sys.maxsize if window is None or any(isinstance(c, RotatingKVCache) for c in caches) else int(window)


def _owner(model: Any, name: str) -> Any:
    """The part whose `model` has embedding and layers, and which has the head."""
    for part in (model, getattr(model, "language_model", None)):
        inner = getattr(part, "model", None)
        if hasattr(inner, "embed_tokens") and hasattr(inner, "layers"):
            return part
    raise TargetError(
        f"{name}: {type(model).__module__} has no model.embed_tokens and model.layers", "Take a text model that has."
    )
