"""Fixture F3: a Markov chain of twelve tokens as the target, and a drafter that knows it roughly.

The law of the chain's output is known in closed form, so that a lossless round can be told from a biased one by
chi-square. The drafter proposes from its own four likeliest successors and reports the q it drew from, place by place
conditional on its previous candidate, as DSpine's transition walk does. Everything is vectorised over N independent
requests; tens of thousands of rounds take a fraction of a second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dspine.decode.noise import uniforms
from dspine.decode.sampling import SamplingParams, law_of
from dspine.decode.verify import Verdict, verify
from dspine.drafter.proposal import Proposal
from dspine.kernels.law import draw, law_probs

TOKENS = 12
SUPPORT = 4
START = 0
SEED = 1


@dataclass(frozen=True)
class Round:
    """All that one round of N requests saw and decided; noise: "draft" (N, M), "accept" (N, M), "next" (N,)."""

    target_probs: Tensor  # (N, M+1, V)
    proposal: Proposal
    noise: dict[str, Tensor]
    lengths: Tensor  # (N,)


Rule = Callable[[Round], Verdict]


def lossless(seen: Round) -> Verdict:
    """The project's own verdict."""
    noise = torch.cat([seen.noise["accept"], seen.noise["next"][:, None]], dim=1)
    return verify(seen.target_probs, seen.proposal, noise, seen.lengths)


def noise_table(stream: str, requests: int, stride: int) -> Tensor:
    """Uniforms (N, stride) of one seed; request n owns the positions n·stride …, so that no value is shared."""
    return torch.from_numpy(uniforms(SEED, stream, 0, requests * stride)).view(requests, stride)


@dataclass(frozen=True)
class MarkovToy:
    """Target and drafter under one set of sampling parameters.

    p: (V, V) the target's law by predecessor.
    support, q: (V, K) ids and law of the drafter by predecessor; the law it reports.
    drawn: (V, K) the law it draws from: q, unless a test makes it lie.

    Its confidence is the true chance of acceptance, Σ min(p, q), after the token before each place.
    """

    p: Tensor
    support: Tensor
    q: Tensor
    drawn: Tensor
    form: str = "sparse"
    log: list[tuple[Round, Verdict]] = field(default_factory=list)

    @classmethod
    def under(cls, params: SamplingParams, form: str = "sparse") -> MarkovToy:
        generator = torch.Generator().manual_seed(36173)
        target = 0.9 * torch.randn(TOKENS, TOKENS, generator=generator)
        rough = target + 0.6 * torch.randn(TOKENS, TOKENS, generator=generator)
        law = law_of([params])
        scores, support = rough.topk(SUPPORT, dim=-1)
        q = law_probs(scores[None], law)[0]
        return cls(p=law_probs(target[None], law)[0], support=support, q=q, drawn=q, form=form)

    def propose(self, anchors: Tensor, noise: Tensor) -> Proposal:
        """Walk M places from anchors (N,) with noise (N, M)."""
        if noise.shape[1] == 0:
            return Proposal(anchors.new_empty(len(anchors), 0))
        predecessor, tokens, support, probs = anchors, [], [], []
        for place in range(noise.shape[1]):
            support.append(self.support[predecessor])
            probs.append(self.q[predecessor])
            if self.form == "one-hot":
                pick = torch.zeros_like(predecessor)  # the drafter's likeliest
            else:
                pick = draw(self.drawn[predecessor], noise[:, place])
            predecessor = support[-1].gather(1, pick[:, None]).squeeze(1)
            tokens.append(predecessor)
        ids, law, chosen = torch.stack(support, 1), torch.stack(probs, 1), torch.stack(tokens, 1)
        before = torch.cat((anchors[:, None], chosen[:, :-1]), dim=1)
        confidence = torch.minimum(self.p.gather(1, self.support), self.q).sum(1)[before]
        if self.form == "one-hot":
            return Proposal(chosen, confidence=confidence)
        if self.form == "dense":
            dense = torch.zeros(*ids.shape[:2], TOKENS).scatter(2, ids, law)
            return Proposal(chosen, probs=dense, confidence=confidence)
        return Proposal(chosen, ids, law, confidence)

    def generate(
        self,
        requests: int,
        count: int,
        candidates: int,
        rule: Rule = lossless,
        lengths: Callable[[Proposal], Tensor] | None = None,
        fresh: bool = False,
    ) -> Tensor:
        """The first `count` tokens of N requests, (N, count), in rounds of M candidates judged by `rule`.

        Args:
            fresh: draw every block from noise of its own, instead of reading a position's again where its candidate
                was void.
        """
        stride = (count + 1) * (candidates + 1)
        draft, accept, follow = (noise_table(name, requests, stride) for name in ("draft", "accept", "next"))
        places = torch.arange(candidates)
        output = torch.zeros(requests, count + candidates + 1, dtype=torch.int64)
        filled = torch.zeros(requests, dtype=torch.int64)
        anchors = torch.full((requests,), START)
        self.log.clear()
        generator = torch.Generator().manual_seed(SEED)
        while int(filled.min()) < count:
            at = filled[:, None] + places
            drawn_with = torch.rand(at.shape, generator=generator) if fresh else draft.gather(1, at)
            proposal = self.propose(anchors, drawn_with)
            seen = Round(
                target_probs=self.p[torch.cat([anchors[:, None], proposal.tokens], dim=1)],
                proposal=proposal,
                noise={
                    "draft": drawn_with,
                    "accept": accept.gather(1, at),
                    "next": follow.gather(1, filled[:, None])[:, 0],
                },
                lengths=torch.full((requests,), candidates) if lengths is None else lengths(proposal),
            )
            verdict = rule(seen)
            self.log.append((seen, verdict))
            tokens = torch.cat([proposal.tokens, anchors[:, None]], dim=1)  # room for the token that ends the round
            tokens.scatter_(1, verdict.accepted[:, None], verdict.next_token[:, None])
            slot = (filled[:, None] + torch.arange(candidates + 1)).clamp(max=output.shape[1] - 1)
            # Tokens beyond the verdict are overwritten by the next round; a finished request writes past `count`.
            output.scatter_(1, slot, torch.where(filled[:, None] < count, tokens, output.gather(1, slot)))
            filled = torch.where(filled < count, filled + verdict.accepted + 1, filled)
            anchors = verdict.next_token
        return output[:, :count]

    def bonus(self) -> tuple[Tensor, Tensor]:
        """(last candidate, bonus token) of the requests whose first round accepted everything it was given."""
        seen, verdict = self.log[0]
        full = verdict.accepted == seen.lengths
        before = torch.cat([torch.full((len(full), 1), START), seen.proposal.tokens], dim=1)
        return before.gather(1, verdict.accepted[:, None])[full, 0], verdict.next_token[full]


