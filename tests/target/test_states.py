"""States that are brought back: as if the rejected tokens had never been there."""

from __future__ import annotations

import pytest
import torch
from tests.support.hybrid_target import FAMILIES, hybrid_model, hybrid_target, wide
from tests.support.tiny_target import TOKENS, tiny_target, tiny_tokenizer
from torch import Tensor

from dspine.errors import ConfigError, TargetError
from dspine.kernels.kv import Span
from dspine.target import rollback
from dspine.target.cache import TargetCache
from dspine.target.model import Target
from dspine.target.rollback import METHODS, RollbackCost, measure
from dspine.target.states import Method

QUICK = ("qwen3_next", "qwen3_5", "mamba", "mamba2", "falcon_h1", "lfm2")
EACH = [pytest.param(f, marks=() if f in QUICK else pytest.mark.slow) for f in FAMILIES]
IDS = torch.randint(TOKENS, (3, 40), generator=torch.Generator().manual_seed(6))


@pytest.fixture(scope="module")
def target() -> Target:
    return hybrid_target("qwen3_5", num_hidden_layers=4)


def settled(cache: TargetCache, lengths: list[int]) -> list[Tensor]:
    """All states of all rows when those stand at `lengths`."""
    assert cache.states is not None
    cache.states.settle(lengths)
    return [state for _, layer in sorted(cache.states._layers.items()) for _, state in sorted(layer.stored.items())]


def run(target: Target, cache: TargetCache, ids: Tensor, starts: tuple[int, ...], *, whole: bool = False) -> Tensor:
    return target.forward(ids, cache, Span(0, starts, ids.shape[1], whole=whole)).hidden


def ragged(target: Target, method: Method, garbage: int) -> tuple[TargetCache, list[int]]:
    """Three rows after two rounds that accepted 1 to all of their tokens; `garbage` seeds what was rejected."""
    cache, lengths = target.new_cache(3, method), [5, 5, 5]
    run(target, cache, IDS[:, :5], (0,) * 3, whole=True)
    for accepted in ((2, 6, 1), (6, 3, 4)):
        block = torch.randint(TOKENS, (3, 6), generator=torch.Generator().manual_seed(garbage))
        for row, count in enumerate(accepted):
            block[row, :count] = IDS[row, lengths[row] : lengths[row] + count]
        run(target, cache, block, tuple(lengths))
        lengths = [length + count for length, count in zip(lengths, accepted, strict=True)]
    return cache, lengths


