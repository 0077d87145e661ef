"""What `verify` can say: how the number of candidates to verify is found.

One rule: three kinds, never mixed. A row's *own* rule looks at nothing but that row, so that a seed gives its tokens
again, alone or in any batch; a *shared* policy weighs all rows of a batch and the costs of this machine; with *trees*
the target chooses by itself, and is asked about many paths at once (`decode/branching.py`).

    full            own      the whole block
    N               own      the first N candidates
    confidence:C    own      up to the first candidate whose confidence is below C (DSpark's static threshold)
    auto            shared   one number for all rows, by past acceptance and costs; may let the drafter rest; nodes of
                             trees where all rows are greedy
    scheduled       shared   by the confidences of the block at hand and costs, with early stop
    lagged          shared   how many by the confidences of two rounds ago and costs
    tree:N          trees    the N likeliest nodes of the tree that the block's transitions make

To `full`, `N`, `auto` and `tree:N` a `+lookup` can be added: a row that has said its newest tokens before is not
drafted, and what followed them then is verified (`decode/lookup.py`); `+lookup:N` asks for N such tokens at least.

Sources: DSpark (arXiv 2607.05147) and DeepSpec; `decode/schedule.py`, `decode/prefix.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from dspine.errors import ConfigError

Shared = Literal["auto", "scheduled", "lagged"]
Verify = int | str
"""A number of candidates, or one of the words above."""

SHARED: tuple[Shared, ...] = get_args(Shared)
_THRESHOLD = "confidence:"
_TREE = "tree:"
_LOOKUP = "+lookup"
SHORTEST = 3  # tokens that must have been said before, where `+lookup` names no number


@dataclass(frozen=True)
class Trees:
    """A tree of candidates a row.

    nodes: the most that one has: a round's forward takes in one token more of each row, accepted ones whose keys are to
        be made anew among them.
    """

    nodes: int

    def __str__(self) -> str:
        return f"{_TREE}{self.nodes}"


@dataclass(frozen=True)
class Own:
    """A rule that depends on nothing but its own row.

    most: the most candidates to verify; None: all.
    threshold: the block ends before the first candidate of less confidence; 0: confidences are not asked.
    """

    most: int | None = None
    threshold: float = 0.0

    def room(self, room: int) -> int:
        """How many of `room` candidates may be verified, before any is drafted."""
        return room if self.most is None else min(room, self.most)

    def cut(self, length: int, confidence: Sequence[float] | None) -> int:
        """How many of the first `length` candidates are verified.

        Args:
            confidence: of the row's candidates, from place 1 on; None where nothing was drafted.
        """
        if not self.threshold or confidence is None:
            return length
        # Not "below": what is no number (NaN) is no confidence.
        return next((k for k, c in enumerate(confidence[:length]) if not c >= self.threshold), length)


FULL = Own()


def read_verify(verify: object) -> Own | Shared | Trees:
    """The policy that a word or a number stands for.

    Raises:
        ConfigError: it stands for none; naming what is possible.
    """
    if isinstance(verify, int) and not isinstance(verify, bool) and verify > 0:
        return Own(most=verify)
    if isinstance(verify, str):
        if verify == "full":
            return FULL
        if verify in SHARED:
            return verify
        if (threshold := _threshold(verify)) is not None:
            return Own(threshold=threshold)
        if (nodes := verify.removeprefix(_TREE)) != verify and nodes.isascii() and nodes.isdigit() and int(nodes):
            return Trees(int(nodes))
    raise ConfigError(
        f"verify is {verify!r}",
        f'give "full", a number of candidates from 1 on, "{_THRESHOLD}C" with 0 < C <= 1, "{_TREE}N" with a number of '
        "nodes from 1 on, or one of " + ", ".join(f'"{word}"' for word in SHARED),
    )


def split_lookup(verify: Verify) -> tuple[Verify, int]:
    """A policy without its lookup, and how many tokens must have been said before; 0: nothing is looked up.

    Raises:
        ConfigError: no such number, or a policy beside which nothing can be looked up.
    """
    if not isinstance(verify, str) or _LOOKUP not in verify:
        return verify, 0
    word, _, tail = verify.partition(_LOOKUP)
    number = tail.removeprefix(":") if tail else str(SHORTEST)
    shortest = int(number) if number != tail and number.isascii() and number.isdigit() else 0
    if not shortest:
        raise ConfigError(f"verify is {verify!r}", f'give "{word}{_LOOKUP}" or "{word}{_LOOKUP}:N", N from 1 on')
    rest: Verify = int(word) if word.isascii() and word.isdigit() else word
    policy = read_verify(rest)
    if policy in ("scheduled", "lagged") or (isinstance(policy, Own) and policy.threshold):
        raise ConfigError(
            f"verify is {verify!r}, and what is looked up has no confidence",
            "look things up beside full, a number, auto or tree:N",
        )
    return rest, shortest


class Drafts(Protocol):
    """What is asked of a drafter here: ours, or another engine's. See `drafter/proposal.py`."""

    @property
    def candidates(self) -> int: ...
    @property
    def confident(self) -> bool: ...


def check_policy(policy: Own | Shared, drafter: Drafts | None) -> None:
    """Refuse a policy that the drafter cannot serve; without a drafter there is nothing to verify, and any will do.

    Raises:
        ConfigError: more candidates than a block holds, or confidences that the drafter does not give.
    """
    if drafter is None:
        return
    if isinstance(policy, Own) and (policy.most or 0) > drafter.candidates:
        raise ConfigError(f"verify is {policy.most}", f"a block has candidates 1..{drafter.candidates}")
    if needs_confidence(policy) and not drafter.confident:
        asked = f"{_THRESHOLD}{policy.threshold:g}" if isinstance(policy, Own) else policy
        raise ConfigError(
            f"verify is {asked!r}, and this drafter gives no confidences",
            'train one with drafter.confidence: true, or give "auto", "full" or a number',
        )


def needs_confidence(policy: Own | Shared) -> bool:
    """Whether a policy asks a block's candidates for their confidences."""
    return policy.threshold > 0 if isinstance(policy, Own) else policy != "auto"


def _threshold(word: str) -> float | None:
    if not word.startswith(_THRESHOLD):
        return None
    try:
        value = float(word.removeprefix(_THRESHOLD))
    except ValueError:
        return None
    return value if 0 < value <= 1 else None
