"""Fixture F1: a random target of six layers, and a byte-level tokenizer for it.

`initializer_range` matters: with the usual 0.02 the next-token law is nearly uniform, and tests of acceptance or
of distributions have no power.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from dspine.target.model import Target

SPECIALS = ("<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>", "<|mask|>", "<|pad|>")
BYTES = 256
TOKENS = BYTES + len(SPECIALS)  # 262 readable ids; the model has 320 rows
BOS, EOS, IM_START, IM_END, MASK, PAD = range(BYTES, TOKENS)
KINDS = {"qwen3": "Qwen3", "qwen2": "Qwen2", "llama": "Llama", "mistral": "Mistral"}

CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}"""

# With thinking off, every answer follows an empty thought.
THINKING_TEMPLATE = """\
{%- set thought = '<think>\\n\\n</think>\\n\\n' if enable_thinking is false else '' -%}
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ thought if message.role == 'assistant' }}{{ message.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{{ thought }}{% endif -%}"""


@lru_cache
def _tokenizer_json() -> str:
    alphabet = bytes_to_unicode()
    vocabulary = {alphabet[byte]: byte for byte in range(BYTES)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIALS))
    text: str = tokenizer.to_str()
    return text


def tiny_tokenizer(chat_template: str | None = CHAT_TEMPLATE) -> PreTrainedTokenizerFast:
    """One token a byte (ids 0..255), then the specials; no merges, so multi-byte characters span tokens."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_tokenizer_json()),
        bos_token="<|bos|>",
        eos_token="<|im_end|>",  # the model's config says <|eos|>: both end an answer
        pad_token="<|pad|>",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = chat_template
    return tokenizer


def tiny_model(
    kind: str = "qwen3", *, dtype: torch.dtype = torch.float32, seed: int = 0, **overrides: Any
) -> PreTrainedModel:
    """The random model of fixture F1; `overrides` are config fields (say `tie_word_embeddings=True`)."""
    fields: dict[str, Any] = {
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "tie_word_embeddings": False,
        "initializer_range": 0.3,
        "max_position_embeddings": 4096,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
    }
    if kind == "qwen2":
        del fields["head_dim"]  # Qwen2 has no such field: hidden_size / heads, which is 16 too
    if kind == "mistral":
        fields["sliding_window"] = None
    config = getattr(transformers, KINDS[kind] + "Config")(**{**fields, **overrides})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: PreTrainedModel = getattr(transformers, KINDS[kind] + "ForCausalLM")(config)
    return model.to(dtype).eval()


def sliding(kind: str = "qwen3", window: int = 8, full_layers: int = 0) -> dict[str, Any]:
    """Config fields for a model whose layers see `window` slots, but the first `full_layers` see all."""
    if kind == "mistral":
        return {"sliding_window": window}
    return {"use_sliding_window": True, "sliding_window": window, "max_window_layers": full_layers}


def tiny_target(
    kind: str = "qwen3",
    *,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    window: int | None = None,
    full_layers: int = 0,
    chat_template: str | None = CHAT_TEMPLATE,
    **overrides: Any,
) -> Target:
    """Our `Target` around a `tiny_model`.

    Args:
        window: make layers sliding-window ones, from layer `full_layers` on (Mistral: all of them).
        overrides: fields of the model's config; `vocab_size` beyond `TOKENS` are padding rows.
    """
    if window is not None:
        overrides = {**sliding(kind, window, full_layers), **overrides}
    model = tiny_model(kind, dtype=dtype, seed=seed, **overrides)
    return Target(model, tiny_tokenizer(chat_template), name=f"tiny-{kind}")
