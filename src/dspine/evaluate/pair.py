"""What a target and a drafter say of each other: the facts that must agree for drafts to be accepted.

One rule: read, never guessed; what a file does not say is None. Source: DSpine (arXiv 2609.36173), taps, mask token and
transfer codes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dspine.checkpoint import CheckpointConfig, drafter_digest
from dspine.checkpoint.opening import open_checkpoint
from dspine.drafter.config import BackboneConfig, DSpineConfig
from dspine.drafter.dspine import DSpine
from dspine.drafter.registry import Network, kind_of
from dspine.target.chat import template_digest
from dspine.target.model import Target

NORM = 2e-2  # a unit norm stored in bfloat16 is off by less


@dataclass(frozen=True)
class Codes:
    """Transfer codes (V, r) as they are used.

    digest: sha256 of their float32 bytes, 12 hex digits. norms: smallest and largest of rows that are not zero.
    padding: rows of zeros. rounded: a half precision that holds every number exactly, which they went through then.
    stored: in the file, as its header has it; None where the file holds a basis instead.
    """

    rows: int
    rank: int
    digest: str
    norms: tuple[float, float]
    padding: int
    rounded: str | None
    stored: str | None

    @classmethod
    def of(cls, drafter: DSpine, stored: str | None) -> Codes:
        codes = drafter.codes.detach().float().cpu()
        norms = codes.norm(dim=1)
        present = norms[norms > 0]
        return cls(
            rows=len(codes),
            rank=codes.shape[1],
            digest=hashlib.sha256(codes.contiguous().numpy().tobytes()).hexdigest()[:12],
            norms=(float(present.min()), float(present.max())),
            padding=int((norms == 0).sum()),
            rounded=_rounded(codes),
            stored=stored,
        )

    @property
    def unit(self) -> bool:
        """Whether every code has unit norm, or none."""
        return all(abs(norm - 1) < NORM for norm in self.norms)


def _rounded(codes: Tensor) -> str | None:
    for name, kind in (("bfloat16", torch.bfloat16), ("float16", torch.float16)):
        if torch.equal(codes, codes.to(kind).float()):
            return name
    return None


@dataclass(frozen=True)
class Pair:
    """The facts of a target and a drafter."""

    target: str
    target_dtype: str
    drafter: str
    digest: str
    kind: str
    layout: str
    stored: tuple[str, ...]
    taps: tuple[int, ...]
    target_layers: int
    rope_theta: float
    target_rope_theta: float
    mask_token_id: int
    mask_token: str | None
    mask_in_text: bool
    head_rows: int
    readable_ids: int
    draft_vocabulary: int | None
    template_recorded: str | None
    template_now: str | None
    thinking_recorded: bool | None
    thinking_now: bool
    switched: Mapping[str, Any]
    trained_tau: float | None
    codes: Codes | None

    @classmethod
    def of(cls, target: Target, drafter: Network, config: CheckpointConfig, *, thinking: bool) -> Pair:
        """The facts of a loaded pair and of the drafter's folder."""
        sizes: BackboneConfig = drafter.config
        record, mask = config.target, _mask(drafter)
        tensors = open_checkpoint(config.folder, target.num_layers).tensors
        at_training = config.training.get("acceptance")
        held = tensors.get("transfer_codes")
        return cls(
            target=target.name,
            target_dtype=str(target.dtype).removeprefix("torch."),
            drafter=str(config.folder),
            digest=drafter_digest(config.folder),
            kind=kind_of(drafter),
            layout=config.layout,
            stored=tuple(sorted({tensor.dtype for tensor in tensors.values()} - {"BOOL"})),
            taps=drafter.target_layer_ids,
            target_layers=target.num_layers,
            rope_theta=sizes.rope_theta,
            target_rope_theta=target.facts.rope_theta,
            mask_token_id=mask,
            mask_token=target.tokenizer.convert_ids_to_tokens(mask) if mask < target.decodable else None,
            mask_in_text=_in_text(target, mask),
            head_rows=target.vocab_size,
            readable_ids=target.decodable,
            draft_vocabulary=None if drafter.draft_ids is None else len(drafter.draft_ids),
            template_recorded=None if record is None else record.template_sha256,
            template_now=template_digest(target, thinking=thinking),
            thinking_recorded=None if record is None else record.thinking,
            thinking_now=thinking,
            switched=sizes.switched if isinstance(sizes, DSpineConfig) else {},
            trained_tau=at_training.get("tau") if isinstance(at_training, Mapping) else None,
            codes=Codes.of(drafter, held.dtype if held else None) if isinstance(drafter, DSpine) else None,
        )

    @property
    def same_template(self) -> bool | None:
        """Whether prompts are rendered as in training; None: the file does not say how that was."""
        return None if self.thinking_recorded is None else self.template_recorded == self.template_now

    def facts(self) -> dict[str, Any]:
        """For a table or a program."""
        facts = asdict(self)
        return facts | {"drafter": Path(self.drafter).name, "folder": self.drafter, "switched": dict(self.switched)}


def _mask(drafter: Network) -> int:
    form = getattr(drafter, "form", None)
    return drafter.config.mask_token_id if form is None else int(form.mask_token_id)


def _in_text(target: Target, token: int) -> bool:
    """Whether texts are made of a token: it is neither special nor beyond the tokenizer."""
    special = {*target.tokenizer.all_special_ids, *getattr(target.tokenizer, "added_tokens_decoder", {})}
    return token < target.decodable and token not in special
