"""The nano target: how it is trained, and that the committed one answers."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from dspine.config import NanoTargetRecipe
from dspine.decode.engine import Engine
from dspine.decode.sampling import SamplingParams
from dspine.errors import ConfigError
from dspine.target import load_target
from dspine.target.chat import completion_mask, render
from dspine.train.nano import target as training
from dspine.train.nano.batches import IGNORED, Row, batches, collate, encode
from dspine.train.nano.corpus import conversations, prompts
from dspine.train.nano.target import train_nano_target

TINY = NanoTargetRecipe(
    builder="nano", conversations=60, tokenizer_conversations=60, vocabulary=300, hidden_size=32, intermediate_size=32,
    layers=2, heads=2, kv_heads=1, head_dim=16, steps=12, batch_tokens=512, warmup_steps=2, save_steps=5,
)  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    lines: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "say", lines.append)
        patch.setattr(training, "LOG_STEPS", 6)
        folder = train_nano_target(tmp_path_factory.mktemp("nano") / "target", TINY)
    return folder, lines


@pytest.fixture(scope="module")
def nano():
    return load_target("nano")


def test_a_run_learns_and_saves_a_transformers_folder(trained):
    folder, lines = trained
    first, last = (float(found[1]) for line in lines if (found := re.search(r"loss ([\d.]+)", line)))
    assert last < first
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype == torch.bfloat16
    assert model.generation_config.eos_token_id == AutoTokenizer.from_pretrained(folder).eos_token_id == 2
    assert [path.name for path in folder.parent.iterdir()] == ["target"]


def same_weights(one, other):
    return (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()


def test_another_seed_gives_other_weights(trained, tmp_path):
    other = train_nano_target(tmp_path / "other", TINY.model_copy(update={"seed": 2}))
    assert not same_weights(other, trained[0])


def cut_short(monkeypatch, step, how):
    """Interrupt the given step (from 1): by a signal, or by an error as a kill would."""
    advance = training._step

    def interrupted(model, batch, optimisers, number, recipe):
        if number == step:
            how()
        return advance(model, batch, optimisers, number, recipe)

    monkeypatch.setattr(training, "_step", interrupted)


def killed():
    raise MemoryError


@pytest.mark.parametrize(
    ("how", "left", "ends"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGINT), 7, KeyboardInterrupt),
        (lambda: os.kill(os.getpid(), signal.SIGTERM), 7, KeyboardInterrupt),
        (killed, 5, MemoryError),
    ],
)
def test_a_stopped_run_goes_on_to_the_same_weights(trained, tmp_path, monkeypatch, how, left, ends):
    folder = tmp_path / "target"
    with monkeypatch.context() as patch:
        cut_short(patch, 7, how)
        with pytest.raises(ends):
            train_nano_target(folder, TINY)
    assert not folder.exists()
    assert [path.name for path in (tmp_path / "target-checkpoints").iterdir()] == [f"step-{left:07d}.pt"]
    steps = []
    with monkeypatch.context() as patch:
        advance = training._step
        patch.setattr(training, "_step", lambda *given: (steps.append(given[3]), advance(*given))[1])
        train_nano_target(folder, TINY)
    assert steps == list(range(left + 1, 13))
    assert same_weights(folder, trained[0])
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_a_new_process_goes_on_too(trained, tmp_path, monkeypatch):
    cut_short(monkeypatch, 7, killed)
    with pytest.raises(MemoryError):
        train_nano_target(tmp_path / "target", TINY)
    script = (
        "import sys\nfrom dspine.config import NanoTargetRecipe\n"
        "from dspine.train.nano.target import train_nano_target\n"
        "train_nano_target(sys.argv[1], NanoTargetRecipe.model_validate_json(sys.argv[2]))\n"
    )
    given = [str(tmp_path / "target"), TINY.model_dump_json()]
    done = subprocess.run([sys.executable, "-c", script, *given], check=True, capture_output=True, text=True)
    assert "going on from step 5" in done.stderr
    assert same_weights(tmp_path / "target", trained[0])


def test_checkpoints_of_another_recipe_are_not_gone_on_with(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        cut_short(patch, 7, killed)
        with pytest.raises(MemoryError):
            train_nano_target(tmp_path / "target", TINY)
    with pytest.raises(ConfigError, match=r"differs in build\.target"):
        train_nano_target(tmp_path / "target", TINY.model_copy(update={"steps": 11}))


def test_a_finished_target_is_left_as_it_is(trained, monkeypatch):
    monkeypatch.setattr(training, "_fit", lambda *given: pytest.fail("trained again"))
    assert train_nano_target(trained[0], TINY.model_copy(update={"save_steps": 3})) == trained[0]
    with pytest.raises(ConfigError, match=r"another build\.target: seed: 1 → 2"):
        train_nano_target(trained[0], TINY.model_copy(update={"seed": 2}))


def test_a_folder_that_came_from_elsewhere_is_refused(tmp_path):
    (tmp_path / "target").mkdir()
    with pytest.raises(ConfigError, match=r"not made by build\.target"):
        train_nano_target(tmp_path / "target", TINY)


def test_the_folder_says_how_it_was_made(trained):
    assert NanoTargetRecipe(**json.loads((trained[0] / "build.json").read_text())) == TINY


def test_labels_are_what_the_assistant_wrote_with_its_end(nano):
    for conversation in conversations(0, 30):
        [row] = encode([conversation], nano.tokenizer, 1024)
        assert (row.ids, row.written) == completion_mask(nano, conversation["messages"])
        batch = collate([row, Row(row.ids[:4], [False] * 4)], pad=0)
        labelled = (batch.labels[0] != IGNORED).nonzero().flatten()
        assert batch.ids[0, labelled + 1].tolist() == batch.labels[0, labelled].tolist()
        assert (labelled + 1).tolist() == [place for place, written in enumerate(row.written) if written]
        assert (batch.labels[1] == IGNORED).all()


def test_an_epoch_holds_every_row_once_and_little_padding():
    rows = [Row([length] * length, [True] * length) for length in range(3, 60)]
    stream = batches(rows, 128, pad=0, rng=random.Random(0))
    seen: list[int] = []
    while len(seen) < len(rows):
        ids = next(stream).ids
        seen += ids[:, 0].tolist()
        assert ids.numel() <= 128 + 8 * len(ids)
        assert (ids == 0).sum(1).max() < 24
    assert sorted(seen) == list(range(3, 60))


def test_the_committed_target_is_small_and_has_a_mask_of_its_own(nano):
    size = sum(parameter.numel() for parameter in nano.model.parameters())
    assert 1_000_000 <= size <= 3_000_000
    assert nano.vocab_size == nano.decodable == len(nano.tokenizer) == 2048
    assert nano.eos_ids == {nano.tokenizer.convert_tokens_to_ids("<|im_end|>")}
    assert nano.tokenizer.convert_tokens_to_ids("<|mask|>") == 3


def test_the_committed_target_answers_and_ends(nano):
    """Greedy on 12 prompts that it never saw: nearly all end by themselves, and code is code."""
    rows = list(prompts(11, 12))
    answers = Engine(nano).generate(
        [render(nano, row["messages"]) for row in rows], SamplingParams(temperature=0.0, max_new_tokens=160)
    )
    assert sum(answer.finish_reason == "stop" for answer in answers) >= 11
    for row, answer in zip(rows, answers, strict=True):
        assert answer.text.strip()
        assert ("```python\ndef " in answer.text) == (row["source"] == "code") or "from math" in answer.text
