"""`dspine export`: what it prints, which target it takes, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from tests.cli.conftest import assert_fault, parsed

from dspine.checkpoint import drafter_digest, read_config


def test_it_prints_the_folder(run, models, tmp_path):
    out = tmp_path / "deep" / "out"
    result = run("export", models.drafter, out, "--layout", "specforge", "--target", models.target)
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"{out}\n", "")
    assert read_config(out).layout == "SpecForge"
    assert "layout SpecForge" in " ".join(run("info", out).stdout.split())
    assert run("generate", "Hi", "-n", 3, "--target", models.target, "--drafter", out).exit_code == 0


def test_json_and_a_number_format(run, models, tmp_path):
    words = ("--target", models.target, "--dtype", "bfloat16", "--json")
    report = parsed(run("export", models.drafter, tmp_path / "out", *words))
    assert report == {
        "folder": str(tmp_path / "out"),
        "layout": "specforge",
        "digest": drafter_digest(tmp_path / "out"),
        "target": models.target,
    }
    assert load_file(tmp_path / "out" / "model.safetensors")["fc.weight"].dtype == torch.bfloat16


def test_the_target_is_the_one_that_the_drafter_names(run, tmp_path):
    assert parsed(run("export", "nano", tmp_path / "out", "--json"))["target"] == "nano"


def test_faults_come_before_a_target_is_loaded(run, models, tmp_path: Path):
    full = tmp_path / "full"
    full.mkdir()
    (full / "thesis.tex").write_text("years of work")
    assert_fault(run("export", models.drafter, full, "--target", "no/such"), 1, "full exists", "new or an empty folder")
    assert_fault(run("export", tmp_path / "none", tmp_path / "out"), 1, "no such folder")
    assert_fault(run("export", models.drafter, tmp_path / "out", "--layout", "gguf"), 2, "specforge")
    assert_fault(run("export", models.stranger, tmp_path / "out", "--target", models.target), 1, "LM head")
    assert_fault(run("export", models.drafter), 2, "out")
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_a_drafter_that_names_no_target(run, models, tmp_path):
    split = tmp_path / "foreign"
    split.mkdir()
    for file in Path(models.drafter).iterdir():
        (split / file.name).write_bytes(file.read_bytes())
    config = json.loads((split / "config.json").read_text())
    del config["dspine_format"]["target"]
    (split / "config.json").write_text(json.dumps(config))
    assert_fault(run("export", split, tmp_path / "out"), 2, "--target")


def test_there_and_back_between_programs(run, models, tmp_path):
    from tests.checkpoint.published import FOLDERS

    from dspine.target import load_target

    target = load_target(models.target)
    theirs = FOLDERS["z-lab DFlash"](target).write(tmp_path / "theirs")
    facts = parsed(run("info", theirs, "--json"))
    assert (facts["kind"], facts["layout"], facts["method"], facts["candidates"]) == ("drafter", "z-lab", "DFlash", 4)
    assert run("generate", "Hi", "-n", 3, "--target", models.target, "--drafter", theirs).exit_code == 0
    assert_fault(run("export", theirs, tmp_path / "out", "--layout", "speculators"), 2, "--target")
    words = ("--layout", "speculators", "--target", models.target, "--json")
    assert parsed(run("export", theirs, tmp_path / "out", *words))["layout"] == "speculators"
    facts = parsed(run("info", tmp_path / "out", "--json"))
    assert (facts["layout"], facts["target_layer_ids"]) == ("speculators", [1, 2, 4])


def test_a_target_that_must_be_named(run, models, tmp_path):
    from tests.checkpoint.published import specforge_eagle3

    from dspine.target import load_target

    written = specforge_eagle3(load_target(models.target))
    del written.config["eagle_config"]
    folder = written.write(tmp_path / "d")
    assert_fault(run("export", folder, tmp_path / "out", "--layout", "dspine"), 1, "--target TARGET")
    words = ("--layout", "dspine", "--target", models.target)
    assert_fault(run("export", folder, tmp_path / "out", *words), 1, "[1, 2, 2]", "6 layers")
