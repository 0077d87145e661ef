"""Features from a process of its own: the batches and the run of the same process, its faults and its end."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from dataclasses import fields

import pytest
import torch
from tests.support.tiny_target import tiny_target
from tests.train.test_online import ROWS
from tests.train.test_trainer import recipe, steps_of, weights  # noqa: F401  recipe is a fixture
from torch import Tensor

from dspine.config import read_recipe
from dspine.errors import ConfigError, TargetError
from dspine.target import load_target
from dspine.train import prepare as preparation
from dspine.train.apart import FeaturesApart, Parcel
from dspine.train.online import OnlineFeatures
from dspine.train.prepare import prepare
from dspine.train.processes import Processes
from dspine.train.sequences import encode, trainable
from dspine.train.trainer import train

GROUPS = [["r3", "r0"], ["r4"], ["r1", "r2", "r0"], ["r2"], ["r4", "r3"]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A target that another process can load."""
    path = tmp_path_factory.mktemp("apart") / "target"
    target = tiny_target()
    target.model.save_pretrained(path)
    target.tokenizer.save_pretrained(path)
    return path


def apart(folder, ahead=2):
    target = load_target(str(folder), dtype=torch.float32, device="cpu")
    return FeaturesApart(OnlineFeatures(target, ROWS, (1, 4)), "cpu", ahead)


def worker():
    """Of this process, its id."""
    [child] = [child for child in multiprocessing.active_children() if "Spawn" in type(child).__name__]
    return child.pid


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()[0] != "Z"


def wait_until(true, seconds=60):
    for _ in range(seconds * 10):
        if true():
            return True
        time.sleep(0.1)
    return False


def test_the_batches_are_those_of_this_process_made_ahead_and_its_death_is_a_fault(folder):
    features, taken = apart(folder), []

    def groups():
        for names in GROUPS:
            taken.append(names)
            yield names

    stream = features.stream(groups())
    for number, names in enumerate(GROUPS):
        found, expected = next(stream), features.online.load(names)
        assert len(taken) == min(len(GROUPS), number + 1 + features.ahead), "so many are made ahead, and no more"
        assert found.sample_ids == expected.sample_ids
        for field in fields(found):
            if isinstance(value := getattr(expected, field.name), Tensor):
                assert torch.equal(getattr(found, field.name), value), field.name
        if number == 2:  # what comes to the whole group of processes is the trainer's to answer
            os.kill(worker(), signal.SIGINT)
            os.kill(worker(), signal.SIGTERM)
    pid = worker()
    assert list(stream) == []
    assert wait_until(lambda: not alive(pid))

    stream = features.stream(GROUPS)
    next(stream)
    os.kill(worker(), signal.SIGKILL)
    with pytest.raises(TargetError, match="process that makes features on cpu was killed"):
        list(stream)


def test_a_signal_to_the_whole_group_does_not_end_a_process_that_is_starting(folder):
    """Ctrl-C reaches it too, before it has imported what it needs: the training process alone decides."""

    def interrupt():
        while not multiprocessing.active_children():
            time.sleep(0.001)
        for kind in (signal.SIGINT, signal.SIGTERM):
            os.kill(worker(), kind)
        told.append(True)

    told = []
    hand = threading.Thread(target=interrupt)
    hand.start()
    batches = list(apart(folder).stream(GROUPS[:1]))
    hand.join()
    assert told
    assert [batch.ids.shape[0] for batch in batches] == [len(GROUPS[0])]


def test_a_parcel_holds_nothing_back():
    target = tiny_target(dtype=torch.float64)
    encoded = list(encode(target, trainable(target, ROWS, 12)[0], (1, 4), torch.bfloat16))
    for before, after in zip(encoded, Parcel.of(encoded).opened(torch.device("cpu")), strict=True):
        for field in fields(before):
            one, other = getattr(before, field.name), getattr(after, field.name)
            assert torch.equal(one, other) if isinstance(one, Tensor) else one == other


def endlessly(folder, queue):
    torch.set_num_threads(1)
    stream = apart(folder).stream(GROUPS * 1000)
    next(stream)
    queue.put(worker())
    for _ in stream:
        time.sleep(0.05)


def test_no_process_outlives_a_trainer_that_is_killed(folder):
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    trainer = context.Process(target=endlessly, args=(folder, queue))
    trainer.start()
    pid = queue.get()
    assert alive(pid)
    trainer.kill()
    trainer.join()
    assert wait_until(lambda: not alive(pid))


def test_what_the_process_meets_is_raised_here_with_its_cause(folder, tmp_path):
    features = apart(folder)
    features.online.target.name = str(tmp_path / "moved")
    with pytest.raises(TargetError, match="there is no folder") as caught:
        next(features.stream(GROUPS))
    assert caught.value.fix
    assert "in place_of" in str(caught.value.__cause__)
    assert not multiprocessing.active_children()


def test_a_run_is_the_same_with_the_target_in_a_process_of_its_own(folder, recipe, tmp_path, monkeypatch):  # noqa: F811
    def load(name, dtype=None):
        return load_target(name, dtype=dtype or torch.float32, device="cpu")

    monkeypatch.setattr(preparation, "load_target", load)
    found = []
    for devices in ([], ["cpu"]):
        overrides = [f"target={folder}", "features.mode=online", f"features.devices={devices}", "training.steps=8"]
        assert train(recipe, [*overrides, "training.micro_batch=3"], resume=False).finished
        found.append((weights(tmp_path)["model"], [line["loss"] for line in steps_of(tmp_path)]))
    (here, losses), (there, same_losses) = found
    assert losses == same_losses
    assert len(losses) == 8
    assert all(torch.equal(value, there[name]) for name, value in here.items())
    assert not multiprocessing.active_children()


def test_training_processes_take_the_devices_in_turn(recipe):  # noqa: F811
    given = read_recipe(recipe, ["features.mode=online", "features.devices=[cpu, 'cpu:0']", "features.ahead=5"])
    stores = [prepare(given, Processes(local=local)).store for local in range(3)]
    assert [store.device for store in stores] == ["cpu", "cpu:0", "cpu"]
    assert stores[0].ahead == 5


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["features.devices=[cpu]"], "devices needs mode online"),
        (["features.mode=online", "features.ahead=3"], "ahead needs devices"),
    ],
)
def test_what_would_change_nothing_is_refused(recipe, overrides, said):  # noqa: F811
    with pytest.raises(ConfigError, match=said):
        read_recipe(recipe, overrides)


def test_a_device_that_is_not_there_is_refused_before_anything_is_made(recipe, tmp_path):  # noqa: F811
    with pytest.raises(TargetError, match="there is no device 'abacus'"):
        train(recipe, ["features.mode=online", "features.devices=[abacus]"])
    assert not (tmp_path / "run").exists()
