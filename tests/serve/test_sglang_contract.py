"""What SGLang has to be for the plugin to attach to it, looked at through modules that stand in for it."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from dspine.errors import ServeError
from dspine.serve.sglang import contract


class Worker:
    def accept(self, *, candidates, bonus=None): ...


@pytest.fixture(autouse=True)
def engine(monkeypatch) -> None:
    module = ModuleType("an_engine")
    module.Worker = Worker
    monkeypatch.setitem(sys.modules, "an_engine", module)


def test_a_tested_version_with_the_known_parameters_passes():
    for version in contract.TESTED:
        contract.check(version, {"an_engine:Worker.accept": "self candidates bonus"})


@pytest.mark.parametrize("version", ["0.5.21", "0.5.22.post1", "0.5.24", "0.6.0"])
def test_an_untested_version_is_refused_by_name(version):
    with pytest.raises(ServeError, match=version) as caught:
        contract.check(version, {})
    assert "sglang==0.5.22" in caught.value.fix


@pytest.mark.parametrize(
    ("name", "wanted", "words"),
    [
        ("an_engine:Worker.accept", "self candidates", r"Worker.accept takes \(self, candidates, bonus\)"),
        ("an_engine:Worker.reject", "self", "Worker.reject"),
        ("no_such_engine:Worker", "", "no_such_engine"),
    ],
)
def test_anything_that_is_missing_or_takes_other_parameters_is_named(name, wanted, words):
    with pytest.raises(ServeError, match=words):
        contract.check(contract.TESTED[0], {name: wanted})


def test_all_differences_are_told_at_once():
    with pytest.raises(ServeError) as caught:
        contract.check(contract.TESTED[0], {"an_engine:Worker.accept": "self", "an_engine:Worker.reject": "self"})
    assert "accept" in caught.value.what
    assert "reject" in caught.value.what
