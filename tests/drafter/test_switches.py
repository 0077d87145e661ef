"""The switches of the design: each changes what it says, and nothing else."""

from __future__ import annotations

import pytest
import torch
from tests.support.blocks import VOCAB, small_config, small_drafter
from tests.support.switches import VARIANTS

from dspine.drafter import DSpine
from dspine.drafter.config import SWITCHES, DSpineConfig
from dspine.errors import ConfigError
from dspine.kernels.kv import Span
from dspine.kernels.law import Law, draw, law_probs


def batch(drafter: DSpine):
    torch.manual_seed(1)
    features = torch.randn(2, 20, drafter.config.feature_size, dtype=drafter.dtype)
    anchors = torch.tensor([[2, 5, 11], [1, 7, 12]])
    return features, torch.tensor([20, 17]), anchors, torch.randint(0, VOCAB - 1, (2, 3, drafter.block_size))


def adopt(drafter: DSpine, other: DSpine) -> DSpine:
    """Every parameter that both have, from `other`."""
    ours, theirs = drafter.state_dict(), other.state_dict()
    drafter.load_state_dict({**ours, **{name: theirs[name] for name in ours.keys() & theirs.keys()}})
    return drafter


def twin(**switches) -> tuple[DSpine, DSpine]:
    """The paper's drafter and the one with these switches, of the same weights, in float64."""
    paper = small_drafter(dtype=torch.float64)
    return paper, adopt(small_drafter(dtype=torch.float64, **switches), paper)


def test_every_switch_is_the_papers_unless_said():
    assert DSpineConfig().switched == {}
    assert small_config(injected_layers=(0, 1, 2)).injected == small_config().injected == (0, 1, 2)
    said = {"is_causal": False, "injected_layers": (0,), "reach": 2, "gated": False, "refined": False}
    assert small_config(**said).switched == said
    assert small_config(predecessor="none").switched == {"predecessor": "none"}
    assert set(SWITCHES) == {*said, "predecessor", "confidence"}


@pytest.mark.parametrize(
    ("switches", "said"),
    [
        ({"injected_layers": (1, 0, 2)}, "ascending"),
        ({"injected_layers": (3,)}, "0 to 2"),
        ({"injected_layers": (0, 1)}, "leaves out the last layer"),
        ({"injected_layers": ()}, "leaves out the last layer"),
        ({"predecessor": "correct"}, "prediction, none"),
        ({"reach": 6}, "reach is 6, for 5 places"),
        ({"reach": 0}, "reach is 0"),
        ({"reach": 2, "predecessor": "none"}, "that hear none"),
    ],
)
def test_switches_that_make_no_sense_are_refused(switches, said):
    with pytest.raises(ConfigError) as caught:
        small_config(**switches)
    assert said in str(caught.value)


def test_without_injection_it_is_the_block_causal_backbone():
    paper, silent = twin(injected_layers=(), refined=False)
    for write in paper.injection.writes:
        write.weight.zero_()
    inputs = batch(paper)
    assert torch.equal(silent.blocks(*inputs).hidden, paper.blocks(*inputs).hidden)
    assert {name.split(".")[1] for name in silent.state_dict() if name.startswith("injection")} == {"readouts"}


@pytest.mark.parametrize("layers", [(2,), (0, 2), (0, 1)])
def test_a_layer_left_out_is_one_that_writes_nothing(layers):
    paper, partial = twin(injected_layers=layers, refined=2 in layers)
    for layer in {0, 1, 2} - set(layers):
        paper.injection.writes[layer].weight.zero_()
    inputs = batch(paper)
    ours, theirs = partial.blocks(*inputs), paper.blocks(*inputs)
    torch.testing.assert_close(ours.hidden, theirs.hidden, atol=1e-12, rtol=0)
    torch.testing.assert_close(ours.readouts, theirs.readouts, atol=1e-12, rtol=0)


