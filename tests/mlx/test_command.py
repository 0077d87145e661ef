"""`dspine generate --backend mlx` says what `--backend torch` says."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from dspine.cli import app


def generate(*words):
    result = CliRunner().invoke(app, ["generate", "How many?", "-t", "nano", "-n", "24", *words])
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_both_backends_give_the_same_report():
    ours, theirs = (
        json.loads(generate("--json", "--dtype", "float32", "--verify", "full", "--backend", backend))
        for backend in ("mlx", "torch")
    )
    assert ours["backend"] == "mlx"
    for key in ("text", "token_ids", "rounds", "tau", "head_digest", "drafter_digest", "sampling", "verify", "dtype"):
        assert ours[key] == theirs[key], key


def test_it_streams_and_rounds_weights():
    assert generate("--backend", "mlx", "--dtype", "float32") == generate("--dtype", "float32", "--verify", "full")
    report = json.loads(generate("--backend", "mlx", "--json", "--bits", "8", "--drafter-bits", "4"))
    assert (report["bits"], report["drafter_bits"]) == (8, 4)
    assert report["completion_tokens"] == len(report["token_ids"]) > 0


def test_devices_and_bits_that_are_not_there_are_refused():
    for words, said in ((("--device", "cuda"), "no device 'cuda'"), (("--bits", "3"), "weights of 3 bits")):
        result = CliRunner().invoke(app, ["generate", "Hello", "-t", "nano", "--backend", "mlx", *words])
        assert result.exit_code == 1
        assert said in result.stderr


def test_nothing_is_looked_up():
    words = ["generate", "Hello", "-t", "nano", "--backend", "mlx", "--verify", "full+lookup"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert "the mlx backend looks nothing up" in result.stderr
