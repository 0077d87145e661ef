"""What a token of a round is: a candidate that stood, or the target's own."""

from __future__ import annotations

import pytest

from dspine.decode.records import RoundRecord, kinds


@pytest.mark.parametrize(
    ("record", "wanted"),
    [
        (RoundRecord(3, 1, 2), ["accepted", "corrected"]),
        (RoundRecord(3, 0, 1), ["corrected"]),
        (RoundRecord(3, 3, 4), ["accepted", "accepted", "accepted", "bonus"]),
        (RoundRecord(3, 3, 3), ["accepted", "accepted", "accepted"]),  # cut before the bonus
        (RoundRecord(3, 2, 1), ["accepted"]),
        (RoundRecord(0, 0, 1), ["plain"]),
    ],
)
def test_what_a_token_is(record, wanted):
    assert kinds((record,), record.kept) == wanted


def test_the_tokens_of_the_prefill_are_first():
    assert kinds((), 1) == ["first"]
