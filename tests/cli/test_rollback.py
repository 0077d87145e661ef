"""`--rollback`: how the states of a hybrid target are brought back, from the command line."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from tests.cli.conftest import assert_fault, parsed
from tests.support.hybrid_target import hybrid_target
from tests.support.tiny_drafter import tiny_drafter

from dspine.checkpoint import save_drafter
from dspine.errors import ConfigError
from dspine.target import load_target


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """Folders of a hybrid target and its drafter."""
    root = tmp_path_factory.mktemp("hybrid")
    target = hybrid_target("qwen3_5", dtype=torch.float32)
    target.model.save_pretrained(root / "target")
    target.tokenizer.save_pretrained(root / "target")
    network = tiny_drafter(target, target_layer_ids=(1, 2), lively=True)
    save_drafter(network, root / "drafter", target=target, training={}, dtype=torch.float32)
    return SimpleNamespace(target=str(root / "target"), drafter=str(root / "drafter"))


def test_both_ways_give_the_plain_answer_and_are_named_beside_it(run, hybrid):
    words = ("generate", "Once upon", "-n", 24, "--ignore-eos", "--json", "--target", hybrid.target)
    plain = parsed(run(*words, "--no-drafter"))
    assert "rollback" not in plain
    for way in ("snapshot", "replay"):
        drafted = parsed(run(*words, "--drafter", hybrid.drafter, "--verify", "full", "--rollback", way))
        assert drafted["token_ids"] == plain["token_ids"]
        assert drafted["proposed"] > drafted["accepted"]
        assert drafted["rollback"] == way
    assert parsed(run(*words, "--drafter", hybrid.drafter, "-n", 2))["rollback"] == "auto"


def test_eval_keeps_the_answers_of_each_way_apart(run, hybrid, tmp_path):
    (tmp_path / "ours.jsonl").write_text('{"prompt": "Hello"}\n')
    words = ("eval", hybrid.target, hybrid.drafter, "--tasks", tmp_path / "ours.jsonl", "--temperature", 0)
    for way in ("snapshot", "replay"):
        [report] = parsed(run(*words, "--max-new-tokens", 4, "--out", tmp_path, "--rollback", way, "--json"))
        assert report["measured_on"]["rollback"] == way
    names = {path.name for path in tmp_path.glob("acceptance-*")}
    assert len(names) == 2
    assert {name.split("-")[-2] for name in names} == {"snapshot", "replay"}


def test_bench_says_how_states_were_brought_back(run, hybrid, tmp_path):
    words = ("bench", hybrid.target, hybrid.drafter, "--concurrency", 1, "--waves", 1, "--runs", 1, "--predict", "")
    out = parsed(run(*words, "--max-new-tokens", 3, "--out", tmp_path, "--rollback", "replay", "--json"))
    assert out["measured_on"]["rollback"] == "replay"


@pytest.mark.parametrize("words", [("generate", "Hello"), ("eval",), ("bench",), ("serve", "--port", "0")], ids=str)
def test_a_target_without_states_refuses_a_way_by_name(run, models, words):
    named = (models.target, models.drafter)
    if words[0] in ("generate", "serve"):
        named = ("--target", models.target, "--drafter", models.drafter)
    result = run(*words, *named, "--rollback", "replay")
    assert_fault(result, 1, "rollback is 'replay'", "no layers that keep a state", "Leave it out")


def test_loading_refuses_it_too(models):
    with pytest.raises(ConfigError, match="rollback is 'snapshot'"):
        load_target(models.target, rollback="snapshot")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("generate", "Hello", "--no-drafter"), "--no-drafter leaves --rollback nothing to do"),
        (("serve", "--no-drafter"), "--no-drafter leaves --rollback nothing to do"),
        (("generate", "Hello", "--backend", "mlx"), "--rollback are the torch backend's"),
        (("bench", "model", "--endpoint", "http://127.0.0.1:9/v1"), "leave out --rollback"),
    ],
    ids=str,
)
def test_where_nothing_is_brought_back_it_is_refused(run, words, why):
    assert_fault(run(*words, "--rollback", "snapshot"), 2, why)
