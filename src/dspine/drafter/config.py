"""Sizes of a drafter: those of the parallel backbone, which many drafters share, and DSpine's own.

One rule: a network is built from its numbers alone. Defaults are the paper's for Qwen3-8B (DSpine,
arXiv 2609.36173); `for_target` proposes sizes for any other target. Each other drafter's own numbers stand in its file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from dspine.drafter.masks import Sight
from dspine.errors import ConfigError
from dspine.facts import TargetFacts

_POSITIVE = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
)
PREDECESSORS = ("prediction", "none")
SWITCHES = (
    "is_causal",
    "injected_layers",
    "predecessor",
    "reach",
    "gated",
    "refined",
    "confidence",
)  # of a DSpineConfig


def default_taps(num_layers: int, taps: int) -> tuple[int, ...]:
    """Target layers to read: `taps` ids spread from layer 1 to layer N-3 (id k = output of decoder layer k, from 0).

    Raises:
        ConfigError: the target has too few layers for that many distinct taps.
    """
    if taps == 1:
        return (num_layers // 2,)
    ids = tuple(round(1 + i * (num_layers - 4) / (taps - 1)) for i in range(taps))
    if len(set(ids)) != taps or ids[0] < 0 or ids[-1] > num_layers - 2:
        raise ConfigError(
            f"a target of {num_layers} layers has no {taps} distinct layers to tap between 1 and {num_layers - 3}",
            "Set target_layer_ids, or a smaller number of taps.",
        )
    return ids


@dataclass(frozen=True)
class BackboneConfig:
    """Sizes of the parallel backbone. `block_size` counts the rows of a block: the anchor and the mask tokens."""

    hidden_size: int = 4096
    intermediate_size: int = 12288
    num_hidden_layers: int = 5
    num_attention_heads: int = 32
    num_key_value_heads: int = 8
    head_dim: int = 128
    vocab_size: int = 151936
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e6
    max_position_embeddings: int = 40960
    num_target_layers: int = 36
    target_layer_ids: tuple[int, ...] = (1, 9, 17, 25, 33)
    mask_token_id: int = 151669
    block_size: int = 16

    def __post_init__(self) -> None:
        self._check_positive(_POSITIVE)
        if self.head_dim % 2:
            raise ConfigError(
                f"drafter config: head_dim is {self.head_dim}", "Rotary positions turn pairs: it must be even."
            )
        if self.mask_token_id < 0:
            raise ConfigError(f"drafter config: mask_token_id is {self.mask_token_id}", "Give an id from 0.")
        if self.block_size < 2:
            raise ConfigError(
                f"drafter config: block_size is {self.block_size}",
                "It counts the anchor, so at least 2 is needed for one candidate.",
            )
        if self.num_attention_heads % self.num_key_value_heads:
            raise ConfigError(
                f"drafter config: {self.num_attention_heads} attention heads are no multiple of "
                f"{self.num_key_value_heads} key/value heads",
                "Set num_attention_heads to a multiple of num_key_value_heads.",
            )
        self._check_taps()

    def _check_positive(self, fields: tuple[str, ...]) -> None:
        for field in fields:
            if getattr(self, field) < 1:
                raise ConfigError(f"drafter config: {field} is {getattr(self, field)}", "It must be at least 1.")

    def _check_taps(self) -> None:
        ids = self.target_layer_ids
        last = self.num_target_layers - 2
        wrong = [i for i in ids if not 0 <= i <= last]
        if not ids or wrong or len(set(ids)) != len(ids):
            raise ConfigError(
                f"drafter config: target_layer_ids {list(ids)} for a target of {self.num_target_layers} layers",
                f"Give distinct ids from 0 to {last} (id k = output of layer k; the last layer cannot be tapped).",
            )

    @property
    def feature_size(self) -> int:
        """Width of the concatenated taps, m·d."""
        return len(self.target_layer_ids) * self.hidden_size

    @property
    def candidates(self) -> int:
        """Candidates of a round, M."""
        return self.block_size - 1

    @classmethod
    def proportions(cls, facts: TargetFacts) -> dict[str, int]:
        """What this kind of drafter proposes for its own sizes, beside the backbone's."""
        return {}

    @classmethod
    def for_target(cls, facts: TargetFacts, mask_token_id: int, **overrides: Any) -> Self:
        """Sizes for a target: its own width, heads and feed-forward, the paper's proportions elsewhere.

        The paper's Qwen3-8B values come out for Qwen3-8B. `overrides` replace any field; `num_hidden_layers` also
        sets how many layers are tapped unless `target_layer_ids` says otherwise.

        Raises:
            ConfigError: sizes that do not fit each other or the target.
        """
        layers = int(overrides.get("num_hidden_layers", 5))
        proposed: dict[str, Any] = {
            "hidden_size": facts.hidden_size,
            "intermediate_size": facts.intermediate_size,
            "num_attention_heads": facts.num_attention_heads,
            "num_key_value_heads": facts.num_key_value_heads,
            "head_dim": facts.head_dim,
            "vocab_size": facts.vocab_size,
            "rms_norm_eps": facts.rms_norm_eps,
            "rope_theta": facts.rope_theta,
            "max_position_embeddings": facts.max_position_embeddings,
            "num_target_layers": facts.num_layers,
            "mask_token_id": mask_token_id,
            **cls.proportions(facts),
        }
        if "target_layer_ids" not in overrides:
            proposed["target_layer_ids"] = default_taps(facts.num_layers, layers)
        unknown = set(overrides) - set(cls.__dataclass_fields__)
        if unknown:
            raise ConfigError(
                f"drafter config: unknown {', '.join(sorted(unknown))}",
                f"Known: {', '.join(cls.__dataclass_fields__)}.",
            )
        return cls(**{**proposed, **overrides})


