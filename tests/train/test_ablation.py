"""An ablation: what variants share, what they change, and that nothing is done twice."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml
from tests.train.test_trainer import recipe  # noqa: F401  a fixture

from dspine.config import read_recipe
from dspine.errors import ConfigError, DataError
from dspine.train import ablation as running
from dspine.train.ablation import ablate
from dspine.train.variants import FULL, chosen, variants

SHORT = ["training.steps=3"]


def config_of(folder: Path, variant: str, seed: int) -> dict:
    return json.loads((folder / "run" / "ablation" / variant / f"seed-{seed}" / "drafter" / "config.json").read_text())


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The settings of every training that is begun."""
    seen: list[list[str]] = []

    def train(path, overrides):
        seen.append(list(overrides))
        return real(path, overrides)

    real = running.train
    monkeypatch.setattr(running, "train", train)
    return seen


def test_a_table_of_two_variants_and_two_seeds(recipe: Path, tmp_path: Path, trained: list[list[str]]) -> None:  # noqa: F811
    table = ablate(recipe, ["no-gate"], overrides=SHORT, seeds=[3, 4])
    assert table.finished
    assert [(line.variant.name, [run.seed for run in line.runs]) for line in table.lines] == [
        (FULL, [3, 4]),
        ("no-gate", [3, 4]),
    ]
    full, gateless = table.lines
    assert full.difference == 0
    assert gateless.tau == pytest.approx(sum(run.tau for run in gateless.runs) / 2)
    assert gateless.difference == pytest.approx(gateless.tau - full.tau)
    assert full.spread is not None
    assert config_of(tmp_path, "no-gate", 4)["dspine_config"]["gated"] is False
    assert "gated" not in config_of(tmp_path, FULL, 4)["dspine_config"]
    assert [config_of(tmp_path, FULL, seed)["dspine_format"]["training"]["seed"] for seed in (3, 4)] == [3, 4]
    # One store of features, the recipe's own.
    assert (tmp_path / "run" / "features").is_dir()
    assert not list((tmp_path / "run" / "ablation").rglob("features"))
    assert "| no-gate |" in table.as_markdown()
    assert json.loads(json.dumps(table.as_json()))["lines"][1]["variant"]["overrides"] == ["drafter.gated=false"]

    assert len(trained) == 4
    again = ablate(recipe, ["no-gate"], overrides=SHORT, seeds=[3, 4])
    assert len(trained) == 4
    assert again.lines == table.lines
    ablate(recipe, ["no-refinement"], overrides=SHORT, seeds=[3])
    assert len(trained) == 5
    assert "drafter.refined=false" in trained[-1]


def test_another_budget_is_another_run(recipe: Path, trained: list[list[str]]) -> None:  # noqa: F811
    ablate(recipe, [FULL], overrides=SHORT)
    with pytest.raises(ConfigError):  # the folder holds a run of another budget: refused as every run is
        ablate(recipe, [FULL], overrides=["training.steps=4"])
    assert len(trained) == 2


