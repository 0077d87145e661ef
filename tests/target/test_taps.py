"""Layer id k is the output of decoder layer k: for every id, in list order, after errors, from several threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tests.support.tiny_target import KINDS, TOKENS, tiny_target

from dspine.errors import TargetError
from dspine.kernels.kv import Span

IDS = torch.randint(TOKENS, (2, 9), generator=torch.Generator().manual_seed(2))
SPAN = Span(0, (0, 0), 9)


@pytest.mark.parametrize("kind", KINDS)
def test_every_id_equals_the_hidden_state_after_that_layer(kind):
    target = tiny_target(kind, dtype=torch.float64)
    own = target.model(IDS, output_hidden_states=True).hidden_states  # entry 0 is the embedding
    for tap in range(5):
        features = target.forward(IDS, target.new_cache(2), SPAN, taps=(tap,)).features
        torch.testing.assert_close(features, own[tap + 1], rtol=0, atol=1e-6)


def test_features_come_in_the_order_of_the_list():
    target = tiny_target()
    a, b, c = (target.forward(IDS, target.new_cache(2), SPAN, taps=(tap,)).features for tap in (0, 2, 4))
    features = target.forward(IDS, target.new_cache(2), SPAN, taps=(4, 0, 2)).features
    assert torch.equal(features, torch.cat([c, a, b], -1))


@pytest.mark.parametrize(
    ("taps", "message"),
    [
        ((1, 5), r"target_layer_ids \[1, 5\]: 5 outside 0..4 \(the target has 6 layers; the last one"),
        ((-1, 2), r"-1 outside 0..4"),
        ((1, 6), r"6 outside 0..4"),
        ((1, 2, 1), r"names a layer twice"),
    ],
)
def test_ids_that_are_no_features_are_refused(taps, message):
    target = tiny_target()
    with pytest.raises(TargetError, match=message):
        target.forward(IDS, target.new_cache(2), SPAN, taps=taps)


def test_only_tapped_layers_are_hooked_and_once():
    target = tiny_target()
    for _ in range(3):
        target.forward(IDS, target.new_cache(2), SPAN, taps=(1, 3))
    assert [len(layer._forward_hooks) for layer in target.model.model.layers] == [0, 1, 0, 1, 0, 0]


def test_nothing_stale_after_an_error():
    target = tiny_target()
    expected = target.forward(IDS, target.new_cache(2), SPAN, taps=(0, 1)).features

    def fail(*_):
        raise RuntimeError("in layer 3")

    handle = target.model.model.layers[3].register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="in layer 3"):
        target.forward(IDS.flip(1), target.new_cache(2), SPAN, taps=(0, 1))
    handle.remove()
    assert target._taps._current.wanted is None
    assert target.forward(IDS, target.new_cache(2), SPAN).features is None
    assert torch.equal(target.forward(IDS, target.new_cache(2), SPAN, taps=(0, 1)).features, expected)


def test_a_plain_run_of_the_model_records_nothing():
    target = tiny_target()
    with target._taps.recording((1,)) as outer:
        pass
    target.model(IDS)
    assert outer == {}


def test_threads_do_not_see_each_others_layers():
    target = tiny_target()
    batches = [torch.roll(IDS, shift, 1) for shift in range(8)]

    def features(number: int) -> torch.Tensor:
        tapped = ((0, 1), (1, 4), (2,), (3, 0))[number % 4]
        return target.forward(batches[number], target.new_cache(2), SPAN, taps=tapped).features

    alone = [features(number) for number in range(8)]
    with ThreadPoolExecutor(4) as pool:
        for together in [list(pool.map(features, range(8))) for _ in range(5)]:
            assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))