@dataclass(frozen=True)
class Fit:
    """A chi-square comparison of counts with their law."""

    statistic: float
    freedom: int
    impossible: int  # observations of probability 0

    @property
    def chance(self) -> float:
        """Probability of a statistic at least this large when the law holds."""
        if self.impossible or not self.freedom:
            return float(self.impossible == 0)
        half = torch.tensor([self.freedom, self.statistic], dtype=torch.float64) / 2
        return float(torch.special.gammaincc(half[0], half[1]))


def fit(predecessors: Tensor, tokens: Tensor, p: Tensor) -> Fit:
    """Compare tokens (N,) with p[predecessor], cell by cell; cells expected under 5 are pooled per predecessor."""
    observed = torch.zeros(TOKENS, TOKENS, dtype=torch.float64)
    observed.index_put_((predecessors, tokens), torch.ones(len(tokens), dtype=torch.float64), accumulate=True)
    expected = observed.sum(1, keepdim=True) * p.double()
    statistic, freedom = 0.0, 0
    for seen, due in zip(observed, expected, strict=True):
        rare = (due < 5) & (due > 0)
        cells = [(float(seen[i]), float(due[i])) for i in (due >= 5).nonzero()[:, 0]]
        if float(due[rare].sum()) >= 5:
            cells.append((float(seen[rare].sum()), float(due[rare].sum())))
        statistic += sum((o - e) ** 2 / e for o, e in cells)
        freedom += max(0, len(cells) - 1)
    return Fit(statistic, freedom, impossible=int(observed[p == 0].sum()))


def marginals(p: Tensor, count: int) -> list[Tensor]:
    """Law (V,) of each of the first `count` tokens of the chain."""
    law, laws = torch.nn.functional.one_hot(torch.tensor(START), TOKENS).double(), []
    for _ in range(count):
        law = law @ p.double()
        laws.append(law)
    return laws
