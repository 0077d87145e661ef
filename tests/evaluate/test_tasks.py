"""The seven benchmarks: wording, where rows come from, and answers scored; with the samples of the package."""

from __future__ import annotations

import json

import pytest

from dspine.errors import DataError
from dspine.evaluate.prompts import TaskPrompt, texts_digest
from dspine.evaluate.rows import Row, read_rows
from dspine.evaluate.sandbox import ends_well
from dspine.evaluate.sources import Asked, Source, hub_rows, mixed, task_prompts
from dspine.evaluate.tasks import TASKS, find_task

# What the hub has for each set, in its own columns.
HUB = {
    "gsm8k": {"question": "2 + 2?", "answer": "4\n#### 4"},
    "math500": {"problem": "1+1", "answer": "2", "subject": "Algebra", "level": 1, "unique_id": "test/a/1.json"},
    "humaneval": {
        "task_id": "HumanEval/0",
        "prompt": "def f():\n",
        "canonical_solution": "    pass\n",
        "entry_point": "f",
        "test": "def check(f): f()",
    },
    "mbpp": {"task_id": 11, "prompt": "Write f.", "code": "", "test_list": ["assert f()"], "test_imports": []},
    "livecodebench": {"question_content": "Read n.", "starter_code": ""},
    "mt_bench": {"prompt_id": 81, "prompt": ["One", "Two"], "category": "writing", "reference": []},
    "arena_hard": {"question_id": "ab", "turns": [{"content": "Why?"}], "cluster": "C"},
}
IDS = {
    "gsm8k": "gsm8k/test/0",
    "math500": "math500/test/a/1",
    "humaneval": "HumanEval/0",
    "mbpp": "mbpp_sanitized/11",
    "livecodebench": "livecodebench/0000",
    "mt_bench": "mt_bench/81",
    "arena_hard": "arena_hard_v0.1/ab",
}


@pytest.mark.parametrize("name", TASKS)
def test_ten_samples_a_task_ship_with_the_package(name):
    prompts = task_prompts(find_task(name), Source(), "report", None)
    assert len(prompts) == 10
    assert len({prompt.text for prompt in prompts}) == 10
    assert all(len(prompt.later) == (name == "mt_bench") for prompt in prompts)


@pytest.mark.parametrize("name", ["gsm8k", "math500"])
def test_the_samples_own_answers_are_right_and_others_wrong(name):
    task = find_task(name)
    for row in Source().rows(task):
        final = row.meta.get("final_answer", row.reference)
        assert task.matches(row, f"We find first 17, and so $\\boxed{{{final}}}$.")
        assert not task.matches(row, "So it is \\boxed{123456}.")
        assert not task.matches(row, "I do not know.")


@pytest.mark.parametrize("name", ["humaneval", "mbpp"])
def test_the_samples_own_code_passes_and_wrong_code_does_not(name):
    task = find_task(name)
    for row in Source().rows(task)[:4]:
        code = row.turns[0] + row.reference if name == "humaneval" else row.reference
        assert ends_well(task.program(row, f"Here it is:\n```python\n{code}\n```\nIt works."))
    assert not ends_well(task.program(row, "```python\ndef other(*_):\n    return 'nothing'\n```"))
    assert not ends_well(task.program(row, "I cannot."))


def test_humaneval_takes_a_whole_function_or_its_body():
    task, row = find_task("humaneval"), Source().rows(find_task("humaneval"))[5]
    assert row.turns[0].startswith("from typing")
    whole = row.turns[0].split("\n\n\n")[1] + row.reference  # without the prompt's import
    assert ends_well(task.program(row, f"```python\n{whole}```"))
    assert ends_well(task.program(row, row.reference))


def test_mbpp_takes_a_function_of_another_name():
    task, row = find_task("mbpp"), Source().rows(find_task("mbpp"))[0]
    code = row.reference.replace("count_vowels", "vowels")
    assert ends_well(task.program(row, f"```python\ndef helper():\n    pass\n\n{code}\n```"))


