"""Regeneration: the target's own answers, whatever the batch; none lost and none made twice."""

from __future__ import annotations

import pytest
import torch
from tests.support.oracle import OracleDrafter
from tests.support.tiny_target import THINKING_TEMPLATE, tiny_target

from dspine.decode.engine import Engine
from dspine.decode.sampling import SamplingParams
from dspine.errors import DataError, RequestError
from dspine.target.chat import render
from dspine.train.prompts import Prompt
from dspine.train.regenerate import regenerate
from dspine.train.responses import read_meta, read_responses

CAP = 10


def ask(name, text, *later):
    return Prompt(name, "a", ({"role": "user", "content": text},), later)


PROMPTS = [ask(f"a/{i}", "what " * (1 + i % 3) + str(i)) for i in range(7)]


@pytest.fixture(scope="module")
def target():
    """Ends its answers at one of the tokens that it likes to say."""
    target = tiny_target()
    said = Engine(target).generate([render(target, p.messages) for p in PROMPTS], SamplingParams(max_new_tokens=CAP))
    target.eos_ids = frozenset({said[2].token_ids[3]})
    return target


def run(target, out, prompts=PROMPTS, **options):
    options = {"max_new_tokens": CAP, "batch": 3, "progress": False} | options
    return regenerate(target, prompts, out, **options)


def answers(path):
    return {row.id: row for row in read_responses(path)}


def test_rows_are_the_targets_own_greedy_answers(target, tmp_path):
    summary = run(target, tmp_path / "r.jsonl")
    rows = answers(tmp_path / "r.jsonl")
    assert sorted(rows) == sorted(p.id for p in PROMPTS)
    for prompt in PROMPTS:
        row = rows[prompt.id]
        assert (row.source, row.messages) == ("a", list(prompt.messages))
        assert row.prompt_ids == render(target, prompt.messages)
        ids = list(row.prompt_ids)
        while len(ids) - len(row.prompt_ids) < CAP and ids[-1] not in target.eos_ids:
            logits = target.model(torch.tensor([ids])).logits[0, -1]
            ids.append(int(logits[: target.decodable].argmax()))
        assert row.response_ids == ids[len(row.prompt_ids) :]
        assert (row.finish_reason == "stop") == (ids[-1] in target.eos_ids)
    assert {row.finish_reason for row in rows.values()} == {"stop", "length"}
    assert (summary.written, summary.kept, summary.too_long) == (7, 0, [])
    assert summary.tokens == sum(len(row.response_ids) for row in rows.values())
    assert summary.unfinished == sum(row.finish_reason == "length" for row in rows.values())
    assert summary.rounds == summary.tokens - 7  # the first token of an answer is the prefill's
    assert summary.tokens_per_second > 0


def test_the_settings_stand_above_the_rows(target, tmp_path):
    run(target, tmp_path / "r.jsonl", sampling=SamplingParams(temperature=0.7, top_k=5, logit_bias={3: 1.0}))
    meta = read_meta(tmp_path / "r.jsonl")
    assert (meta.target, meta.dtype, meta.max_new_tokens) == ("tiny-qwen3", "float32", CAP)
    assert meta.head_digest == target.head_digest
    assert meta.sampling["temperature"] == 0.7
    assert meta.sampling["logit_bias"] == {"3": 1.0}
    assert meta.sampling["seed"] == 0
    run(target, tmp_path / "r.jsonl", sampling=SamplingParams(temperature=0.7, top_k=5, logit_bias={3: 1.0}))


class Stopping(Engine):
    """An engine that is stopped in its n-th step, and counts what it was asked."""

    asked: list[tuple[int, ...]]
    left = 10**9

    def add(self, prompt, params=None):
        type(self).asked.append(tuple(prompt))
        return super().add(prompt, params)

    def step(self):
        type(self).left -= 1
        if type(self).left < 0:
            raise KeyboardInterrupt
        return super().step()


@pytest.fixture
def stopping(monkeypatch):
    class Fresh(Stopping):
        asked = []  # noqa: RUF012  one list for each test

    monkeypatch.setattr("dspine.train.regenerate.Engine", Fresh)
    return Fresh