@dataclass(frozen=True)
class DSpineConfig(BackboneConfig):
    """Sizes of backbone and injection; M = block_size - 1 candidates a round. Behind them the switches of the design.

    Every switch stands as the paper has it; `switched` names those that do not.

    is_causal: a row sees the rows of its block up to itself; False: all of them, as DFlash's do.
    injected_layers: the draft layers after which places hear, counted from 0; None: all of them.
    predecessor: what a place hears while the block is drafted: "prediction", the state of the place before it; "none",
        tokens alone: the anchor at place 1 and, in the refinement, the chosen candidate.
    reach: w, how many places before it a place hears.
    gated: whether a gate weighs the message; without one it counts in full.
    refined: whether the last write is redone with the chosen tokens; else each place proposes its ordinary output.
    confidence: whether a head of its own estimates how likely each candidate is to be accepted; not of the paper.
    """

    transfer_rank: int = 1024
    message_size: int = 512
    top_k: int = 16
    is_causal: bool = True
    injected_layers: tuple[int, ...] | None = None
    predecessor: str = "prediction"
    reach: int = 1
    gated: bool = True
    refined: bool = True
    confidence: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_switches()
        self._check_positive(("transfer_rank", "message_size", "top_k"))
        if self.top_k > self.vocab_size:
            raise ConfigError(
                f"drafter config: top_k {self.top_k} exceeds the vocabulary of {self.vocab_size}",
                "Choose a smaller one.",
            )
        if self.transfer_rank > self.hidden_size:
            raise ConfigError(
                f"drafter config: transfer_rank {self.transfer_rank} exceeds the hidden size {self.hidden_size}",
                "The transfer space is a subspace of the target's output embeddings: choose a smaller rank.",
            )

    def _check_switches(self) -> None:
        layers = self.injected_layers
        if layers is not None and list(layers) != sorted({i for i in layers if 0 <= i < self.num_hidden_layers}):
            raise ConfigError(
                f"drafter config: injected_layers {list(layers)} of {self.num_hidden_layers} draft layers",
                f"Give distinct layers from 0 to {self.num_hidden_layers - 1}, ascending.",
            )
        if self.refined and self.num_hidden_layers - 1 not in self.injected:
            raise ConfigError(
                f"drafter config: refined, and injected_layers {list(self.injected)} leaves out the last layer",
                "Refinement redoes the last layer's write: add the layer, or set refined to false.",
            )
        if self.predecessor not in PREDECESSORS:
            raise ConfigError(
                f"drafter config: predecessor is {self.predecessor!r}", f"It is one of {', '.join(PREDECESSORS)}."
            )
        if not 1 <= self.reach <= self.candidates or (self.reach > 1 and self.predecessor == "none"):
            raise ConfigError(
                f"drafter config: reach is {self.reach}, for {self.candidates} places that hear {self.predecessor}",
                f"Give 1 to {self.candidates}; more than 1 only where places hear predictions.",
            )

    @property
    def injected(self) -> tuple[int, ...]:
        """The draft layers after which places hear."""
        return tuple(range(self.num_hidden_layers)) if self.injected_layers is None else self.injected_layers

    @property
    def switched(self) -> dict[str, Any]:
        """The switches that do not stand as the paper has them."""
        return {name: value for name in SWITCHES if (value := getattr(self, name)) != getattr(DSpineConfig, name)}

    @classmethod
    def proportions(cls, facts: TargetFacts) -> dict[str, int]:
        return {"transfer_rank": fraction(facts.hidden_size, 4), "message_size": fraction(facts.hidden_size, 8)}


