"""The doctor on planted faults of the shipped nano drafter: each is named, and the healthy one is called healthy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.train.test_agreement import half_learned
from torch import Tensor

from dspine.checkpoint import export_drafter, find_drafter, load_drafter, read_config, save_drafter
from dspine.decode.engine import Engine
from dspine.decode.sampling import SamplingParams
from dspine.drafter.backbone import RotaryEmbedding
from dspine.evaluate.doctor import HEALTHY, Diagnosis, diagnose
from dspine.evaluate.forcing import Passage, forced
from dspine.target import Target, load_target
from dspine.target.chat import render
from dspine.train.nano.corpus import prompts

pytestmark = pytest.mark.filterwarnings("ignore::dspine.checkpoint.CheckpointWarning")


@pytest.fixture(scope="module")
def target() -> Target:
    return load_target("nano", dtype=torch.float32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the shipped drafter."""
    return Path(shutil.copytree(find_drafter("nano"), tmp_path / "drafter"))


@pytest.fixture
def specforge(target: Target, tmp_path: Path) -> Path:
    """The shipped drafter in SpecForge's layout, which holds the codes."""
    export_drafter("nano", tmp_path / "specforge", target)
    return tmp_path / "specforge"


def examined(
    target: Target,
    folder: Path,
    plant: Callable[[torch.nn.Module], None] | None = None,
    count: int = 6,
    max_new_tokens: int = 48,
) -> Diagnosis:
    drafter = load_drafter(folder, target, packed=False)
    if plant is not None:
        plant(drafter)
    asked = [render(target, row["messages"]) for row in prompts(21, count)]
    return diagnose(target, drafter, read_config(folder), asked, max_new_tokens=max_new_tokens)


def configured(folder: Path, key: str, value: object, section: str | None = None) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    (config[section] if section else config)[key] = value
    path.write_text(json.dumps(config))


def recoded(folder: Path, change: Callable[[Tensor], Tensor]) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["transfer_codes"] = change(tensors["transfer_codes"]).contiguous()
    save_file(tensors, folder / "model.safetensors")


def test_a_healthy_drafter(target: Target, folder: Path) -> None:
    found = examined(target, folder)
    assert found.verdict == HEALTHY
    assert found.findings == ()
    assert found.tau > 3
    assert found.first_place.teacher_forced == pytest.approx(found.first_place.generated, abs=1e-6)
    assert len(found.forced) == 7
    assert found.cosine > 0.6
    assert found.pair.same_template
    assert json.loads(json.dumps(found.as_json()))["verdict"] == HEALTHY


@pytest.mark.slow
def test_taps_off_by_one(target: Target, folder: Path) -> None:
    configured(folder, "target_layer_ids", [0, 2, 3], "dflash_config")
    found = examined(target, folder, count=16, max_new_tokens=96)  # it costs two points: many anchors tell
    assert found.verdict == "taps"
    assert "[1, 3, 4]" in found.findings[0].says


@pytest.mark.slow
def test_a_wrong_rotary_base(target: Target, folder: Path) -> None:
    configured(folder, "rope_theta", 1e6)
    found = examined(target, folder)
    assert found.verdict == "rope"
    assert "10000" in found.findings[0].says
    assert found.findings[0].gain.accuracy > 0.2


def test_another_template(folder: Path) -> None:
    target = load_target("nano", dtype=torch.float32)
    target.tokenizer.chat_template = target.tokenizer.chat_template.replace("assistant\n", "assistant\n\n")
    found = examined(target, folder)
    assert found.verdict == "template"
    assert not found.pair.same_template


@pytest.mark.parametrize("token", [pytest.param(500, marks=pytest.mark.slow), 2047])
def test_a_wrong_mask_token(target: Target, folder: Path, token: int) -> None:
    """The second changes what is predicted, and is found by that too."""
    configured(folder, "mask_token_id", token, "dflash_config")
    found = examined(target, folder)
    assert found.verdict == "mask_token"
    restored = [finding for finding in found.findings if finding.gain]
    assert bool(restored) is (token == 2047)
    assert all("<|mask|>" in finding.says for finding in restored)


@pytest.mark.slow
def test_shuffled_codes(target: Target, specforge: Path) -> None:
    order = torch.randperm(2048, generator=torch.Generator().manual_seed(1))
    recoded(specforge, lambda codes: codes[order])
    found = examined(target, specforge)
    assert found.verdict == "codes"
    assert found.cosine < 0.1
    assert found.findings[0].gain.accuracy > 0.1


def test_codes_of_half_precision(target: Target, specforge: Path) -> None:
    recoded(specforge, lambda codes: codes.half())
    found = examined(target, specforge)
    assert found.verdict == "codes_rounded"
    assert found.pair.codes.stored == "F16"