def test_without_a_gate_the_message_counts_in_full():
    paper, open_ = twin(gated=False)
    paper.injection.bias.fill_(60.0)  # σ(60) is 1 in float64
    paper.injection.receiver_gate.weight.zero_()
    paper.injection.predecessor_gate.weight.zero_()
    inputs = batch(paper)
    torch.testing.assert_close(open_.blocks(*inputs).hidden, paper.blocks(*inputs).hidden, atol=1e-12, rtol=0)
    gone = {"receiver_gate.weight", "predecessor_gate.weight", "bias"}
    assert paper.injection.state_dict().keys() - open_.injection.state_dict().keys() == gone


def test_without_predecessors_tokens_alone_are_heard():
    paper, deaf = twin(predecessor="none")
    inputs = batch(paper)
    ours, theirs = deaf.blocks(*inputs), paper.blocks(*inputs)
    first = ours.heard[0][:, :, 0]  # place 1 hears the anchor
    torch.testing.assert_close(first, theirs.heard[0][:, :, 0], atol=1e-12, rtol=0)
    silent = adopt(small_drafter(dtype=torch.float64, injected_layers=(), refined=False), paper).blocks(*inputs)
    assert torch.equal(ours.heard[0][:, :, 1:], silent.heard[0][:, :, 1:])
    before = inputs[3][..., :-1]
    refined = deaf.refine(ours.last, before)
    assert torch.equal(refined, paper.refine(ours.last, before))  # the chosen token speaks as ever
    assert (refined != ours.hidden)[:, :, 1:].any(-1).all()


def test_rows_that_see_both_ways():
    paper, both = twin(is_causal=False)
    inputs = batch(paper)
    ours, theirs = both.blocks(*inputs), paper.blocks(*inputs)
    assert (ours.hidden != theirs.hidden).any(-1).all()
    # A change of the last row reaches the first place now, and did not before.
    for drafter, reaches in ((both, True), (paper, False)):
        plain = drafter.blocks(*inputs).hidden
        one = adopt(small_drafter(dtype=torch.float64, block_size=5, is_causal=drafter.config.is_causal), paper)
        shorter = one.blocks(*inputs[:3], inputs[3][..., :5]).hidden
        same = torch.allclose(shorter, plain[:, :, :4], atol=1e-12)
        assert same is not reaches


def test_what_is_not_refined_proposes_its_ordinary_output():
    paper, plain = twin(refined=False)
    cache = plain.new_cache(2)
    features = torch.randn(2, 6, plain.config.feature_size, dtype=torch.float64)
    plain.observe(cache, Span(0, (0, 0), 6), features, (6, 4), torch.zeros(2, 6, dtype=torch.int64))
    anchors = torch.tensor([3, 50])
    hidden = plain.draft_block(cache, 0, anchors).hidden
    greedy = plain.propose(cache, 0, anchors, Law.greedy_rows(2), None)
    scores = hidden @ plain.head.T.double()
    assert torch.equal(greedy.tokens, scores.argmax(-1))
    assert not torch.equal(greedy.tokens, paper.propose(cache, 0, anchors, Law.greedy_rows(2), None).tokens)
    law = Law.of([1.0, 0.7], [0, 4], [1.0, 0.9], [0.0, 0.0])
    uniforms = torch.rand(2, plain.candidates)
    drawn = plain.propose(cache, 0, anchors, law, uniforms)
    probs = law_probs(scores, law)
    assert torch.equal(drawn.tokens, draw(probs, uniforms))
    torch.testing.assert_close(drawn.probs, probs)


def test_a_wider_reach_starts_as_the_papers():
    paper = small_drafter(trained=False)
    wide = small_drafter(trained=False, reach=3)
    assert wide.state_dict().keys() - paper.state_dict().keys() == {f"injection.farther.{j}.weight" for j in (0, 1)}
    for write in (*paper.injection.writes, *wide.injection.writes):
        torch.nn.init.constant_(write.weight, 0.01)
    inputs = batch(paper)
    assert torch.equal(adopt(wide, paper).blocks(*inputs).hidden, paper.blocks(*inputs).hidden)


