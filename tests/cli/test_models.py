"""Which drafter a command takes."""

from __future__ import annotations

import pytest
import typer

from dspine.checkpoint import SHIPPED
from dspine.cli.models import SHIPPED_FOR, choose_drafter
from dspine.target.builtin import NAMES


@pytest.mark.parametrize(
    ("target", "named", "refused", "chosen"),
    [
        ("smollm2", None, False, "smollm2-135m-dspine"),
        ("smollm2", "mine", False, "mine"),
        ("smollm2", None, True, None),
        ("a/folder", None, False, None),
        ("a/folder", "mine", False, "mine"),
    ],
)
def test_named_before_shipped_before_none(target, named, refused, chosen):
    assert choose_drafter(target, named, refused) == chosen


def test_naming_one_and_refusing_it():
    with pytest.raises(typer.BadParameter, match="exclude"):
        choose_drafter("smollm2", "mine", no_drafter=True)


def test_every_built_in_target_has_a_shipped_drafter():
    assert set(SHIPPED_FOR) == set(NAMES)
    assert set(SHIPPED_FOR.values()) <= set(SHIPPED)