@pytest.mark.parametrize("steps", [0, 4, 9, 14])
@pytest.mark.parametrize("cut", [0, 25])
def test_a_stopped_run_goes_on_with_what_is_missing(target, tmp_path, stopping, steps, cut):
    path = tmp_path / "r.jsonl"
    stopping.left = steps
    with pytest.raises(KeyboardInterrupt):
        run(target, path)
    if cut:  # as a kill leaves a line
        path.write_bytes(path.read_bytes() + path.read_bytes()[:cut])
    done = path.read_bytes().count(b"\n") - 1
    assert steps != 14 or 0 < done < 7
    stopping.left, stopping.asked[:] = 10**9, []
    summary = run(target, path)
    assert (summary.kept, summary.written) == (done, 7 - done)
    assert len(stopping.asked) == 7 - done
    run(target, tmp_path / "whole.jsonl")
    assert answers(path) == answers(tmp_path / "whole.jsonl")
    stopping.asked.clear()
    assert run(target, path).kept == 7
    assert not stopping.asked


def test_answers_do_not_depend_on_the_batch(target, tmp_path):
    for batch in (1, 4):
        run(target, tmp_path / f"{batch}.jsonl", batch=batch)
    assert answers(tmp_path / "1.jsonl") == answers(tmp_path / "4.jsonl")


def test_longest_prompts_are_asked_first(target, tmp_path, stopping):
    run(target, tmp_path / "r.jsonl")
    lengths = [len(prompt) for prompt in stopping.asked]
    assert lengths == sorted(lengths, reverse=True)
    assert len(set(lengths)) == 3


def test_a_drafter_changes_the_rounds_alone(target, tmp_path):
    plain = run(target, tmp_path / "plain.jsonl")
    drafter = OracleDrafter(target, block_size=4)
    for row in answers(tmp_path / "plain.jsonl").values():
        drafter.learn(row.prompt_ids, row.response_ids + [0] * 8, [2, 0, 3])
    fast = run(target, tmp_path / "fast.jsonl", drafter=drafter)
    assert answers(tmp_path / "fast.jsonl") == answers(tmp_path / "plain.jsonl")
    assert fast.rounds < plain.rounds
    assert drafter.calls > 0


def test_prompts_that_are_too_long_are_counted(target, tmp_path):
    lengths = sorted({len(render(target, p.messages)) for p in PROMPTS})
    summary = run(target, tmp_path / "r.jsonl", max_prompt_tokens=lengths[1])
    assert sorted(summary.too_long) == ["a/2", "a/5"]
    assert sorted(answers(tmp_path / "r.jsonl")) == ["a/0", "a/1", "a/3", "a/4", "a/6"]
    small = tiny_target(max_position_embeddings=lengths[2])
    assert sorted(run(small, tmp_path / "s.jsonl", max_prompt_tokens=1000).too_long) == ["a/2", "a/5"]