def test_an_interrupt_leaves_a_table_that_goes_on(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    real, calls = running._train, []

    def stopped(*arguments):
        calls.append(arguments[2].name)
        return None if len(calls) == 2 else real(*arguments)

    monkeypatch.setattr(running, "_train", stopped)
    table = ablate(recipe, ["no-gate"], overrides=SHORT)
    assert not table.finished
    assert [line.variant.name for line in table.lines] == [FULL]
    assert ablate(recipe, ["no-gate"], overrides=SHORT).finished
    assert calls == [FULL, "no-gate", "no-gate"]


def test_an_interrupt_while_full_is_trained_anew(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    ablate(recipe, ["no-gate"], overrides=SHORT)
    shutil.rmtree(tmp_path / "run" / "ablation" / FULL)
    with monkeypatch.context() as patch:
        patch.setattr(running, "_train", lambda *arguments: None)
        table = ablate(recipe, ["no-gate"], overrides=SHORT)
    assert not table.finished
    assert table.lines == (), "there is nothing to compare with"
    assert ablate(recipe, ["no-gate"], overrides=SHORT).finished


def test_a_variant_that_fails_does_not_keep_the_others_from_being_trained(
    recipe: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    real, calls = running._train, []

    def failing(*arguments):
        calls.append(arguments[2].name)
        if calls[-1] == "no-gate":
            raise DataError("no finite loss", "Lower training.learning_rate.")
        return real(*arguments)

    asked = ["no-gate", "no-refinement"]
    with monkeypatch.context() as patch:
        patch.setattr(running, "_train", failing)
        with pytest.raises(DataError, match=r"1 of 3 runs failed: no-gate, seed 3 \(no finite loss\)\nLower training"):
            ablate(recipe, asked, overrides=SHORT)
    assert calls == [FULL, "no-gate", "no-refinement"]
    assert "| no-refinement |" in capfd.readouterr().err
    monkeypatch.setattr(running, "_train", lambda *arguments: calls.append(arguments[2].name) or real(*arguments))
    assert ablate(recipe, asked, overrides=SHORT).finished
    assert calls[3:] == ["no-gate"]

    def broken(*arguments):
        raise DataError("no space")

    monkeypatch.setattr(running, "_train", broken)
    with pytest.raises(DataError, match=r"^no space$"):  # without `full` nothing compares
        ablate(recipe, asked, overrides=SHORT, seeds=[9])


def test_runs_on_other_responses_are_not_compared(recipe: Path, tmp_path: Path) -> None:  # noqa: F811
    ablate(recipe, [FULL], overrides=SHORT)
    path = tmp_path / "responses.jsonl"
    path.write_text("".join(line + "\n" for line in path.read_text().splitlines()[:-1]))
    shutil.rmtree(tmp_path / "run" / "features")
    with pytest.raises(DataError, match="other responses"):
        ablate(recipe, ["no-gate"], overrides=SHORT)
    shutil.rmtree(tmp_path / "run" / "ablation")
    assert ablate(recipe, ["no-gate"], overrides=SHORT).finished


def test_every_variant_is_a_recipe_that_can_be_trained(recipe: Path) -> None:  # noqa: F811
    from tests.train.test_switches import Trainer, prepared

    base = read_recipe(recipe)
    identities = {}
    for variant in variants(base).values():
        run = prepared(recipe, *variant.overrides)
        Trainer(run, resume=False)
        identities[variant.name] = str(run.identity)
    assert len(set(identities.values())) == len(identities) == 15, "no two are the same"


def test_a_recipe_has_variants_of_its_own(recipe: Path, tmp_path: Path) -> None:  # noqa: F811
    content = yaml.safe_load(recipe.read_text()) | {"ablation": {"small": ["drafter.transfer_rank=8"]}}
    recipe.write_text(yaml.safe_dump(content))
    assert [variant.name for variant in chosen(read_recipe(recipe), ["small"])] == [FULL, "small"]
    assert ablate(recipe, ["small"], overrides=SHORT).finished
    assert config_of(tmp_path, "small", 3)["dspine_config"]["transfer_rank"] == 8


def test_a_variant_of_other_features_has_a_store_of_its_own(recipe: Path, tmp_path: Path) -> None:  # noqa: F811
    settings = ["ablation={taps: ['drafter.target_layer_ids=[0, 2]'], exact: [features.dtype=float32]}"]
    table = ablate(recipe, ["taps", "exact", "no-gate"], overrides=[*SHORT, *settings], seeds=[3, 4])
    assert [line.variant.name for line in table.lines] == [FULL, "taps", "exact", "no-gate"]
    stores = [path.parent.relative_to(tmp_path / "run") for path in (tmp_path / "run").rglob("features/index.json")]
    assert sorted(map(str, stores)) == ["ablation/exact/features", "ablation/taps/features", "features"], (
        "for all seeds"
    )


@pytest.mark.parametrize(
    ("overrides", "names", "said"),
    [
        ([], ["no-gates"], "no variant no-gates"),
        (["drafter.kind=dflash"], ["all"], "of kind dflash"),
        (["evaluate.prompts=0"], ["all"], "holds no prompts out"),
        (["data.max_prompt_tokens=2", *SHORT], [FULL], "longer than data.max_prompt_tokens"),
    ],
)
def test_what_cannot_be_compared_is_refused(recipe: Path, overrides: list[str], names: list[str], said: str) -> None:  # noqa: F811
    with pytest.raises(ConfigError) as caught:
        ablate(recipe, names, overrides=overrides)
    assert said in str(caught.value)


@pytest.mark.parametrize("variable", ["WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"])
def test_one_of_several_processes_trains_no_variants(
    recipe: Path,  # noqa: F811
    trained: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
) -> None:
    monkeypatch.setenv(variable, "2")
    with pytest.raises(ConfigError, match="in one process"):
        ablate(recipe, [FULL], overrides=SHORT)
    assert trained == []


def test_a_weight_that_a_variants_objective_does_not_have_is_refused_before_anything_is_trained(
    recipe: Path,  # noqa: F811
    trained: list[list[str]],
) -> None:
    settings = ["objective.gamma=4.0", "ablation={eagle3: [drafter.kind=eagle3, drafter.num_hidden_layers=1]}"]
    with pytest.raises(ConfigError, match="EAGLE-3 drafter's has no gamma"):
        ablate(recipe, ["eagle3"], overrides=[*SHORT, *settings])
    assert trained == []
