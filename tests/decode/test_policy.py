"""What `verify` can say, and what a drafter or a request cannot honour."""

from __future__ import annotations

import math

import pytest
from tests.support.confidence import Confident
from tests.support.oracle import OracleDrafter
from tests.support.tiny_target import tiny_target

from dspine.decode.engine import Engine
from dspine.decode.policy import FULL, SHORTEST, Own, check_policy, read_verify, split_lookup
from dspine.decode.sampling import SamplingParams
from dspine.errors import ConfigError, RequestError


@pytest.mark.parametrize(
    ("verify", "policy"),
    [
        ("full", FULL),
        (1, Own(most=1)),
        (99, Own(most=99)),
        ("confidence:0.5", Own(threshold=0.5)),
        ("confidence:1", Own(threshold=1.0)),
        ("auto", "auto"),
        ("scheduled", "scheduled"),
        ("lagged", "lagged"),
    ],
)
def test_words_and_numbers(verify: object, policy: object) -> None:
    assert read_verify(verify) == policy


@pytest.mark.parametrize(
    "verify",
    ["all", "Full", 0, -1, True, 2.0, None, "", "3", "confidence"]
    + [f"confidence:{level}" for level in ("", "0", "-1", "1.1", "nan", "x")],
)
def test_others_are_refused_and_the_known_ones_listed(verify: object) -> None:
    with pytest.raises(ConfigError, match=r'verify is .*\n.*"full".*"confidence:C".*"auto", "scheduled", "lagged"'):
        read_verify(verify)


@pytest.mark.parametrize(
    ("verify", "rest", "shortest"),
    [
        ("full", "full", 0),
        (3, 3, 0),
        ("full+lookup", "full", SHORTEST),
        ("3+lookup:2", 3, 2),
        ("auto+lookup:12", "auto", 12),
        ("tree:4+lookup", "tree:4", SHORTEST),
    ],
)
def test_what_is_looked_up_stands_behind_a_policy(verify: int | str, rest: int | str, shortest: int) -> None:
    assert split_lookup(verify) == (rest, shortest)


@pytest.mark.parametrize("tail", ["+lookup:", "+lookup:0", "+lookup:-1", "+lookup:x", "+lookup3", "+lookup+lookup"])
def test_a_lookup_of_no_number_is_refused(tail: str) -> None:
    with pytest.raises(ConfigError, match=r'give "full\+lookup" or "full\+lookup:N", N from 1 on'):
        split_lookup(f"full{tail}")


def test_a_lookup_stands_beside_what_asks_no_confidences() -> None:
    for word in ("scheduled", "lagged", "confidence:0.5"):
        with pytest.raises(ConfigError, match=r"no confidence\n.*full, a number, auto or tree:N"):
            split_lookup(f"{word}+lookup")
    for word in ("", "all", "0", "tree:0"):
        with pytest.raises(ConfigError, match='give "full", a number'):
            split_lookup(f"{word}+lookup")


def test_a_threshold_ends_the_block_before_the_first_doubt() -> None:
    rule = Own(threshold=0.5)
    assert [rule.cut(4, c) for c in ([0.9, 0.5, 0.4, 0.9], [0.4, 1, 1, 1], [1, 1, 1, 1])] == [2, 0, 4]
    assert rule.cut(2, [0.9, 0.9, 0.1]) == 2
    assert rule.cut(3, [0.9, math.nan, 0.9]) == 1
    assert rule.cut(0, None) == 0
    assert FULL.cut(3, [0.0, 0.0, 0.0]) == 3
    assert (Own(most=2).room(5), Own(most=2).room(1), FULL.room(5)) == (2, 1, 5)


def test_what_the_drafter_cannot_serve_is_refused() -> None:
    drafter = OracleDrafter(tiny_target(num_hidden_layers=3), 8)
    with pytest.raises(ConfigError, match=r"verify is 8\n.*1\.\.7"):
        check_policy(Own(most=8), drafter)
    for policy in (Own(threshold=0.5), "scheduled", "lagged"):
        with pytest.raises(ConfigError, match=r"gives no confidences\n.*drafter\.confidence: true"):
            check_policy(policy, drafter)
        check_policy(policy, Confident(drafter))
        check_policy(policy, None)
    for policy in (FULL, Own(most=7), "auto"):
        check_policy(policy, drafter)


def test_a_request_may_bring_a_rule_of_its_own_only() -> None:
    for verify in ("auto", "scheduled", "lagged"):
        with pytest.raises(RequestError, match=f'"{verify}" concerns all requests'):
            SamplingParams(verify=verify)
    with pytest.raises(RequestError, match="verify is 'most'"):
        SamplingParams(verify="most")
    with pytest.raises(RequestError, match="verify: a number is wanted"):
        SamplingParams(verify=True)
    drafter = OracleDrafter(tiny_target(num_hidden_layers=3), 8)
    engine = Engine(drafter.target, drafter)
    for verify, said in ((9, "verify is 9"), ("confidence:0.5", "gives no confidences")):
        with pytest.raises(RequestError, match=said):
            engine.add([1, 2], SamplingParams(verify=verify))
    Engine(drafter.target).add([1, 2], SamplingParams(verify=9))  # nothing is drafted: nothing to refuse