@dataclass(frozen=True)
class ParallelConfig(BackboneConfig):
    """A backbone whose rows may see each other both ways, and whose row k predicts a token of either convention.

    is_causal: rows see rows up to themselves alone; None: in sliding layers, while full ones see both ways.
    sliding_window: W, in the layers `sliding_layers` a row sees keys fewer than W positions away.
    logits_start: the first row that predicts: 1, row k predicts the token at its own position; 0, the one after it.
    confidence: whether a head estimates how likely each candidate is to be accepted.
    """

    is_causal: bool | None = False
    sliding_window: int | None = None
    sliding_layers: tuple[int, ...] = ()
    logits_start: int = 1
    confidence: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.logits_start not in (0, 1):
            raise ConfigError(
                f"drafter config: logits_start is {self.logits_start}",
                "It is 1 where row k predicts the token at its own position, 0 where it predicts the next.",
            )
        window, layers = self.sliding_window, self.sliding_layers
        outside = [layer for layer in layers if not 0 <= layer < self.num_hidden_layers]
        if outside or len(set(layers)) != len(layers):
            raise ConfigError(
                f"drafter config: sliding_layers {list(layers)} of {self.num_hidden_layers} draft layers",
                f"Give distinct layers from 0 to {self.num_hidden_layers - 1}.",
            )
        if bool(layers) != (window is not None) or (window is not None and window < 1):
            raise ConfigError(
                f"drafter config: sliding_window is {window} for {len(layers)} sliding layers",
                "Give a window of at least 1 and the layers it is for, or neither.",
            )

    @property
    def candidates(self) -> int:
        """Candidates of a round, M."""
        return self.block_size - self.logits_start

    @property
    def sights(self) -> tuple[Sight, ...]:
        """What each draft layer's rows see."""
        return tuple(self._sight(layer in self.sliding_layers) for layer in range(self.num_hidden_layers))

    def _sight(self, sliding: bool) -> Sight:
        return Sight(
            causal=sliding if self.is_causal is None else self.is_causal,
            window=self.sliding_window if sliding else None,
        )


def fraction(size: int, parts: int) -> int:
    """About `size / parts`, a multiple of 16 for the sake of matrix units, at least 16 and at most `size`."""
    return min(size, max(16, round(size / parts / 16) * 16))