def test_later_turns_are_asked_after_the_targets_own_answers(target, tmp_path, stopping):
    prompts = [ask("x", "one", "two", "three"), ask("y", "alone"), ask("z", "long " * 60, "never asked")]
    path = tmp_path / "r.jsonl"
    stopping.left = 7
    with pytest.raises(KeyboardInterrupt):
        run(target, path, prompts, max_prompt_tokens=250)
    stopping.left = 10**9
    summary = run(target, path, prompts, max_prompt_tokens=250, batch=1)
    run(target, tmp_path / "whole.jsonl", prompts, max_prompt_tokens=250)
    rows = answers(path)
    assert rows == answers(tmp_path / "whole.jsonl")
    assert list(rows) == ["y", "x", "x#2", "x#3"]
    assert summary.too_long == ["z"]
    third = rows["x#3"]
    assert [m["role"] for m in third.messages] == ["user", "assistant", "user", "assistant", "user"]
    assert [m["content"] for m in third.messages[::2]] == ["one", "two", "three"]
    for turn, name in ((1, "x"), (3, "x#2")):
        said = target.tokenizer.decode(rows[name].response_ids, skip_special_tokens=True)
        assert third.messages[turn]["content"] == said
    assert third.prompt_ids == render(target, third.messages)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"max_new_tokens": CAP + 1}, "max_new_tokens: 10 → 11"),
        ({"sampling": SamplingParams(temperature=0.5)}, "sampling.temperature: 0.0 → 0.5"),
        ({"prompts": PROMPTS[:-1]}, "prompts_digest: "),
        ({"target": tiny_target(seed=1)}, "head_digest: "),
        ({"target": tiny_target(chat_template=THINKING_TEMPLATE)}, "template_digest: "),
    ],
)
def test_other_settings_are_refused_by_name(target, tmp_path, change, said):
    run(target, tmp_path / "r.jsonl", batch=7)
    before = (tmp_path / "r.jsonl").read_bytes()
    with pytest.raises(DataError, match=f"written under other settings: .*{said}"):
        run(**{"target": target, "out": tmp_path / "r.jsonl"} | change)
    assert (tmp_path / "r.jsonl").read_bytes() == before


def test_the_thinking_flag_is_part_of_the_settings(tmp_path):
    target = tiny_target(chat_template=THINKING_TEMPLATE)
    run(target, tmp_path / "r.jsonl", PROMPTS[:1], max_new_tokens=2)
    with pytest.raises(DataError, match="template_digest"):
        run(target, tmp_path / "r.jsonl", PROMPTS[:1], max_new_tokens=2, thinking=True)
    run(target, tmp_path / "t.jsonl", PROMPTS[:1], max_new_tokens=2, thinking=True)
    ids = [read_responses(tmp_path / f"{name}.jsonl")[0].prompt_ids for name in "rt"]
    assert ids == [render(target, PROMPTS[0].messages, thinking=flag) for flag in (False, True)]
    assert ids[0] != ids[1]


def test_draws_are_keyed_by_seed_and_row(target, tmp_path):
    hot = SamplingParams(temperature=1.0, seed=3)
    run(target, tmp_path / "all.jsonl", sampling=hot)
    run(target, tmp_path / "few.jsonl", PROMPTS[2:5], sampling=hot, batch=1)
    run(target, tmp_path / "other.jsonl", sampling=hot.model_copy(update={"seed": 4}))
    rows, few, other = (answers(tmp_path / f"{name}.jsonl") for name in ("all", "few", "other"))
    assert few == {name: rows[name] for name in few}
    assert rows != other
    twins = [ask(name, "same words") for name in ("t/1", "t/2")]
    run(target, tmp_path / "twins.jsonl", twins, sampling=hot)
    first, second = answers(tmp_path / "twins.jsonl").values()
    assert first.response_ids != second.response_ids


@pytest.mark.parametrize(
    "given",
    [{"stop": "x"}, {"stop_token_ids": 5}, {"ignore_eos": True}, {"processors": lambda i, s: s}, {"logprobs": 1}],
)
def test_parameters_that_change_where_an_answer_ends_are_refused(target, tmp_path, given):
    with pytest.raises(RequestError, match=next(iter(given))):
        run(target, tmp_path / "r.jsonl", sampling=SamplingParams(**given))
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_asked(target, tmp_path):
    with pytest.raises(DataError, match="two prompts give a row of the id 'x#2'"):
        run(target, tmp_path / "r.jsonl", [ask("x", "a", "b"), ask("x#2", "c")])
    with pytest.raises(RequestError, match="no chat template"):
        run(tiny_target(chat_template=None), tmp_path / "r.jsonl")
    assert not list(tmp_path.iterdir())


def test_standard_output_stays_empty(target, tmp_path, capsys):
    run(target, tmp_path / "quiet.jsonl", PROMPTS[:2])
    assert capsys.readouterr() == ("", "")
    run(target, tmp_path / "r.jsonl", PROMPTS[:2], progress=True)
    said = capsys.readouterr()
    assert said.out == ""
    assert "responses 2/2" in said.err
