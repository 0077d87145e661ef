"""A whole run on the tiny target: resume, interrupt, bad samples, the files that it leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, replace

import pytest
import torch
import yaml
from tests.support.tiny_target import tiny_target

from dspine.checkpoint import load_drafter
from dspine.config import read_recipe
from dspine.durable import alone
from dspine.errors import ConfigError, DataError, DspineError
from dspine.train import prepare as preparation
from dspine.train import trainer as training
from dspine.train.curriculum import replaced_layers
from dspine.train.responses import ResponseRow
from dspine.train.state import checkpoints
from dspine.train.trainer import Trainer, train


def rows(count=12, prompt=5, response=14):
    generator = torch.Generator().manual_seed(1)

    def ids(size):
        return torch.randint(0, 250, (size,), generator=generator).tolist()

    return [
        ResponseRow(f"r{i}", "test", [], ids(prompt), ids(1 if i == 7 else response + i), "length")
        for i in range(count)
    ]


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """A recipe file for 20 steps over 12 responses, one of them without an anchor, and a held-out prompt."""
    monkeypatch.setattr(preparation, "load_target", lambda name, dtype=None: tiny_target(dtype=dtype or torch.float32))
    responses, prompts = tmp_path / "responses.jsonl", tmp_path / "prompts.jsonl"
    responses.write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows()))
    asked = [{"id": f"p{i}", "source": "test", "prompt": f"Say {i}"} for i in range(14)]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in asked))
    content = {
        "target": "tiny",
        "output": str(tmp_path / "run"),
        "data": {
            "prompts": str(prompts),
            "responses": str(responses),
            "mix": [{"source": "test", "count": 12}],
            "held_out": 1,
        },
        "drafter": {
            "mask_token": "<|mask|>",
            "num_hidden_layers": 2,
            "target_layer_ids": [1, 3],
            "block_size": 4,
            "transfer_rank": 16,
            "message_size": 8,
            "top_k": 4,
            "draft_vocabulary": 200,
        },
        "training": {
            "steps": 20,
            "window_samples": 4,
            "anchors_per_sample": 4,
            "learning_rate": 3e-3,
            "warmup_ratio": 0.2,
            "save_steps": 10,
            "seed": 3,
        },
        "evaluate": {"prompts": 1, "max_new_tokens": 6},
    }
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def log_of(folder):
    return [json.loads(line) for line in (folder / "run" / "log.jsonl").read_text().splitlines()]


def steps_of(folder):
    return [line for line in log_of(folder) if "loss" in line]


def weights(folder):
    return torch.load(checkpoints(folder / "run" / "checkpoints")[-1], weights_only=True)


def test_a_whole_run_leaves_a_drafter_that_loads(recipe, tmp_path):
    summary = train(recipe, ["training.save_steps=7"])
    assert summary.finished
    assert summary.progress.step == 20
    assert (summary.samples, summary.unused) == (11, 1)
    assert summary.acceptance is not None
    assert summary.acceptance.tau >= 1
    lines = steps_of(tmp_path)
    assert [line["step"] for line in lines] == list(range(1, 21))
    assert lines[-1]["ce"] < lines[0]["ce"]
    assert lines[0]["beta"] == 0
    assert lines[4]["beta"] == 0.5
    drafter = load_drafter(str(summary.drafter), tiny_target(), packed=False)
    assert drafter.draft_ids is not None
    assert len(drafter.draft_ids) == 200
    written = json.loads((tmp_path / "run/drafter/config.json").read_text())["dspine_config"]
    assert written["replacement_layers"] == replaced_layers(2) == 1
    trained = weights(tmp_path)["model"]
    for name, value in drafter.state_dict().items():
        assert torch.equal(value.float(), trained[name].bfloat16().float()), name


def prepared(recipe, *overrides):
    return preparation.prepare(read_recipe(recipe, overrides))


def test_a_run_can_start_from_a_drafter(recipe, tmp_path):
    first = train(recipe, ["training.steps=3"]).drafter
    start, aside = f"drafter.start_from={first}", f"output={tmp_path / 'again'}"
    drafter = prepared(recipe, start, aside, "training.seed=5", "drafter.draft_vocabulary=100").drafter
    trained = load_drafter(first, tiny_target(), dtype=torch.float32, packed=False).state_dict()
    assert all(torch.equal(value, trained[name]) for name, value in drafter.state_dict().items())
    with pytest.raises(ConfigError, match=r"start_from .* has another num_hidden_layers \(2\)"):
        prepared(recipe, start, aside, "drafter.num_hidden_layers=3")
    fresh, started = prepared(recipe, aside).identity, prepared(recipe, aside, start).identity
    assert {name for name in fresh if fresh[name] != started[name]} == {"drafter"}


def test_the_recipe_says_the_number_format_of_the_target(recipe):
    run = prepared(recipe, "dtype=bfloat16")
    assert run.target.dtype == torch.bfloat16
    assert run.drafter.dtype == torch.float32


def test_ten_and_a_new_process_and_ten_are_twenty(recipe, tmp_path, monkeypatch):
    whole = train(recipe, [f"output={tmp_path / 'whole'}"])
    cut_short(monkeypatch, 10)
    first = train(recipe)
    assert not first.finished
    assert first.progress.step == 10
    go_on_in_a_new_process(recipe)
    a = torch.load(checkpoints(tmp_path / "whole" / "checkpoints")[-1], weights_only=True)
    b = weights(tmp_path)
    for name in a["model"]:
        assert torch.equal(a["model"][name], b["model"][name]), name
    for key, state in a["optimizer"]["state"].items():
        assert all(torch.equal(value, b["optimizer"]["state"][key][name]) for name, value in state.items())
    assert asdict(whole.progress) | {"seconds": 0} == b["progress"] | {"seconds": 0}
    expected = [json.loads(line) for line in (tmp_path / "whole" / "log.jsonl").read_text().splitlines()]
    # Loss by term, learning rate, beta, replacement probability, gradient norm, blocks and tau, all equal.
    for one, other in zip(expected, log_of(tmp_path), strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}


def go_on_in_a_new_process(recipe):
    script = (
        "import sys\nfrom dspine.train import prepare\nfrom tests.support.tiny_target import tiny_target\n"
        "prepare.load_target = lambda name, dtype: tiny_target()\n"
        "from dspine.train.trainer import train\ntrain(sys.argv[1])\n"
    )
    root = str(training.__file__).split("/src/")[0]
    subprocess.run([sys.executable, "-c", script, str(recipe)], check=True, cwd=root, capture_output=True)


def cut_short(monkeypatch, step):
    """A Ctrl-C in the middle of the given step (from 1)."""
    advance = Trainer._advance

    def interrupted(self, journal):
        if self.progress.step == step - 1:
            os.kill(os.getpid(), signal.SIGINT)
        advance(self, journal)

    monkeypatch.setattr(Trainer, "_advance", interrupted)


def test_ctrl_c_saves_and_says_how_to_go_on(recipe, tmp_path, monkeypatch, capfd):
    cut_short(monkeypatch, 3)
    before = signal.getsignal(signal.SIGINT)
    summary = train(recipe)
    assert not summary.finished
    assert summary.progress.step == 3
    assert [path.name for path in checkpoints(tmp_path / "run" / "checkpoints")] == ["step-0000003.pt"]
    assert "Interrupted at step 3; give the same command again to go on." in capfd.readouterr().err
    assert signal.getsignal(signal.SIGINT) is before


def test_two_processes_do_not_write_one_run(recipe, tmp_path):
    train(recipe, ["training.steps=2"])
    log = (tmp_path / "run" / "log.jsonl").read_bytes()
    for resume in (True, False):
        with (
            alone(tmp_path / "run", "the run in"),
            pytest.raises(DataError, match="another process is writing"),
        ):
            train(recipe, ["training.steps=2"], resume=resume)
        assert (tmp_path / "run" / "log.jsonl").read_bytes() == log
        assert checkpoints(tmp_path / "run" / "checkpoints")
    train(recipe, ["training.steps=2"])  # let go at the end


def test_a_measurement_that_a_kill_left_out_is_made_up_for(recipe, tmp_path, monkeypatch):
    """Killed when the checkpoint of a step was written and its tau not yet measured."""
    asked = ["evaluate.every_steps=5", "training.save_steps=5"]
    whole = train(recipe, [*asked, f"output={tmp_path / 'whole'}"])

    def killed(self, journal):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_measure", killed)
        with pytest.raises(KeyboardInterrupt):
            train(recipe, asked)
    assert weights(tmp_path)["progress"]["step"] == 5
    assert train(recipe, asked).progress.best_step == whole.progress.best_step

    def measured(folder):
        lines = [json.loads(line) for line in (tmp_path / folder / "log.jsonl").read_text().splitlines()]
        return [line["step"] for line in lines if "acceptance" in line]

    assert measured("run") == measured("whole") == [5, 10, 15, 20]
    cut_short(monkeypatch, 15)  # a signal in the step before a measurement, which it does not wait for
    train(recipe, [*asked, f"output={tmp_path / 'run'}"], resume=False)
    monkeypatch.undo()


def test_old_checkpoints_go(recipe, tmp_path):
    train(recipe, ["training.save_steps=4", "training.keep=2", "evaluate.prompts=0"])
    names = [path.name for path in checkpoints(tmp_path / "run" / "checkpoints")]
    assert names == ["step-0000016.pt", "step-0000020.pt"]


def test_another_recipe_does_not_go_on_from_a_checkpoint(recipe):
    train(recipe, ["training.steps=2", "evaluate.prompts=0"])
    with pytest.raises(ConfigError, match="differs in training"):
        train(recipe, ["training.steps=3", "evaluate.prompts=0"])
    summary = train(recipe, ["training.steps=3", "evaluate.prompts=0"], resume=False)
    assert summary.progress.step == 3


def test_a_full_disk_leaves_the_last_checkpoint(recipe, tmp_path, monkeypatch):
    def full(content, file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    train(recipe, ["evaluate.prompts=0"])
    for path in checkpoints(tmp_path / "run" / "checkpoints")[1:]:
        path.unlink()
    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(DataError, match="no space left on the disk"):
        train(recipe, ["evaluate.prompts=0"])
    left = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert left == ["step-0000010.pt"]


def poison(monkeypatch, names):
    """The features of these samples become NaN on their way into the step."""
    load = preparation.FeatureStore.load

    def loaded(self, sample_ids):
        batch = load(self, sample_ids)
        bad = [row for row, name in enumerate(batch.sample_ids) if name in names]
        features = batch.features.clone()
        features[bad, 6] = float("nan")
        return replace(batch, features=features)

    monkeypatch.setattr(preparation.FeatureStore, "load", loaded)


def test_a_nan_sample_is_named_and_moves_no_weight(recipe, tmp_path, monkeypatch, capfd):
    poison(monkeypatch, {"r3"})
    seen = []
    step = training.Learner.step

    def watched(self, parts, moment):
        before = {name: p.clone() for name, p in self.drafter.named_parameters()}
        report = step(self, parts, moment)
        same = all(torch.equal(before[name], p) for name, p in self.drafter.named_parameters())
        seen.append((report.bad, same))
        return report

    monkeypatch.setattr(training.Learner, "step", watched)
    summary = train(recipe, ["training.steps=6", "evaluate.prompts=0"])
    assert all(same == bool(bad) for bad, same in seen)
    skipped = [bad for bad, _ in seen if bad]
    assert skipped == [("r3",)] * summary.progress.skipped
    assert summary.progress.skipped == 2  # once an epoch of three windows
    assert [line["skipped"] for line in steps_of(tmp_path) if "skipped" in line] == [["r3"], ["r3"]]
    assert "Samples: r3" in capfd.readouterr().err
    state = weights(tmp_path)
    assert all(value.isfinite().all() for value in state["model"].values())


def test_the_log_is_json_where_a_loss_is_not_finite(recipe, tmp_path, monkeypatch):
    poison(monkeypatch, {"r3"})
    train(recipe, ["training.steps=6", "evaluate.prompts=0"])

    def refused(name):
        raise AssertionError(f"{name} is no JSON")

    text = (tmp_path / "run" / "log.jsonl").read_text()
    lines = [json.loads(line, parse_constant=refused) for line in text.splitlines()]
    assert any(line["loss"] is None for line in lines if line.get("skipped"))


def test_what_a_run_says_is_no_markup(recipe, tmp_path, monkeypatch, capfd):
    path = tmp_path / "responses.jsonl"
    path.write_text(path.read_text().replace('"r3"', '"r[/3]"'))
    poison(monkeypatch, {"r[/3]"})
    train(recipe, ["training.steps=3", "evaluate.prompts=0"])
    assert "Samples: r[/3]" in capfd.readouterr().err


def test_nothing_but_bad_steps_ends_the_run(recipe, monkeypatch):
    poison(monkeypatch, {f"r{i}" for i in range(12)})
    with pytest.raises(DataError, match="3 steps in a row"):
        train(recipe, ["training.bad_steps=3", "evaluate.prompts=0"])


def test_bfloat16_products_train_float32_weights(recipe, tmp_path):
    train(recipe, ["training.precision=bfloat16", "evaluate.prompts=0"])
    assert {value.dtype for value in weights(tmp_path)["model"].values()} == {torch.float32}
    lines = steps_of(tmp_path)
    assert lines[-1]["ce"] < lines[0]["ce"]


def test_held_out_prompts_come_from_every_source_in_turn(recipe, tmp_path):
    asked = [
        {"id": f"{s}{i}", "source": s, "prompt": f"{s}{i}" * (9 if s == "c" else 1)} for s in "abc" for i in range(4)
    ]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    mix = "data.mix=[{source: a, count: 2}, {source: b, count: 2, suffix: '!'}, {source: c, count: 1}]"
    given = read_recipe(recipe, [mix, "data.held_out=2", "evaluate.prompts=3", "data.max_prompt_tokens=30"])
    target = tiny_target()
    texts = [target.tokenizer.decode(ids) for ids in preparation.held_out_prompts(given, target)]
    sources = ["a" if "\na" in text else "b" for text in texts]
    assert sources == ["a", "b", "a"], "c is too long"
    assert ["!" in text for text in texts] == [False, True, False]
    assert len(set(texts)) == 3
    with pytest.raises(DataError, match="held-out prompts are among the responses to train on"):
        preparation.held_out_prompts(given, target, {row["id"] for row in asked})


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.stepz=3", r"unknown key 'training.stepz': did you mean 'steps'\?$"),
        ("trainin.steps=3", r"unknown key 'trainin': did you mean 'training'\?$"),
        ("data.mix=[{sauce: a}]", r"unknown key 'data.mix.0.sauce': did you mean 'source'\?"),
        ("training.colour=3", r"unknown key 'training.colour'\nKeys of training: steps, epochs, window_samples, .*\.$"),
        ("data.mix=[{x: 1, y: 2}]", r"mix.0.x'; unknown key 'data.mix.0.y'\nKeys of data.mix: source, count, suffix.$"),
        ("colour=3", r"unknown key 'colour'\nKeys of a recipe: target, "),
        ("training.epochs=3", r"'training': give exactly one of steps and epochs"),
        ("training.precision=half", r"'training.precision': Input should be 'float32' or 'bfloat16'"),
        ("training.clip=.nan", r"'training.clip'"),
        ("target=null", r"'target'"),
        ("steps", r"--set 'steps' is not of the form section.key=value"),
        ("target.name=a", r"target is not a section"),
        ("data.held_out=[", r"not valid YAML"),
    ],
)
def test_faults_of_a_recipe_are_named(recipe, override, message):
    with pytest.raises(ConfigError, match=message):
        read_recipe(recipe, [override])


def test_broken_and_missing_recipes(tmp_path):
    with pytest.raises(ConfigError, match="cannot read the recipe"):
        read_recipe(tmp_path / "none.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [1,")
    with pytest.raises(ConfigError, match="not valid YAML"):
        read_recipe(broken)
    broken.write_text("just text")
    with pytest.raises(ConfigError, match="top level must be a mapping"):
        read_recipe(broken)


@pytest.mark.parametrize(
    ("token", "error"), [("<|nothing|>", "is not a token"), ("<|eos|>", "eos"), ("<|im_start|>", "chat template")]
)
def test_a_mask_token_that_will_not_do(recipe, token, error):
    with pytest.raises(DspineError, match=error):
        train(recipe, [f"drafter.mask_token='{token}'"])


def test_features_online_train_the_same_drafter_without_a_disk(recipe, tmp_path):
    exact = ["features.dtype=float32", "training.steps=4", "evaluate.prompts=0"]
    train(recipe, exact)
    train(recipe, [*exact, "features.mode=online", f"output={tmp_path / 'online'}"])
    stored = [line["loss"] for line in steps_of(tmp_path)]
    online = [json.loads(line)["loss"] for line in (tmp_path / "online/log.jsonl").read_text().splitlines()]
    assert online == pytest.approx(stored, rel=1e-4)
    assert not (tmp_path / "online" / "features").exists()


def test_a_store_beyond_the_bound_is_refused_before_it_is_written(recipe, tmp_path):
    with pytest.raises(DataError, match=r"more than the bound of 0\.00 GB\nRaise features\.max_gigabytes to .*online"):
        train(recipe, ["features.max_gigabytes=1.0e-6"])
    assert not list((tmp_path / "run" / "features").iterdir())
