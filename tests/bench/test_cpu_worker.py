"""Engines in processes of their own, on the nano target: same tokens from all, and a death that is told."""

from __future__ import annotations

import pytest

from cpu_contestants import CONTESTANTS, Setting
from cpu_cost import PLAIN_TIMES, WIDTHS, measure_cost
from cpu_figures import tau_of
from cpu_process import Pool, Worker
from cpu_setup import gguf_files, look_up

CAP = 12


@pytest.fixture(scope="module")
def setup():
    return look_up("nano", "nano", ["Mia has 3 apples and buys 4 more. How many apples does she have?"])


@pytest.fixture(scope="module")
def pool(setup):
    with Pool(setup.places, {}) as pool:
        yield pool


def answered(pool, setup, name, **options):
    contestant = CONTESTANTS[name]
    return pool.answer(Setting(contestant, 1, {**contestant.options[0], **options}), setup.ids[0], CAP)


def test_our_engine_tells_its_rounds_and_what_came_after_the_prefill(pool, setup):
    plain = answered(pool, setup, "dspine-plain")
    assert 1 < len(plain["tokens"]) <= CAP
    assert plain["decode_tokens"] == len(plain["tokens"]) - 1  # the first came with the prefill
    assert 0 < plain["decode_seconds"] < plain["seconds"]
    assert plain["rounds"] == []
    drafted = answered(pool, setup, "dspine")
    assert drafted["tokens"] == plain["tokens"]
    assert sum(kept for _, kept in drafted["rounds"]) == drafted["decode_tokens"]
    assert tau_of([drafted]) > 1
    branched = answered(pool, setup, "dspine", verify="tree:4")
    assert branched["tokens"] == plain["tokens"]
    assert max(verified for verified, _ in branched["rounds"]) == 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["transformers", "transformers-lookup", "transformers-assisted"])
def test_transformers_says_the_same(pool, setup, name):
    exits = {"assistant_early_exit": 1} if name == "transformers-assisted" else {}  # nano has fewer layers than smollm2
    plain, theirs = answered(pool, setup, "dspine-plain"), answered(pool, setup, name, **exits)
    assert theirs["tokens"] == plain["tokens"]
    # The first forward may confirm several tokens; none of them was decoded after the prefill.
    assert 0 < theirs["decode_tokens"] < len(plain["tokens"])
    assert 0 < theirs["decode_seconds"] < theirs["seconds"]


def test_the_cost_table_has_every_width(pool, setup):
    worker = pool.worker(CONTESTANTS["dspine"], 1)
    cost = measure_cost(worker, setup.ids, CAP, context=20, repeats=1)
    assert tuple(cost.verify) == WIDTHS
    assert min(*cost.verify.values(), cost.plain, cost.draft) > 0
    assert 0 < cost.forward_share < 1
    kinds = [(1, False)] * PLAIN_TIMES
    seconds = worker.ask("cost", ids=setup.ids[0][:9], kinds=kinds, repeats=2)["seconds"]
    assert [len(each) for each in seconds] == [2] * PLAIN_TIMES


def test_contestants_with_one_engine_share_a_process_until_it_is_not_kept(pool, setup):
    drafted, plain = CONTESTANTS["dspine"], CONTESTANTS["dspine-plain"]
    worker = pool.worker(drafted, 1)
    assert pool.worker(plain, 1) is worker
    pool.keep([Setting(plain, 1, {})])
    assert pool.worker(drafted, 1) is worker
    assert pool.facts["torch"]


def test_an_engine_that_ends_is_told(capfd):
    with pytest.raises(SystemExit, match="abacus"):
        Worker({"kind": "abacus", "weights": "beads"}, 1)
    assert "KeyError: 'abacus'" in capfd.readouterr().err


def test_llama_cpp_is_refused_where_it_cannot_run(monkeypatch):
    with pytest.raises(SystemExit, match="only smollm2"):
        gguf_files("nano")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="pip install xllamacpp"):
        gguf_files("smollm2")
