"""`dspine info` on a target, a drafter and a recipe."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import assert_fault, parsed


def test_a_target(run, models):
    facts = parsed(run("info", models.target, "--json"))
    assert facts["kind"] == "target"
    assert (facts["vocab_size"], facts["decodable_ids"], facts["num_layers"]) == (320, 262, 6)
    assert len(facts["head_digest"]) == 64


def test_a_drafter_in_the_place_of_a_target_is_told(run, models):
    said = "is a drafter, which answers nothing by itself"
    assert_fault(run("info", models.drafter, "--kind", "target"), 1, f"{models.drafter} {said}", "--drafter")
    for name in (models.drafter, "smollm2-135m-dspine"):
        assert_fault(run("generate", "Hi", "--target", name), 1, f"{name} {said}", "--drafter")


def test_a_drafter_names_the_head_it_was_made_for(run, models):
    facts = parsed(run("info", models.drafter, "--json"))
    assert facts["kind"] == "drafter"
    assert facts["target_layer_ids"] == [1, 3]
    assert facts["candidates"] == facts["block_size"] - 1 == 3
    assert facts["training"]["steps"] == 12
    assert facts["target"]["head_sha256"] == parsed(run("info", models.target, "--json"))["head_digest"]


def test_parameters_of_a_drafter_are_those_of_its_network(run, models):
    from dspine.checkpoint import load_drafter
    from dspine.target import load_target

    network = load_drafter(models.drafter, load_target(models.target), packed=False)
    trained = sum(tensor.numel() for tensor in network.state_dict().values())
    assert parsed(run("info", models.drafter, "--json"))["parameters"] == trained


def test_a_recipe(run, recipe):
    facts = parsed(run("info", recipe, "--json"))
    assert facts["kind"] == "recipe"
    assert facts["training"]["steps"] == 3


def test_people_get_one_fact_a_line(run, models):
    lines = run("info", models.drafter).stdout.splitlines()
    assert lines[0].split() == ["kind", "drafter"]
    assert any(line.split() == ["target_layer_ids", "1,", "3"] for line in lines)


def test_a_shipped_name_that_is_both(run):
    assert parsed(run("info", "nano", "--json"))["kind"] == "target"
    assert parsed(run("info", "nano", "--kind", "drafter", "--json"))["kind"] == "drafter"
    assert parsed(run("info", "nano", "--kind", "recipe", "--json"))["output"] == "runs/nano"
    assert parsed(run("info", "smollm2-135m-cpu", "--json"))["kind"] == "recipe"


def test_what_is_not_there(run, tmp_path):
    assert_fault(run("info", tmp_path / "none"), 1, "there is no folder")
    assert_fault(run("info", tmp_path / "none.yaml"), 1, "cannot read the recipe")
    assert_fault(run("info", tmp_path / "none", "--kind", "drafter"), 1, "no such folder")
    assert_fault(run("info"), 2, "name")


def test_a_broken_config_is_named(run, tmp_path: Path):
    (tmp_path / "config.json").write_text("{")
    assert_fault(run("info", tmp_path), 1, "config.json")
