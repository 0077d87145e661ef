"""A contest: the same load for all, laps that are whole, and results from which it goes on."""

from __future__ import annotations

from itertools import islice

import pytest
from tests.support.tiny_drafter import tiny_drafter
from tests.support.tiny_target import tiny_target

from dspine.decode import costbook
from dspine.decode.cost import Costs
from dspine.decode.engine import Engine
from dspine.decode.sampling import SamplingParams
from dspine.evaluate.contest import Contest, run_key, stage_key
from dspine.evaluate.load import serve
from dspine.evaluate.results import read_results
from dspine.evaluate.round_time import predicted_speedup, round_time
from dspine.evaluate.throughput import measure_contest, result_file
from dspine.stages import StageClock, StageTime, stage

PARAMS = SamplingParams(max_new_tokens=9, ignore_eos=True)
PROMPTS = [[10 + i] * (3 + i) for i in range(5)]


@pytest.fixture(scope="module")
def target():
    return tiny_target()


@pytest.fixture(autouse=True)
def cost_tables_of_this_test_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(costbook, "cache_root", lambda: tmp_path)


@pytest.fixture
def contest(target):
    drafters = {"tiny": tiny_drafter(target, lively=True)}
    return Contest(target, drafters, PROMPTS, PARAMS, waves=2, runs=2)


def test_a_load_is_served_whole_and_never_more_at_once(target, monkeypatch):
    engine = Engine(target, tiny_drafter(target, lively=True), max_batch=3)
    most = []
    step = Engine.step
    monkeypatch.setattr(Engine, "step", lambda self: most.append(self.pending) or step(self))
    load = serve(engine, PROMPTS, PARAMS, 2)
    assert max(most) == 2
    assert [request.tokens for request in load.requests] == [9] * 5
    assert engine.pending == 0
    expected = engine.generate(PROMPTS, PARAMS)
    assert load.rounds == (sum(r.kept for c in expected for r in c.rounds), sum(len(c.rounds) for c in expected))
    for request in load.requests:
        assert list(request.pieces) == sorted(request.pieces)
        assert request.pieces[-1] <= load.seconds


def test_everybody_takes_a_turn_in_each_lap_and_another_begins(contest):
    laps = list(contest.laps(2, {}))
    assert [[line["who"] for line in lap] for lap in laps] == [
        ["plain", "tiny"],
        ["tiny", "plain"],
        ["plain"],
        ["tiny"],
    ]
    runs = [line for lap in laps[:2] for line in lap]
    assert {line["tokens"] for line in runs} == {2 * 2 * 9}, "the same budget for all"
    assert all(line["tau"] == 1.0 for line in runs if line["who"] == "plain")


def test_a_contest_that_was_stopped_goes_on_with_the_next_whole_lap(contest, tmp_path):
    whole = {line["key"]: line for lap in islice(contest.laps(2, {}), 1) for line in lap}
    half = {**whole, run_key(2, 1, "plain"): {}}
    keys = [[line["key"] for line in lap] for lap in contest.laps(2, half)]
    assert keys[0] == [run_key(2, 1, "tiny"), run_key(2, 1, "plain")]
    assert keys[1:] == [[stage_key(2, "plain")], [stage_key(2, "tiny")]]


def test_a_file_holds_runs_ratios_stages_and_predictions(contest, tmp_path, monkeypatch):
    file = result_file(tmp_path / "out", "a/b c", {"target": "tiny"})
    measure_contest(contest, [1, 2], [1, 4], file)
    head, lines = read_results(file.path)
    assert head["measured_on"] == {"target": "tiny"}
    kinds = [line["kind"] for line in lines]
    assert {kind: kinds.count(kind) for kind in kinds} == {"run": 8, "stages": 4, "ratio": 2, "prediction": 2}
    ratio = next(line for line in lines if line["key"] == "ratio/2/tiny")
    rates = {line["key"]: line["tokens_per_second"] for line in lines if line["kind"] == "run"}
    by_lap = [rates[run_key(2, lap, "tiny")] / rates[run_key(2, lap, "plain")] for lap in (0, 1)]
    assert (ratio["low"], ratio["high"]) == (min(by_lap), max(by_lap))
    assert ratio["median"] == pytest.approx(sum(by_lap) / 2)
    stages = next(line for line in lines if line["key"] == "stages/2/tiny")
    assert {"draft/backbone", "draft/injection", "draft/head", "verify/forward"} <= stages["round"]["stages"].keys()
    model = (stages["round"]["draft"] + stages["round"]["verify"]) / stages["tau"]
    assert stages["tpot_model"] == pytest.approx(model)
    monkeypatch.setattr(Engine, "step", None)
    again = result_file(tmp_path / "out", "a/b c", {"target": "tiny"})
    measure_contest(contest, [1, 2], [], again)
    assert again.path == file.path


def test_a_changing_number_of_candidates_is_not_predicted(target):
    contest = Contest(target, {"tiny": tiny_drafter(target)}, PROMPTS, PARAMS, verify="auto")
    assert contest.predictions([1], {"a": {"kind": "run", "who": "tiny", "rounds": [4, 2]}}) == []


def test_a_mean_round_and_the_models_token_by_hand():
    stages = [
        StageTime("prefill", 1, 9.0),
        StageTime("draft/backbone", 4, 0.4),
        StageTime("verify/forward", 4, 2.0),
        StageTime("verify/head", 5, 0.4),
        StageTime("commit/observe", 4, 0.4),
        StageTime("commit/text", 4, 0.2),
    ]
    found = round_time(stages)
    assert (found.rounds, found.draft, found.verify) == (4, pytest.approx(0.2), pytest.approx(0.6))
    assert found.other == pytest.approx(0.05)
    assert found.tpot(2.0) == pytest.approx(0.4)
    assert round_time(stages[:2]) is None


def test_the_predicted_speed_up_by_hand():
    costs = Costs(verify={4: {1: 2.0, 8: 3.0}}, draft={4: 1.0})
    assert predicted_speedup(costs, 4, 7, tau=3.0) == pytest.approx(3.0 * 2.0 / (1.0 + 3.0))


def test_a_clock_takes_the_marks_that_it_is_given():
    class Ticks:
        now = 0

        def mark(self):
            self.now += 1
            return self.now

        def seconds(self, start, stop):
            return 10 * (stop - start)

    with StageClock(Ticks()) as clock:
        for _ in range(2):
            with stage("a"), stage("b"):
                pass
    assert clock.table() == [StageTime("a", 2, 60), StageTime("b", 2, 20)]