@pytest.mark.parametrize("family", EACH)
def test_a_state_brought_back_is_the_state_computed_from_scratch(family: str) -> None:
    target = hybrid_target(family)
    for method in METHODS:
        with wide(target.model):
            cache, lengths = ragged(target, method, garbage=1)
            states = settled(cache, lengths)
        for row, length in enumerate(lengths):
            anew = target.new_cache(1, method)
            with wide(target.model):
                run(target, anew, IDS[row : row + 1, :length], (0,), whole=True)
            for state, expected in zip(states, settled(anew, [length]), strict=True):
                torch.testing.assert_close(state[row], expected[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_what_was_rejected_leaves_no_trace(target: Target, method: Method) -> None:
    one, other = (settled(*ragged(target, method, garbage)) for garbage in (1, 2))
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("method", METHODS)
def test_a_forward_that_broke_off_can_be_run_again(target: Target, method: Method, monkeypatch) -> None:
    undisturbed, lengths = ragged(target, method, garbage=1)
    block = IDS[:, 20:24]
    expected = run(target, undisturbed, block, tuple(lengths))
    broken, _ = ragged(target, method, garbage=1)

    def fail(*_: object, **__: object) -> Tensor:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(target._parts.layers[2], "forward", fail)
        with pytest.raises(KeyboardInterrupt):
            run(target, broken, block, tuple(lengths))
    assert torch.equal(run(target, broken, block, tuple(lengths)), expected)


def test_a_state_cannot_go_where_it_never_was(target: Target) -> None:
    cache = target.new_cache(3, "replay")
    run(target, cache, IDS[:, :5], (0,) * 3, whole=True)
    with pytest.raises(RuntimeError, match="row 0: its state stands at None, and cannot go on at 3"):
        run(target, cache, IDS[:, 3:6], (3, 5, 5))
    run(target, cache, IDS[:, :5], (0,) * 3)  # from the beginning it always can
    with pytest.raises(RuntimeError, match="row 1"):
        run(target, cache, IDS[:, 3:6], (3, 6, 3))


def test_rows_move_with_their_states(target: Target) -> None:
    cache, lengths = ragged(target, "replay", garbage=1)
    for row, length in enumerate(lengths):
        cache.rows.commit(row, length)
    expected = run(target, ragged(target, "replay", garbage=1)[0], IDS[:, 30:32], tuple(lengths))
    cache.move(2, 0)
    got = run(target, cache, IDS[[2, 1], 30:32], (lengths[2], lengths[1]))
    torch.testing.assert_close(got, expected[[2, 1]], rtol=0, atol=1e-5)


def test_rows_that_a_forward_leaves_out_keep_their_place(target: Target) -> None:
    cache, lengths = ragged(target, "snapshot", garbage=1)
    expected = run(target, ragged(target, "snapshot", garbage=1)[0], IDS[:, 30:31], tuple(lengths))
    for row, length in enumerate(lengths):
        cache.rows.commit(row, length)
    target.forward(IDS[2:, :7], cache, Span(2, (0,), 7, whole=True))  # another prompt takes the third row
    got = run(target, cache, IDS[:2, 30:31], tuple(lengths[:2]))
    torch.testing.assert_close(got, expected[:2], rtol=0, atol=1e-5)


def test_memory_of_snapshots_grows_with_the_block_and_that_of_inputs_hardly(target: Target) -> None:
    row = target.rollback.row_bytes
    held = {(method, width): measure(target, method, 2, width).bytes for method in METHODS for width in (4, 16)}
    assert held["snapshot", 16] - held["snapshot", 4] == 12 * 2 * row
    assert held["replay", 16] - held["replay", 4] < 12 * 2 * row / 2


def test_the_quicker_way_is_taken_and_within_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    target = hybrid_target("lfm2", rollback="auto")
    seconds = {"snapshot": 1.0, "replay": 2.0}
    monkeypatch.setattr(rollback, "measure", lambda t, method, rows, width: RollbackCost(seconds[method], 0))
    assert target.rollback.method(1, 8) == "snapshot"
    seconds["snapshot"] = 3.0
    assert target.rollback.method(1, 7) == "snapshot"  # measured once
    assert target.rollback.method(1, 9) == "replay"
    assert target.rollback.method(100_000, 8) == "replay"  # too much memory
    with pytest.raises(ConfigError, match="rollback is 'both'"):
        hybrid_target("lfm2", rollback="both")  # type: ignore[arg-type]


@pytest.mark.parametrize("family", ["qwen3_next", "nemotron_h"])
def test_any_kind_of_layer_can_be_tapped(family: str) -> None:
    target = hybrid_target(family)
    features = target.forward(IDS[:1], target.new_cache(1), Span(0, (0,), 40, whole=True), (0, 1, 2)).features
    with torch.no_grad():
        own = target.model(IDS[:1], use_cache=False, output_hidden_states=True).hidden_states
    torch.testing.assert_close(features, torch.cat(own[1:4], dim=-1), rtol=0, atol=1e-4)


def test_the_model_goes_on_working_with_caches_of_its_own() -> None:
    model = hybrid_model("qwen3_5", dtype=torch.float64)

    def generated() -> Tensor:
        return model.generate(IDS[:1, :9], max_new_tokens=12, do_sample=False)

    before = generated()
    Target(model, tiny_tokenizer(), name="once")
    second = Target(model, tiny_tokenizer(), name="twice")
    assert torch.equal(generated(), before)
    assert second.stateful


def test_a_step_form_that_differs_from_the_block_form_is_refused() -> None:
    with pytest.raises(TargetError, match="through a ragged cache with rollback, its logits differ"):
        hybrid_target("zamba2", time_step_min=0.5)


def test_ordinary_models_are_left_alone() -> None:
    target = tiny_target(num_hidden_layers=2)
    assert not target.stateful
    assert target.new_cache(1).states is None
    assert not [name for name, module in target.model.named_modules() if "forward" in vars(module)]