def test_the_wording_is_the_one_that_figures_were_published_with():
    row = Row("a", ("Q?",), meta={"starter_code": "class S:"})
    worded = {name: texts_digest([TaskPrompt.of(task, row)]) for name, task in TASKS.items()}
    plain = texts_digest([TaskPrompt("a", "Q?")])
    assert [name for name in worded if worded[name] == plain] == ["mbpp", "mt_bench", "arena_hard"]
    assert TASKS["gsm8k"].wording(row).endswith("step by step, and put your final answer within \\boxed{}.")
    assert TASKS["humaneval"].wording(row).endswith("passes the tests:\n```python\nQ?\n```")
    assert worded["gsm8k"] == worded["math500"]
    assert "```python\nclass S:\n```" in TASKS["livecodebench"].wording(row)
    assert "```python\n# YOUR CODE HERE\n```" in TASKS["livecodebench"].wording(Row("b", ("Q?",)))


@pytest.mark.parametrize("name", TASKS)
def test_rows_of_the_hub_are_those_of_local_files(name):
    asked = []

    def load(*words, **options):
        asked.append((words, options))
        return [HUB[name]]

    [row] = hub_rows(find_task(name), load)
    assert row.id == IDS[name]
    assert all(row.turns)
    [(words, options)] = asked
    assert options["split"] in ("test", "train")
    assert ("data_files" in options) == (words[0] == "json")
    with pytest.raises(DataError, match="has no column"):
        hub_rows(find_task(name), lambda *_, **__: [{"other": 1}])


def test_a_hub_that_cannot_be_reached_is_named():
    def load(*_, **__):
        raise ConnectionError("no route")

    with pytest.raises(DataError, match="cannot load openai/gsm8k: no route") as fault:
        hub_rows(find_task("gsm8k"), load)
    assert "--data-dir" in fault.value.fix


def test_a_file_of_ones_own_is_a_task(tmp_path):
    file = tmp_path / "ours.jsonl"
    file.write_text('{"prompt": "One?"}\n{"id": "b", "turns": ["Two?", "Three?"], "category": "x"}\n')
    task = find_task(str(file))
    prompts = task_prompts(task, Source("folder", tmp_path / "elsewhere"), "all", None)
    assert task.name == "ours"
    assert {(p.id, p.text, p.later) for p in prompts} == {("ours/1", "One?", ()), ("b", "Two?", ("Three?",))}
    assert (Source("hub").named(task), Source("hub").named(find_task("gsm8k"))) == ("file", "hub")


@pytest.mark.parametrize("name", ["random", "random-tokens", "RANDOM"])
def test_random_tokens_are_refused_by_name(name):
    with pytest.raises(DataError) as fault:
        find_task(name)
    assert "random tokens says nothing" in fault.value.fix


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt_ids": [5, 9, 2]}, "holds token ids"),
        ({"input_ids": [5], "prompt": "a"}, "holds token ids"),
        ({"turns": [[5, 9, 2]]}, "turns must be a list of texts"),
        ({"prompt": 7}, "turns must be a list of texts"),
        ({"prompt": "a", "turns": ["a"]}, "either a prompt or turns"),
        ({"prompt": "a", "promt": "b"}, "unknown key 'promt'"),
        ({"prompt": "a smile: \ud83d"}, "half a character"),
        ({"prompt": "a", "id": None}, "id must be a text or a whole number"),
        ({"prompt": "a", "id": ["b"]}, "id must be a text or a whole number"),
    ],
)
def test_a_row_that_is_no_text_is_refused_with_its_line(tmp_path, row, said):
    file = tmp_path / "a.jsonl"
    file.write_text('{"prompt": "fine"}\n' + json.dumps(row) + "\n")
    with pytest.raises(DataError, match=f"line 2: .*{said}"):
        read_rows(file)


def test_unknown_names_are_answered_with_the_known_ones(tmp_path):
    with pytest.raises(DataError, match="no task 'gsm9k'") as fault:
        find_task("gsm9k")
    assert "gsm8k" in fault.value.fix
    with pytest.raises(DataError, match=r"gsm8k\.jsonl is missing"):
        Source("folder", tmp_path).rows(find_task("gsm8k"))
    with pytest.raises(DataError, match="is named like the benchmark"):
        find_task(str(tmp_path / "gsm8k.jsonl"))


def test_a_mixture_takes_one_of_each_task_in_turn():
    prompts = {name: [TaskPrompt(f"{name}{i}", "?") for i in range(count)] for name, count in (("a", 3), ("b", 1))}
    tasks = [Asked(find_task("gsm8k"), "samples", each) for each in prompts.values()]
    assert [prompt.id for prompt in mixed(tasks)] == ["a0", "b0", "a1", "a2"]
