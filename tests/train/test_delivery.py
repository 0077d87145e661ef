"""What a run shows and leaves: trackers, best and last drafters, the card, agreement of both paths, the dry run."""

from __future__ import annotations

import json
import sys
import types
from dataclasses import asdict, replace

import pytest
from accelerate import PartialState
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tests.support.tiny_target import tiny_target
from tests.train.test_trainer import recipe, steps_of  # noqa: F401  recipe is a fixture

from dspine.checkpoint import load_drafter
from dspine.decode.agreement import Agreement
from dspine.errors import ConfigError, DataError, TargetError
from dspine.train import delivery, measure, rehearsal
from dspine.train.card import OURS
from dspine.train.rehearsal import rehearse
from dspine.train.trackers import Trackers
from dspine.train.trainer import train

FEW = ["training.steps=6", "training.learning_rate=1e-2", "evaluate.max_new_tokens=24"]


def test_tensorboard_shows_the_logs_numbers(recipe, tmp_path):  # noqa: F811
    train(recipe, [*FEW, "training.trackers=[tensorboard]", "evaluate.every_steps=3"])
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    lines = steps_of(tmp_path)
    losses = [(event.step, event.value) for event in events.Scalars("loss")]
    assert losses == [(line["step"], pytest.approx(line["loss"], rel=1e-5)) for line in lines]
    second = [event.value for event in events.Scalars("match_by_place/2")]
    assert second == pytest.approx([line["match_by_place"][1] for line in lines], abs=1e-5)
    assert [event.step for event in events.Scalars("acceptance/tau")] == [3, 6]
    for line in lines:
        assert len(line["match_by_place"]) == len(line["acceptance_by_place"]) == 3
        assert all(0 <= share <= 1 for share in line["match_by_place"] + line["acceptance_by_place"])


def test_a_run_that_goes_on_stays_one_run_of_wandb(tmp_path, monkeypatch):
    started, logged, settings = [], [], {}
    run = types.SimpleNamespace(log=lambda values, step: logged.append((step, values)), finish=lambda: None)
    config = types.SimpleNamespace(update=lambda values, allow_val_change: settings.update(values))
    fake = types.SimpleNamespace(init=lambda **given: started.append(given) or run, config=config)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.setattr(PartialState, "_shared_state", {})  # as in a run of one process
    for step in (0, 5):
        trackers = Trackers(["wandb"], tmp_path / "run", {"training": {"steps": 9, "clip": None}}, step=step)
        trackers.log({"loss": 1.5, "skipped": ["a"], "match_by_place": [0.5, 0.25]}, step + 1)
        trackers.close()
    assert started[0]["id"] == started[1]["id"]
    assert started[0]["resume"] == "allow"
    assert settings == {"training/steps": 9, "training/clip": "None"}
    assert logged == [(n, {"loss": 1.5, "match_by_place/1": 0.5, "match_by_place/2": 0.25}) for n in (1, 6)]
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match="wandb, which is not installed"):
        Trackers(["wandb"], tmp_path, {}, step=0)


def test_the_best_drafter_is_kept_beside_the_last(recipe, tmp_path, monkeypatch):  # noqa: F811
    """tau falls after the second measurement; a run that goes on remembers the best."""
    taus = iter([1.5, 2.5, 2.0])
    real = measure.measure_tau
    monkeypatch.setattr(delivery, "measure_tau", lambda *a, **k: replace(real(*a, **k), tau=next(taus)))
    summary = train(recipe, [*FEW, "evaluate.every_steps=2"])
    assert (summary.progress.best_step, summary.progress.best_tau) == (4, 2.5)
    best = json.loads((tmp_path / "run/best/config.json").read_text())
    last = json.loads((tmp_path / "run/drafter/config.json").read_text())
    written = [str(text) for text in (best, last)]
    assert "'steps': 4" in written[0]
    assert "'steps': 6" in written[1]
    assert load_drafter(str(tmp_path / "run/best"), tiny_target()) is not None


