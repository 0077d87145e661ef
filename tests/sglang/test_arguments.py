"""The launch line, resolved by SGLang itself without a server and without a GPU: what is filled in, what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from sglang.srt.arg_groups.overrides import resolved_view
from sglang.srt.plugins import load_plugins
from sglang.srt.server_args import prepare_server_args
from tests.sglang.serving import NANO

from dspine.errors import DspineError, ServeError
from dspine.serve.sglang import limits

DRAFTER = str(NANO / "drafter")
# The published launch line, with nano in the place of Qwen3-8B and its context.
PUBLISHED = (
    *("--tp-size", "1", "--dtype", "bfloat16", "--attention-backend", "fa3", "--page-size", "1"),
    *("--mem-fraction-static", "0.65", "--context-length", "1024", "--max-running-requests", "64"),
    *("--cuda-graph-bs-decode", "1", "2", "4", "8", "16", "32", "64", "--trust-remote-code"),
)


@pytest.fixture(scope="module", autouse=True)
def _plugins() -> None:
    load_plugins()


def resolve(
    *flags: str,
    algorithm: str = "DSPINE",
    drafter: str = DRAFTER,
    device: str = "cuda",
    target: Path = NANO / "target",
):
    command = ["--model-path", str(target), "--device", device, "--speculative-algorithm", algorithm]
    args = prepare_server_args([*command, "--speculative-draft-model-path", drafter, *flags])
    args.resolve_once()
    return resolved_view(args)


def refused(*flags: str, **given) -> str:
    with pytest.raises(DspineError) as caught:
        resolve(*flags, **given)
    assert caught.value.fix
    return str(caught.value)


def test_the_published_launch_line_is_taken():
    args = resolve("--speculative-num-draft-tokens", "8", *PUBLISHED)
    assert args.speculative_algorithm == "DSPINE"
    assert (args.speculative_num_steps, args.speculative_eagle_topk) == (1, 1)
    assert args.speculative_num_draft_tokens == 8
    assert args.speculative_draft_model_path == DRAFTER
    assert (args.attention_backend, args.speculative_draft_attention_backend) == ("fa3", "fa3")
    assert args.max_running_requests == 64
    assert list(args.cuda_graph_config.decode.bs) == [1, 2, 4, 8, 16, 32, 64]
    assert not args.disable_overlap_schedule


def test_what_is_not_said_is_filled_in():
    args = resolve("--attention-backend", "fa3", "--context-length", "1024", algorithm="dspine")
    assert args.speculative_num_draft_tokens == 8  # the drafter's own
    assert args.max_running_requests == 48


def test_a_quantised_target_does_not_quantise_its_drafter():
    args = resolve("--quantization", "fp8", *PUBLISHED)
    assert args.quantization == "fp8"
    assert args.speculative_draft_model_quantization is None


def test_a_shorter_block_is_taken_and_a_longer_one_refused():
    assert resolve("--speculative-num-draft-tokens", "5", *PUBLISHED).speculative_num_draft_tokens == 5
    assert "--speculative-num-draft-tokens 16: this drafter was trained with blocks of 8" in refused(
        "--speculative-num-draft-tokens", "16", *PUBLISHED
    )


def test_a_backend_that_cannot_draft_is_replaced_for_the_draft_alone():
    args = resolve("--attention-backend", "fa3", "--prefill-attention-backend", "flashmla", "--page-size", "64")
    assert args.speculative_draft_attention_backend == "flashinfer"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--tp-size", "2"], "--tp-size 2"),
        (["--pp-size", "2"], "--pp-size 2"),
        (["--speculative-draft-window-size", "512"], "--speculative-draft-window-size 512"),
        (["--disaggregation-mode", "prefill"], "--disaggregation-mode prefill"),
        (["--tokenizer-worker-num", "2"], "--tokenizer-worker-num 2"),
        (["--speculative-num-steps", "3"], "--speculative-num-steps 3"),
        (["--speculative-accept-threshold-single", "0.5"], "--speculative-accept-threshold-single 0.5"),
        (["--speculative-draft-model-quantization", "fp8"], "--speculative-draft-model-quantization fp8"),
    ],
)
def test_a_flag_that_cannot_be_honoured_is_refused_by_name(flags, words):
    assert f"dspine does not serve with {words}:" in refused("--context-length", "1024", *flags)


REPLAYED = (
    *("--attention-backend", "fa3", "--context-length", "1024", "--page-size", "1", "--linear-attn-backend", "triton"),
    *("--enable-linear-replayssm-spec", "--mamba-radix-cache-strategy", "extra_buffer", "--mamba-ssm-dtype", "float32"),
)


@pytest.fixture
def hybrid(tmp_path: Path, monkeypatch) -> Path:
    """A target with gated delta nets, as far as its config tells."""
    from sglang.srt.arg_groups import mamba_hook

    monkeypatch.setattr(mamba_hook, "_platform_supports_mamba_cache_extra_buffer", lambda: True)  # as on a GPU
    folder = Path(shutil.copytree(NANO / "target", tmp_path / "target", ignore=shutil.ignore_patterns("*.safetensors")))
    sizes = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2}
    states = {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
    config = {"architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "vocab_size": 2048}
    (folder / "config.json").write_text(json.dumps({**config, **sizes, **states}))
    return folder


def test_replayed_states_of_a_hybrid_target_are_taken(hybrid):
    args = resolve(*REPLAYED, target=hybrid)
    assert args.enable_linear_replayssm_spec
    assert args.speculative_num_draft_tokens == 8
    short = [flag for flag in REPLAYED if flag not in ("--mamba-ssm-dtype", "float32")]
    assert resolve(*short, target=hybrid).mamba_ssm_dtype == "float32"


@pytest.mark.parametrize(
    "flags",
    [
        ["--enable-unified-memory"],
        ["--disable-radix-cache"],
        ["--mamba-ssm-dtype", "bfloat16"],
        ["--linear-attn-prefill-backend", "flashinfer"],
        ["--linear-attn-decode-backend", "flashinfer"],
        ["--linear-replayssm-cache-len", "8"],
        ["--mamba-radix-cache-strategy", "no_buffer", "--disable-overlap-schedule"],
        ["--pp-size", "2"],
    ],
    ids=" ".join,
)
def test_a_flag_under_which_states_would_not_be_replayed_is_refused_by_name(hybrid, flags):
    named = " ".join(flag for flag in flags if flag != "--disable-overlap-schedule")
    assert f"dspine does not serve with {named}:" in refused(*REPLAYED, *flags, target=hybrid)


def test_both_kinds_of_replay_are_refused_by_sglang_itself(hybrid):
    with pytest.raises(ValueError, match="--enable-linear-replayssm requires"):
        resolve(*REPLAYED, "--enable-linear-replayssm", target=hybrid)


def test_another_device_is_refused(monkeypatch):
    monkeypatch.setattr(limits, "DEVICES", {"cuda"})  # as it is where the tests' own plugin is not installed
    assert "--device cpu:" in refused("--attention-backend", "torch_native", device="cpu")


@pytest.mark.parametrize("algorithm", ["DFLASH", "EAGLE", "EAGLE3"])
def test_a_dspine_drafter_under_another_algorithm_is_sent_to_ours(algorithm):
    text = refused(*PUBLISHED, algorithm=algorithm)
    assert f"{DRAFTER} holds a DSpine drafter" in text
    assert "--speculative-algorithm DSPINE" in text


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DRAFTER, tmp_path / "drafter"))


def edit(folder: Path, change) -> None:
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


def test_an_official_drafter_is_recognised_and_its_tensors_are_listed(copied):
    edit(
        copied,
        lambda config: (
            config.update(architectures=["DFlashDraftModel"]),
            config["dflash_config"].update(selected_prefix_code_bridge={"rank": 64}),
        ),
    )
    text = refused(*PUBLISHED, drafter=str(copied))
    assert "official layout" in text
    assert "layers.{i}.self_attn.q_proj.weight" in text
    assert "holds a DSpine drafter" in refused(*PUBLISHED, algorithm="DFLASH", drafter=str(copied))


def test_an_algorithm_of_sglangs_own_is_left_alone(copied):
    from safetensors.torch import load_file, save_file

    weights = copied / "model.safetensors"
    kept = {k: v for k, v in load_file(weights).items() if not k.startswith(("injection.", "transfer_"))}
    save_file(kept, weights, metadata={"format": "pt"})
    edit(
        copied,
        lambda config: (config.pop("dspine_config"), config.update(architectures=["DFlashDraftModel"])),
    )
    assert resolve(*PUBLISHED, algorithm="DFLASH", drafter=str(copied)).speculative_algorithm == "DFLASH"
    assert "holds a DFlash drafter" in refused(*PUBLISHED, drafter=str(copied))


def test_a_version_that_was_not_tested_is_told_where_dspine_is_asked_for(monkeypatch):
    import sglang
    from sglang.srt.speculative import spec_registry

    from dspine.serve.sglang import plugin

    monkeypatch.setattr(spec_registry, "_REGISTRY", {})
    monkeypatch.setattr(sglang, "__version__", "0.9.0")
    plugin.register()
    with pytest.raises(ServeError, match=r"this is SGLang 0\.9\.0"):
        resolve(*PUBLISHED)
