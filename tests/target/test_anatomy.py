"""Other kinds of models: taken if they pass the start-up check, else refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from tests.support.tiny_target import TOKENS, sliding, tiny_model, tiny_tokenizer
from torch import nn

from dspine.errors import TargetError
from dspine.kernels.kv import Span
from dspine.target.anatomy import examine
from dspine.target.model import Target

IDS = torch.randint(TOKENS, (2, 30), generator=torch.Generator().manual_seed(4))
FIELDS = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SMALL_GPT2 = {"n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 256}


def build(name: str, **overrides: Any) -> Any:
    config = getattr(transformers, f"{name}Config")(**{**FIELDS, **overrides})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return getattr(transformers, f"{name}ForCausalLM", None)(config).eval()


def wrapped(model: Any) -> Target:
    return Target(model, tiny_tokenizer(), name="other")


@pytest.mark.parametrize(
    ("name", "overrides", "implementation"),
    [
        ("Gemma2", {"sliding_window": 8}, "eager"),  # soft caps in attention and behind the head, mixed layers
        ("GptOss", {"sliding_window": 8, "num_local_experts": 2, "num_experts_per_tok": 1}, "eager"),  # sinks
        ("Granite", {"logits_scaling": 3.0}, "dspine"),
        ("Cohere", {}, "dspine"),  # scales its logits
        ("Phi3", {"sliding_window": 8}, "dspine"),  # a window for all layers, without layer_types
        ("Olmo2", {}, "dspine"),
    ],
)
def test_other_kinds_that_pass_the_check(name, overrides, implementation):
    model = build(name, **overrides)
    model.set_attn_implementation("eager")  # the only one of its own that honours every argument
    with torch.no_grad():
        own = model(IDS, use_cache=False).logits
    target = wrapped(model)
    assert target.model.config._attn_implementation == implementation
    assert target.model.config.sliding_window == 8 if "sliding_window" in overrides else True
    logits = target.logits(target.forward(IDS, target.new_cache(2), Span(0, (0, 0), 30)).hidden)
    torch.testing.assert_close(logits, own, rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        (
            "RecurrentGemma",
            {"lru_width": 64, "attention_window_size": 8},
            r"RecurrentGemmaForCausalLM has layers of type .*RecurrentGemmaRecurrentBlock.*: rolling their state back",
        ),
        (
            "MiniMax",
            {"num_local_experts": 2, "num_experts_per_tok": 1},
            r"MiniMaxForCausalLM has layers of type .*: rolling their state back",
        ),
        ("Rwkv", {}, r"RwkvForCausalLM has layers of type .*RwkvSelfAttention"),
        ("Llama4", {}, r"Llama4ForCausalLM has layers of type chunked_attention"),
        ("GPTNeo", {"attention_types": [[["global", "local"], 2]], "num_layers": 4}, r"of type local"),
        ("Bloom", {"n_layer": 4, "n_head": 4}, r"other \(BloomForCausalLM\) cannot be run in one forward"),
    ],
)
def test_kinds_that_are_refused_by_name(name, overrides, message):
    if name == "Llama4":
        config = transformers.Llama4TextConfig(**{**FIELDS, **overrides})
        model = transformers.Llama4ForCausalLM(config)
    else:
        model = build(name, **overrides)
    with pytest.raises(TargetError, match=message):
        wrapped(model)


def test_encoder_decoders_are_refused():
    config = transformers.T5Config(vocab_size=320, d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=2)
    with pytest.raises(TargetError, match="T5ForConditionalGeneration is an encoder-decoder model"):
        wrapped(transformers.T5ForConditionalGeneration(config))


def test_a_model_without_a_head_is_refused():
    with pytest.raises(TargetError, match="Qwen3Model has no language-model head"):
        wrapped(tiny_model().model)


def test_layers_that_cannot_be_found_are_refused():
    model = tiny_model()
    model.model.layers = nn.Sequential(*model.model.layers)
    with pytest.raises(TargetError, match="its 6 decoder layers were not found"):
        wrapped(model)


def test_a_list_as_long_inside_a_layer_is_not_mistaken_for_the_layers():
    model = tiny_model(num_hidden_layers=2)
    model.model.layers[0].layers = nn.ModuleList([nn.Identity(), nn.Identity()])
    assert examine(model).layers is model.model.layers


def test_the_cache_goes_by_the_name_that_the_decoder_knows():
    model = tiny_model()
    assert examine(model).cache_argument in {"cache", "past_key_values"}

    def older(input_ids, attention_mask=None, position_ids=None, past_key_values=None, use_cache=None):
        raise NotImplementedError

    model.model.forward = older
    assert examine(model).cache_argument == "past_key_values"
    model.model.forward = lambda input_ids: input_ids
    with pytest.raises(TargetError, match="takes no key/value cache"):
        examine(model)


def test_windows_come_from_where_each_kind_keeps_them():
    assert examine(tiny_model(**sliding(window=8, full_layers=2))).kinds == (
        ("full_attention",) * 2 + ("sliding_attention",) * 4
    )
    assert examine(tiny_model("mistral", **sliding("mistral", 8))).window == 8
    assert examine(tiny_model("mistral")).window is None
    llama = tiny_model("llama")
    llama.config.sliding_window = 8  # carried along from somewhere; Llama's layers never look at it
    assert examine(llama).window is None


class ExtraStep(transformers.Qwen3ForCausalLM):
    """A class of our own: not among the kinds that were read, so it is checked."""


class DoubledLogits(ExtraStep):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        out = super().forward(*args, **kwargs)
        out.logits = out.logits * 2
        return out


class DeafToPositions(ExtraStep):
    """Ignores position_ids, as models with learned offsets might; right in one go, wrong in a ragged batch."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        rotary = self.model.rotary_emb.forward
        self.model.rotary_emb.forward = lambda hidden, position_ids: rotary(
            hidden, torch.arange(position_ids.shape[1]).expand_as(position_ids)
        )


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (DoubledLogits, r"other \(DoubledLogits\): in one forward, its logits differ from its own by"),
        (DeafToPositions, r"through a ragged cache with rollback, its logits differ"),
    ],
)
def test_a_model_that_computes_something_else_is_refused(kind, message):
    with pytest.raises(TargetError, match=message):
        wrapped(kind(tiny_model().config).eval())


def test_a_model_that_computes_nan_is_refused():
    model = ExtraStep(tiny_model().config).eval()
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    with pytest.raises(TargetError, match="differ from its own by nan"):
        wrapped(model)


def test_a_class_of_its_own_that_computes_the_same_is_taken():
    config = tiny_model(**sliding(window=8, full_layers=2)).config
    target = wrapped(ExtraStep(config).eval())
    assert target._windows == {"full_attention": None, "sliding_attention": 8}
