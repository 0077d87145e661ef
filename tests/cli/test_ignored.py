"""No option is ignored: one that says nothing beside the others is refused, and help tells the real defaults."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.conftest import Run, assert_fault

SERVER = ("--target", "nano", "--prompts", "p", "--out", "o", "--server", "http://x/v1")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("generate", "Hi", "--no-drafter", "--measure"), "--no-drafter leaves --measure nothing to do"),
        (("generate", "Hi", "--verify", "full", "--measure"), "goes by no costs"),
        (("chat", "--verify", "2", "--measure"), "goes by no costs"),
        (("generate", "Hi", "--target", "my/model", "--verify", "3"), "no drafter is shipped for my/model"),
        (("generate", "Hi", "--target", "my/model", "--rollback", "replay"), "no drafter is shipped for my/model"),
        (("chat", "--target", "my/model", "--measure"), "leaves --measure nothing to do"),
        (("serve", "--target", "my/model", "--verify", "full"), "leaves --verify nothing to do"),
        (("serve", "--name", " "), "--name is empty"),
        (("generate", "Hi", "--backend", "mlx", "--no-drafter", "--drafter-bits", 4), "leaves --drafter-bits nothing"),
        (("train", "nano", "--dry-run", "--fresh"), "leave --fresh out"),
        (("bench", "nano", "--endpoint", "http://x/v1", "--dtype", "float32", "--predict", "1"), "--dtype, --predict"),
        (("bench", "nano", "--endpoint", "http://x/v1", "--verify", "full"), "leave out --verify"),
        (("bench", "my/model", "--verify", "2", "--predict", "8"), "no drafter is named, so that decoding is plain"),
        (
            ("bench", "nano", "--endpoint", "http://x/v1", "--kernels", "fused", "--capture", "on"),
            "--kernels, --capture",
        ),
        (
            ("generate", "Hi", "--backend", "mlx", "--capture", "off"),
            "--capture and --rollback are the torch backend's",
        ),
        (("regenerate", "r.yaml", "-n", 5, "--temperature", 0), "leave out --max-new-tokens, --temperature"),
        (("regenerate", "r.yaml", "--server", "http://x/v1"), "leave out --server"),
        (("regenerate", *SERVER[:-2], "--concurrency", 3), "no --server to ask: leave out --concurrency"),
        (("regenerate", *SERVER, "--batch", 3), "leave out --batch"),
        (("train", "nano", "--ablate", "all", "--dry-run"), "leave --ablate out"),
    ],
)
def test_an_option_that_would_say_nothing_is_refused(run: Run, words: tuple[object, ...], said: str) -> None:
    assert_fault(run(*words), 2, said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("lab", "--seeds", "0.5"), "whole numbers from 0 on"),
        (("lab", "--seeds", "nan"), "whole numbers from 0 on"),
        (("train", "nano", "--ablate", "all", "--seeds", "1,1"), "there twice"),
        (("bench", "nano", "--concurrency", "inf"), "whole numbers from 1 on"),
        (("profile-verify", "nano", "--rows", "1,0"), "whole numbers from 1 on"),
    ],
)
def test_lists_hold_whole_numbers(run: Run, words: tuple[object, ...], said: str) -> None:
    assert_fault(run(*words), 2, said)


@pytest.mark.parametrize("url", ["localhost:30000/v1", "http://", "http://host:port/v1", "ftp://host/v1", "/v1"])
def test_what_is_no_address_of_a_server_is_told_before_anything_is_written(run: Run, url: str, tmp_path: Path) -> None:
    out = tmp_path / "bench"
    result = run("bench", "nano", "--endpoint", url, "--count", 1, "--tasks", "gsm8k", "--out", out)
    assert_fault(result, 1, f"{url} is no address", "http://localhost:30000/v1")
    assert not out.exists()


@pytest.mark.parametrize(
    ("command", "dtype", "verify"),
    [
        ("generate", "bfloat16 on a CPU that", "auto+lookup"),
        ("eval", "float32 on a CPU", "full"),
        ("bench", "float32", "full"),
    ],
)
def test_help_tells_the_defaults_of_the_command(run: Run, command: str, dtype: str, verify: str) -> None:
    said = " ".join(run(command, "--help").stdout.replace("│", " ").split())
    assert f"Number format of the target. Default: {dtype}" in said
    assert f"same law with each. Default: {verify}." in said
