"""The nano target: how it is trained, and that the committed one answers."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from dspine.decode.engine import Engine
from dspine.decode.sampling import SamplingParams
from dspine.target import load_target
from dspine.target.chat import completion_mask, render
from dspine.train.nano.batches import IGNORED, Row, batches, collate, encode
from dspine.train.nano.corpus import conversations, prompts
from dspine.train.nano.target import NanoTargetRecipe, train_nano_target

TINY = NanoTargetRecipe(
    conversations=60, tokenizer_conversations=60, vocabulary=300, hidden_size=32, intermediate_size=32, layers=2,
    heads=2, kv_heads=1, head_dim=16, steps=12, batch_tokens=512, warmup_steps=2, log_steps=6,
)  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    lines: list[str] = []
    folder = train_nano_target(tmp_path_factory.mktemp("nano") / "target", TINY, report=lines.append)
    return folder, lines


@pytest.fixture(scope="module")
def nano():
    return load_target("nano")


def test_a_run_learns_and_saves_a_transformers_folder(trained):
    folder, lines = trained
    first, last = (float(re.search(r"loss ([\d.]+)", line)[1]) for line in lines[-2:])
    assert last < first
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype == torch.bfloat16
    assert model.generation_config.eos_token_id == AutoTokenizer.from_pretrained(folder).eos_token_id == 2
    assert [path.name for path in folder.parent.iterdir()] == ["target"]


def test_the_same_recipe_gives_the_same_weights(trained, tmp_path):
    again = train_nano_target(tmp_path / "again", TINY, report=lambda line: None)
    assert (again / "model.safetensors").read_bytes() == (trained[0] / "model.safetensors").read_bytes()
    other = train_nano_target(tmp_path / "other", replace(TINY, seed=2), report=lambda line: None)
    assert (other / "model.safetensors").read_bytes() != (again / "model.safetensors").read_bytes()


def test_a_trained_model_is_never_overwritten(trained):
    with pytest.raises(FileExistsError, match="remove it or give another folder"):
        train_nano_target(trained[0], TINY)


def test_an_interrupted_run_leaves_no_half_written_model(tmp_path):
    def interrupt(line: str) -> None:
        if "step" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_nano_target(tmp_path / "target", TINY, report=interrupt)
    assert not (tmp_path / "target").exists()


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
