"""Only the confidence head of a finished drafter is trained: the drafts stay what they were, bit for bit."""

from __future__ import annotations

import json

import pytest
import torch
from tests.support.tiny_target import tiny_target
from tests.train.test_kinds import NOT_DSPINE
from tests.train.test_trainer import prepared, recipe, steps_of  # noqa: F401  recipe is a fixture

from dspine.checkpoint import drafter_digest, load_drafter
from dspine.decode.engine import Engine
from dspine.decode.sampling import SamplingParams
from dspine.drafter.registry import confidence_head_of
from dspine.errors import ConfigError
from dspine.train.trainer import train

DSPINE = ["drafter.draft_vocabulary=150"]
DSPARK = [*NOT_DSPINE, "drafter.kind=dspark", "drafter.draft_vocabulary=null"]
DFLASH2 = [*NOT_DSPINE, "drafter.kind=dflash2", "drafter.top_k=4", "drafter.draft_vocabulary=null"]
ALONE = ["training.only=confidence", "drafter.draft_vocabulary=null", "training.learning_rate=3e-2"]


def plain(folder):
    return load_drafter(str(folder), tiny_target(), dtype=torch.float32, packed=False)


@pytest.mark.parametrize("kind", [DSPINE, DSPARK, DFLASH2], ids=["dspine", "dspark", "dflash2"])
def test_the_head_learns_and_the_drafter_stays(recipe, tmp_path, kind):  # noqa: F811
    first = train(recipe, [*kind, "training.steps=4", f"output={tmp_path / 'first'}"])
    overrides = [*kind, *ALONE, f"drafter.start_from={first.drafter}", "training.micro_batch=2"]
    assert train(recipe, [*overrides, "training.steps=12"]).finished

    before, after = plain(first.drafter), plain(tmp_path / "run" / "drafter")
    assert after.confident
    frozen = {name: value for name, value in after.state_dict().items() if "confidence_head" not in name}
    theirs = {name: value for name, value in before.state_dict().items() if "confidence_head" not in name}
    assert frozen.keys() == theirs.keys()
    assert all(torch.equal(value, theirs[name]) for name, value in frozen.items())
    assert (before.draft_ids is None) == (after.draft_ids is None)
    assert before.draft_ids is None or torch.equal(before.draft_ids, after.draft_ids)
    head, old = confidence_head_of(after), confidence_head_of(before)
    assert old is None or not torch.equal(head.proj.weight, old.proj.weight)

    lines = steps_of(tmp_path)
    assert lines[-1]["confidence"] < lines[0]["confidence"]
    assert all(line.get("replacement", 0) == 0 for line in lines), "drafts are scored as they are made"
    params = SamplingParams(temperature=0.0, max_new_tokens=12)
    answers = [Engine(tiny_target(), drafter).generate([[5, 6, 7]], params)[0] for drafter in (before, after)]
    assert [r.accepted for r in answers[0].rounds] == [r.accepted for r in answers[1].rounds]
    facts = json.loads((tmp_path / "run/drafter/config.json").read_text())["dspine_format"]["training"]
    assert (facts["only"], facts["start_from"]) == ("confidence", drafter_digest(first.drafter))
    assert "| trained here | the confidence's " in (tmp_path / "run/drafter/README.md").read_text()


def test_it_is_gone_on_with(recipe, tmp_path):  # noqa: F811
    first = train(recipe, ["training.steps=2", f"output={tmp_path / 'first'}"]).drafter
    overrides = [*ALONE, f"drafter.start_from={first}", "training.steps=6"]
    whole = train(recipe, [*overrides, f"output={tmp_path / 'whole'}"]).drafter
    train(recipe, [*overrides, "training.save_steps=3"])
    for stale in (tmp_path / "run" / "checkpoints").glob("step-*6.pt"):
        stale.unlink()
    again = train(recipe, overrides)
    assert again.progress.step == 6
    one, other = plain(whole).state_dict(), plain(again.drafter).state_dict()
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_weights_that_bfloat16_would_round_are_saved_whole(recipe, tmp_path):  # noqa: F811
    first = train(recipe, ["training.steps=2", f"output={tmp_path / 'first'}"]).drafter
    run = prepared(recipe, *ALONE, f"drafter.start_from={first}", "training.steps=2")
    with torch.no_grad():
        run.drafter.backbone.norm.weight.mul_(1.0001)
    fine = run.drafter.backbone.norm.weight.clone()
    from dspine.train.trainer import Trainer

    assert Trainer(run, resume=False).run().finished
    assert torch.equal(plain(tmp_path / "run" / "drafter").backbone.norm.weight, fine)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["training.only=confidence"], "needs drafter.start_from"),
        ([*ALONE, "drafter.start_from=x", "drafter.confidence=false"], "exclude each other"),
        (["training.only=confidence", "drafter.start_from=x"], "drafter.draft_vocabulary would change nothing"),
        ([*ALONE, "drafter.start_from=x", "objective.ce_weight=0.3"], "objective.ce_weight would change nothing"),
    ],
)
def test_what_would_change_nothing_is_refused(recipe, overrides, said):  # noqa: F811
    with pytest.raises(ConfigError, match=said):
        train(recipe, overrides)


def test_another_drafters_sizes_are_refused(recipe, tmp_path):  # noqa: F811
    first = train(recipe, ["training.steps=1", f"output={tmp_path / 'first'}"]).drafter
    start = [*ALONE, f"drafter.start_from={first}"]
    with pytest.raises(ConfigError, match=r"has another block_size \(4\)"):
        prepared(recipe, *start, "drafter.block_size=5")
    bare = ["num_hidden_layers", "target_layer_ids", "block_size", "transfer_rank", "message_size", "top_k"]
    taken = prepared(recipe, *start, *(f"drafter.{name}=null" for name in bare)).drafter.config
    assert (taken.block_size, taken.num_hidden_layers, taken.confidence) == (4, 2, True)