def test_the_card_says_what_was_measured_and_never_replaces_ones_own(recipe, tmp_path):  # noqa: F811
    summary = train(recipe, FEW)
    path = tmp_path / "run/drafter/README.md"
    text = path.read_text()
    assert text.startswith(OURS)
    for said in (
        f"tau = {summary.acceptance.tau:.3f}",
        "11 sequences",
        "\n1 more had nothing to train on",
        "in\n6 steps",
        tiny_target().head_digest[:12],
        "learning_rate: 0.01",
        "mask_token: <|mask|>",
    ):
        assert said in text, said
    train(recipe, [*FEW, "training.keep=3"])
    assert path.read_text().startswith(OURS)
    path.write_text("My own words.")
    train(recipe, [*FEW, "training.keep=3"])
    assert path.read_text() == "My own words."


def test_paths_that_differ_are_warned_of(recipe, monkeypatch, capfd):  # noqa: F811
    real = measure.measure_tau
    first = iter([Agreement(0.61, 0.6, 50), Agreement(0.66, 0.6, 50)])
    monkeypatch.setattr(delivery, "measure_tau", lambda *a, **k: replace(real(*a, **k), first_place=next(first)))
    train(recipe, [*FEW, "evaluate.every_steps=3"])
    said = capfd.readouterr().err
    assert said.count("the two paths differ") == 1
    assert "right at 66.0% of 50 places by the training forward, and at 60.0%" in said


def test_a_dry_run_checks_and_times_and_writes_nothing(recipe, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(rehearsal, "load_target", lambda name, dtype=None: tiny_target())
    before = sorted(path.name for path in tmp_path.rglob("*"))
    found = rehearse(recipe)
    assert sorted(path.name for path in tmp_path.rglob("*")) == before
    assert (found.steps, found.sequences, found.made_up) == (20, 11, False), "one of twelve has no anchor"
    assert found.step_seconds > 0
    assert found.hours == pytest.approx(20 * found.step_seconds / 3600)
    assert found.state_bytes == 16 * found.parameters
    assert found.store_bytes > 0
    assert found.target_seconds == 0
    online = rehearse(recipe, ["features.mode=online", "training.micro_batch=2"])
    assert online.hours == pytest.approx(online.steps * (online.step_seconds + online.target_seconds) / 3600)
    apart = rehearse(recipe, ["features.mode=online", "features.devices=[cpu]"])
    assert apart.hours == pytest.approx(apart.steps * max(apart.step_seconds, apart.target_seconds) / 3600)
    with pytest.raises(TargetError, match="no device 'abacus'"):
        rehearse(recipe, ["features.mode=online", "features.devices=[abacus]"])
    assert online.store_bytes == 0
    assert online.target_seconds > 0
    assert asdict(online)["taps"] == (1, 3)
    (tmp_path / "responses.jsonl").unlink()
    assert rehearse(recipe, ["data.max_new_tokens=20"]).made_up
    with pytest.raises(ConfigError, match="is not a token"):
        rehearse(recipe, ["drafter.mask_token=nothing"])


def test_a_dry_run_refuses_what_the_run_would(recipe, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(rehearsal, "load_target", lambda name, dtype=None: tiny_target())
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match="not installed"):
        rehearse(recipe, ["training.trackers=[wandb]"])
    with pytest.raises(ConfigError, match="longer than data"):
        rehearse(recipe, ["data.max_prompt_tokens=2"])
    with pytest.raises(DataError, match="two tokens in a row to train on"):
        rehearse(recipe, ["training.max_length=6"])
    missing = f"data.prompts={tmp_path / 'none.jsonl'}"
    with pytest.raises(DataError, match=r"none\.jsonl"):
        rehearse(recipe, [missing, "data.held_out=1"])
    with pytest.raises(DataError, match="nor prompts"):
        rehearse(recipe, [missing, f"data.responses={tmp_path / 'neither.jsonl'}"])
