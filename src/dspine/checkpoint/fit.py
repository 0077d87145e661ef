"""Does the drafter fit the target?

One rule: everything that would only show as a low acceptance later is an error now, before a weight is read; what
changes the prompts alone (template, thinking) is a warning. Source: DSpine (arXiv 2609.36173), target features and
mask token; published failures of loaders.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from dspine.checkpoint.own import OWN
from dspine.checkpoint.record import CheckpointConfig, TargetRecord
from dspine.drafter.eagle3 import Eagle3Config
from dspine.errors import CheckpointError, DspineError
from dspine.target.chat import Speaker, render, template_digest

_UNUSED = (
    "A mask token is one that no text contains: an unused special token (SmolLM2: <empty_output>), or a padding row."
)
_ROUNDED = (
    "It is loaded in float16, which rounds the weights of a bfloat16 or float32 model and so gives another digest: "
    "load it in float32 or bfloat16 (--dtype)."
)
_CONVERSATIONS = (
    (("user", "Hello"),),
    (("system", "Be brief."), ("user", "Hello")),
    (("user", "Hello"), ("assistant", "Hi"), ("user", "Bye")),
)


class Fitted(Speaker, Protocol):
    """What is asked of a target here: ours, or one that another engine has loaded."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def embedding(self) -> nn.Module: ...
    @property
    def head_digest(self) -> str: ...


def check_fit(config: CheckpointConfig, target: Fitted) -> None:
    """Refuse a drafter that was made for another target.

    Raises:
        CheckpointError: naming the field, the two values and what to do.
    """
    check_sizes(config, target)
    if isinstance(config.drafter, Eagle3Config):
        return  # it embeds no mask
    try:
        check_mask_token(config.drafter.mask_token_id, target)
    except CheckpointError as error:
        raise CheckpointError(f"{config.folder}: {error.what}", error.fix) from error


def check_sizes(config: CheckpointConfig, target: Fitted) -> None:
    """The part of `check_fit` that needs no tokenizer: sizes and the LM head.

    Raises:
        CheckpointError: naming the field, the two values and what to do.
    """
    sizes = config.drafter
    pairs = (
        ("hidden_size", sizes.hidden_size, target.hidden_size, "hidden size"),
        ("vocab_size", sizes.vocab_size, target.vocab_size, "number of LM-head rows"),
        ("num_target_layers", sizes.num_target_layers, target.num_layers, "number of layers"),
    )
    for field, ours, theirs, meaning in pairs:
        if ours != theirs:
            raise CheckpointError(
                f"{config.folder}: {field} is {ours}, and the {meaning} of {target.name} is {theirs}",
                _made_for(config.target, target),
            )
    if config.target is None and config.layout == OWN.name:
        raise CheckpointError(
            f"{config.folder}: config.json has no dspine_format.target, so nothing says which LM head its transfer "
            "basis belongs to",
            "Take the config.json that was saved with these weights; codes cannot be made from another head.",
        )
    if config.target is not None and config.target.head_sha256 != target.head_digest:
        raise CheckpointError(
            f"{config.folder}: trained with an LM head of digest {config.target.head_sha256[:16]}, and that of "
            f"{target.name} is {target.head_digest[:16]}: "
            + ("its transfer codes would be others" if config.has_codes else "it is another target"),
            _ROUNDED if target.dtype == torch.float16 else _made_for(config.target, target),
        )


def _made_for(record: TargetRecord | None, target: Fitted) -> str:
    if record is None:
        return f"Use the target it was trained for, or train a drafter for {target.name}: dspine train --help"
    return f"It was trained for {record.name}: use --target {record.name}, or train one for {target.name}."


def check_mask_token(mask: int, target: Fitted) -> None:
    """Refuse a mask token that the target's prompts and answers may contain.

    Args:
        mask: token id. Ids beyond the tokenizer are fine while the embedding has a row for them.

    Raises:
        CheckpointError: naming what else the id stands for.
    """
    rows = len(cast(Tensor, target.embedding.weight))
    if mask >= rows:
        raise CheckpointError(f"mask_token_id {mask} has no row in the target's embedding (0..{rows - 1})", _UNUSED)
    named = {name: getattr(target.tokenizer, f"{name}_token_id", None) for name in ("bos", "pad")}
    roles = [name for name, token in named.items() if token == mask] + ["eos"] * (mask in target.eos_ids)
    if roles:
        raise CheckpointError(f"mask_token_id {mask} is the target's {' and '.join(roles)} token", _UNUSED)
    if any(mask in prompt for prompt in _rendered(target)):
        raise CheckpointError(f"mask_token_id {mask} occurs in what the target's chat template writes", _UNUSED)


def _rendered(target: Fitted) -> Iterator[list[int]]:
    """Token ids of the chat template at work."""
    for turns, thinking in product(_CONVERSATIONS, (False, True)):
        try:
            yield render(target, [{"role": role, "content": text} for role, text in turns], thinking=thinking)
        except DspineError:
            continue  # no template, no thinking flag in it, or no system messages


def warnings_of(config: CheckpointConfig, target: Fitted, thinking: bool | None) -> Iterator[str]:
    """What does not forbid decoding, but may lower acceptance.

    Args:
        thinking: whether prompts will be rendered with thinking on; None: not known.
    """
    if config.unknown:
        yield f"{config.folder}: unknown keys in config.json, kept and not used: {', '.join(sorted(config.unknown))}"
    record = config.target
    if record is None:
        return
    if record.template_sha256 != template_digest(target, thinking=record.thinking):
        yield (
            f"{config.folder}: trained with another chat template than {target.name} has now; acceptance may be far "
            "lower. Use the template of the training run."
        )
    if thinking is not None and thinking != record.thinking:
        words = ("off", "on")
        yield (
            f"{config.folder}: trained with thinking {words[record.thinking]}, used with thinking {words[thinking]}; "
            "acceptance may be far lower. Use the mode of the training run."
        )