@pytest.mark.parametrize("replaced", [False, True])
def test_what_is_heard_from_farther_away(replaced):
    """The first layer against the formula, place by place; in a replaced block all of it is of correct tokens."""
    wide = small_drafter(dtype=torch.float64, reach=3)
    features, lengths, anchors, tokens = batch(wide)
    chosen = torch.full((2, 3), replaced)
    heard = wide.blocks(features, lengths, anchors, tokens, chosen, 1).heard[0]
    silent = adopt(small_drafter(dtype=torch.float64, injected_layers=(), refined=False), wide)
    states = silent.blocks(features, lengths, anchors, tokens).heard[0]  # u_1 of places 1..M
    injection, scale = wide.injection, wide.config.transfer_rank**0.5
    matrices = [injection.message.weight, *(each.weight for each in injection.farther)]

    def said(block, row):  # z of row 0..M of a block
        code = wide.codes[tokens[block][row]].double()
        if row == 0 or replaced:
            return scale * code
        spoken = injection.readouts[0].weight @ states[block][row - 1]
        return scale * spoken / spoken.norm()

    for block in ((0, 1), (1, 2)):
        for t in range(1, wide.block_size):
            state = states[block][t - 1]
            spoken = injection.readouts[0].weight @ state
            receiver = scale * spoken / spoken.norm()
            gate = injection.receiver_gate.weight @ receiver + injection.predecessor_gate.weight @ said(block, t - 1)
            message = sum(matrix @ said(block, t - j) for j, matrix in enumerate(matrices, start=1) if t - j >= 0)
            gated = torch.sigmoid(gate + injection.bias) * message
            expected = state + state.pow(2).mean().sqrt() * (injection.writes[0].weight @ gated)
            torch.testing.assert_close(heard[block][t - 1], expected, atol=1e-9, rtol=0)


@pytest.mark.parametrize("switches", VARIANTS.values(), ids=VARIANTS.keys())
def test_drafting_computes_what_training_does(switches):
    """The engine's block equals the training forward, and the cached walk the serial one, whatever the switches."""
    drafter = small_drafter(dtype=torch.float64, **switches)
    features, lengths, anchors, tokens = batch(drafter)
    cache = drafter.new_cache(2)
    starts = anchors[:, 1].tolist()
    drafter.observe(cache, Span(0, (0, 0), 8), features[:, :8], starts, torch.zeros(2, 8, dtype=torch.int64))
    first = tokens[:, 1, 0]
    drafted = drafter.draft_block(cache, 0, first)
    trained = drafter.blocks(features, lengths, anchors[:, 1:2], tokens[:, 1:2])
    torch.testing.assert_close(drafted.hidden, trained.hidden[:, 0], atol=1e-12, rtol=0)
    torch.testing.assert_close(drafted.last, trained.last[:, 0], atol=1e-12, rtol=0)
    if not drafter.refines:
        return
    law = Law.of([1.0, 0.7], [0, 3], [1.0, 0.9], [0.0, 0.0])
    uniforms = torch.rand(2, drafter.candidates, generator=torch.Generator().manual_seed(4))
    proposal = drafter.propose(cache, 0, first, law, uniforms)
    candidates, previous = drafter.top_candidates(drafted.hidden), first
    for t in range(drafter.candidates):
        farther = None if drafted.farther is None else drafted.farther[:, t]
        scores = drafter.candidate_scores(drafter.refine(drafted.last[:, t], previous, farther), candidates[:, t])
        index = draw(law_probs(scores, law), uniforms[:, t])
        previous = candidates[:, t].gather(1, index[:, None]).squeeze(1)
        assert torch.equal(proposal.tokens[:, t], previous)


def test_a_wide_reach_refines_with_what_it_heard():
    wide = small_drafter(reach=2)
    states = wide.blocks(*batch(wide))
    before = batch(wide)[3][..., :-1]
    assert wide.refine(states.last, before, states.farther).shape == states.last.shape
    with pytest.raises(ValueError, match="reach 2"):
        wide.refine(states.last, before)