@pytest.mark.slow
def test_codes_of_wrong_size(target: Target, specforge: Path) -> None:
    def plant(drafter: torch.nn.Module) -> None:
        drafter.space = replace(drafter.space, codes=drafter.space.codes * 1.5)

    found = examined(target, specforge, plant, count=3)
    assert "codes" in [finding.cause for finding in found.findings]
    assert any("norms of 1.5" in finding.says for finding in found.findings)


@pytest.mark.parametrize(
    ("step", "which"), [(-1, "next place"), pytest.param(1, "place before", marks=pytest.mark.slow)]
)
def test_rows_off_by_one(target: Target, folder: Path, step: int, which: str) -> None:
    """Rows that predict the neighbour's token, in training and decoding alike."""

    def plant(drafter: torch.nn.Module) -> None:
        real = drafter._states

        def states(*arguments, **named):
            found = real(*arguments, **named)
            return replace(found, hidden=found.hidden.roll(step, 1), last=found.last.roll(step, 1))

        drafter._states = states

    found = examined(target, folder, plant)
    assert found.verdict == "rows"
    assert which in found.findings[0].says


@pytest.mark.slow
def test_decoding_that_differs_from_training(target: Target, folder: Path) -> None:
    def plant(drafter: torch.nn.Module) -> None:
        real, right = drafter.propose, drafter.backbone.rotary

        def propose(*arguments):
            drafter.backbone.rotary = RotaryEmbedding(drafter.config.head_dim, 1e7)
            try:
                return real(*arguments)
            finally:
                drafter.backbone.rotary = right

        drafter.propose = propose

    found = examined(target, folder, plant)
    assert found.verdict == "decoding"


def test_a_trial_leaves_the_network_as_it_was(target: Target, folder: Path) -> None:
    drafter = load_drafter(folder, target, packed=False)
    before = (drafter.form, drafter.space, drafter.backbone.rotary, drafter.training)
    asked = [render(target, row["messages"]) for row in prompts(21, 2)]
    diagnose(target, drafter, read_config(folder), asked, max_new_tokens=24)
    after = (drafter.form, drafter.space, drafter.backbone.rotary, drafter.training)
    assert all(one is other for one, other in zip(before, after, strict=True))


OTHERS: dict[str, dict[str, object]] = {
    "dflash": {},
    "domino": {},
    "dspark": {"markov_head": "rnn"},
    "dspark, tabulated": {"tabulated": 3},
    "dflash2": {},
    "eagle3": {},
}


@pytest.mark.parametrize("case", OTHERS)
def test_drafters_of_other_kinds(tmp_path: Path, case: str) -> None:
    """What they propose after correct tokens is what they propose in generation where the tokens before stand."""
    target, drafter, _, asked = half_learned(case.split(",")[0], **OTHERS[case])
    save_drafter(drafter.eval(), tmp_path / "d", target=target, training={}, dtype=torch.float32)
    found = diagnose(target, drafter, read_config(tmp_path / "d"), asked, max_new_tokens=14)
    assert found.pair.kind == case.split(",")[0]
    assert found.pair.codes is None
    assert found.first_place.rounds > 30
    assert 0.1 < found.first_place.generated < 0.98
    assert found.first_place.teacher_forced == pytest.approx(found.first_place.generated, abs=1e-6)
    assert "decoding" not in [finding.cause for finding in found.findings]


def test_teacher_forcing_by_hand(target: Target, folder: Path) -> None:
    """Accuracy of the refined output, one anchor at a time."""
    drafter = load_drafter(folder, target, packed=False)
    asked = [render(target, row["messages"]) for row in prompts(21, 1)]
    [answer] = Engine(target, drafter).generate(asked, SamplingParams(temperature=0.0, max_new_tokens=20))
    passage = Passage.of(target, answer, (1, 3, 4))
    found = forced(drafter, [passage])
    ids = [*answer.prompt_ids, *answer.token_ids]
    for row, anchor in enumerate(passage.anchors.tolist()):
        tokens = torch.tensor([[[*ids[anchor : anchor + 8], *[0] * 8][:8]]])
        states = drafter.blocks(passage.tapped((1, 3, 4)), torch.tensor([len(ids)]), torch.tensor([[anchor]]), tokens)
        for place in range(1, 8):
            assert bool(found.known[row, place - 1]) is (anchor + place < len(ids))
            if anchor + place < len(ids):
                refined = drafter.refine(states.last[0, 0, place - 1], tokens[0, 0, place - 1])
                scores = drafter.head @ states.hidden[0, 0, place - 1]
                candidates = scores.topk(8).indices
                chosen = int(candidates[(drafter.head[candidates] @ refined).argmax()])
                assert bool(found.right[row, place - 1]) is (chosen == ids[anchor + place])
                expected = scores.log_softmax(-1)[ids[anchor + place]]
                torch.testing.assert_close(found.likelihood[row, place - 1], expected, atol=1e-4, rtol=1e-4)
