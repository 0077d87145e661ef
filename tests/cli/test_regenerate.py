"""`dspine regenerate`: from prompts to responses, by recipe or by hand, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import assert_fault, parsed
from tests.support.completions_server import completions_server

import dspine.train.regenerate
from dspine.drafter import DSpine
from dspine.train.regenerate import Summary


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    rows = [{"id": f"a/{i}", "source": "a", "prompt": f"Say {i}"} for i in range(4)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def by_hand(run, models, prompts, tmp_path):
    def call(*words: object):
        return run(
            "regenerate",
            "--target",
            models.target,
            "--prompts",
            prompts,
            "--out",
            tmp_path / "out.jsonl",
            "-n",
            6,
            *words,
        )

    return call


def _rows(path: Path) -> list[dict[str, object]]:
    head, *rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert head["format"] == "dspine-responses/1"
    return rows


def test_by_hand_it_prints_the_file_and_goes_on_with_it(by_hand, tmp_path):
    result = by_hand()
    assert (result.exit_code, result.stdout) == (0, f"{tmp_path / 'out.jsonl'}\n")
    assert "4 answers written" in result.stderr
    again = parsed(by_hand("--json"))
    assert (again["written"], again["kept"]) == (0, 4)
    assert [row["id"] for row in _rows(tmp_path / "out.jsonl")] != []


def test_a_drafter_changes_no_answer(by_hand, models, tmp_path):
    by_hand()
    plain = sorted(_rows(tmp_path / "out.jsonl"), key=lambda row: str(row["id"]))
    (tmp_path / "out.jsonl").unlink()
    by_hand("--drafter", models.drafter)
    assert sorted(_rows(tmp_path / "out.jsonl"), key=lambda row: str(row["id"])) == plain


def test_the_drafter_is_put_to_work(by_hand, models, monkeypatch, tmp_path):
    drafters = []

    def answer_all(target, prompts, out, *, drafter, **_):
        drafters.append(drafter)
        return Summary(out)

    monkeypatch.setattr(dspine.train.regenerate, "regenerate", answer_all)
    by_hand("--drafter", models.drafter)
    by_hand()
    assert isinstance(drafters[0], DSpine)
    assert drafters[1] is None


def test_a_recipe_chooses_prompts_and_sizes(run, recipe, prompts, models):
    words = ("--set", f"target={models.target}", "--set", "data.max_new_tokens=3", "--set", "data.held_out=1")
    mix = ("--set", "data.mix=[{source: a, count: 2, suffix: '!'}]")
    report = parsed(run("regenerate", recipe, *words, *mix, "--json"))
    rows = _rows(recipe.parent / "responses.jsonl")
    assert report["written"] == len(rows) == 2
    assert all(row["messages"][-1]["content"].endswith("!") for row in rows)
    assert all(len(row["response_ids"]) <= 3 for row in rows)


def test_prompts_too_long_for_the_recipe_are_counted(run, recipe, prompts, models):
    words = ("--set", f"target={models.target}", "--set", "data.max_prompt_tokens=2")
    assert len(parsed(run("regenerate", recipe, *words, "--json"))["too_long"]) == 4


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--target", "nano"),
        ("recipe.yaml", "--out", "x.jsonl"),
        ("--target", "nano", "--prompts", "p", "--out", "o", "--set", "a=1"),
        ("--batch", "0"),
        ("--target", "nano", "--prompts", "p", "--out", "o", "--model", "m"),
        ("--target", "nano", "--prompts", "p", "--out", "o", "--server", "http://x/v1", "--drafter", "nano"),
        ("--target", "nano", "--prompts", "p", "--out", "o", "--temperature", "-1"),
    ],
)
def test_half_a_command_is_a_usage_fault(run, words):
    assert_fault(run("regenerate", *words), 2)


def test_missing_and_broken_prompts_leave_nothing_behind(by_hand, run, recipe, prompts, tmp_path):
    prompts.write_text('{"id": "a/0", "prompt": "x"}\nnot json\n')
    assert_fault(by_hand(), 1, "prompts.jsonl, line 2")
    prompts.write_text('{"id": "a/0", "prompt": ""}\n')
    assert_fault(by_hand(), 1, "prompts.jsonl, line 1", "prompt")
    prompts.unlink()
    assert_fault(by_hand(), 1, "prompts.jsonl")
    assert_fault(run("regenerate", recipe), 1, "prompts.jsonl")
    assert_fault(run("regenerate", tmp_path / "none.yaml"), 1, "none.yaml")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["recipe.yaml"]


def test_other_settings_are_refused_and_the_file_stays(by_hand, tmp_path):
    by_hand()
    before = (tmp_path / "out.jsonl").read_bytes()
    assert_fault(by_hand("-n", 7), 1, "max_new_tokens")
    assert (tmp_path / "out.jsonl").read_bytes() == before


def test_a_drafter_of_another_target_is_refused(by_hand, models, tmp_path):
    assert_fault(by_hand("--drafter", models.stranger), 1, "LM head")
    assert not (tmp_path / "out.jsonl").exists()


def test_a_server_answers_by_hand_and_by_recipe(by_hand, run, recipe, models, tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with completions_server() as server:
        words = ("--server", server.url, "--model", "served", "--temperature", 0.5, "--top-p", 0.9, "--top-k", 7)
        result = by_hand(*words)
        assert result.exit_code == 0, result.stderr
        assert "4 answers were made into ids here" in result.stderr
        assert [server.bodies[0][name] for name in ("temperature", "top_p", "top_k")] == [0.5, 0.9, 7]
        asked = f"data.server={{url: '{server.url}', model: served, concurrency: 2}}"
        changes = ("--set", f"target={models.target}", "--set", asked, "--set", "data.sampling.temperature=0.3")
        assert parsed(run("regenerate", recipe, *changes, "--json"))["written"] == 4
        assert server.bodies[-1]["temperature"] == 0.3
        before = len(server.bodies)
        assert parsed(run("regenerate", recipe, *changes, "--json"))["kept"] == 4
        assert len(server.bodies) == before
    assert_fault(run("regenerate", recipe, *changes, "--set", "data.drafter=nano"), 1, "exclude each other")
    assert_fault(run("regenerate", recipe, *changes, "--drafter", models.drafter), 2, "drafts by itself")


def test_the_recipe_names_a_drafter(run, recipe, models, monkeypatch, prompts):
    drafters = []
    monkeypatch.setattr(
        "dspine.train.materials.regenerate", lambda *_, drafter, **__: drafters.append(drafter) or Summary(prompts)
    )
    changes = ("--set", f"target={models.target}", "--set", f"data.drafter={models.drafter}")
    assert run("regenerate", recipe, *changes).exit_code == 0
    assert isinstance(drafters[0], DSpine)
