"""The commit of replayed states (`--enable-linear-replayssm-spec`): SGLang's pool, its backend of gated delta nets and
its kernels, which Triton's interpreter runs (TRITON_INTERPRET=1, as `make test-sglang` sets it), against recomputation
from scratch.

What stands in is named: the convolution and the scatter of its windows, whose kernels neither Triton's interpreter nor
a CPU takes, and the layers' inputs, which no model computes.
"""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from sglang.srt import runtime_context
from sglang.srt.layers.attention.linear.utils import LinearAttnBackends, LinearAttnKernelBackend
from sglang.srt.layers.attention.mamba.mamba2_metadata import ForwardMetadata
from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool
from sglang.srt.plugins import load_plugins
from sglang.srt.server_args import prepare_server_args
from sglang.srt.speculative import spec_utils
from tests.sglang.recurrence import KERNEL, LAYERS, Inputs, drawn, joined, layer, parameters, scratch
from tests.sglang.serving import NANO

from dspine.serve.sglang.recurrent import is_replayed
from dspine.serve.sglang.worker import DSpineWorker

EXACT, ROUNDED = 1e-6, 1e-3  # float32, and float16 activations
REQUESTS = (3, 1, 4)  # rows of the request table
SLOTS = (7, 2, 5)  # of states, one a request
KEPT_SLOTS = (9, 10, 11)  # where states at a boundary go
STARTS = (250, 3, 120)  # prompts; the first passes 256, the boundary of the radix cache
# Steps that stand in each round, for each request: all, one, some.
SCRIPT = ((8, 1, 3), (1, 8, 8), (8, 8, 8), (4, 7, 2))


@pytest.fixture(scope="module", autouse=True)
def _published():
    """SGLang's configuration of a process, which pool and backend read."""
    load_plugins()
    flags = ["--model-path", str(NANO / "target"), "--device", "cpu", "--attention-backend", "torch_native"]
    args = prepare_server_args(flags)
    args.resolve_once()
    runtime_context.publish(args, role="scheduler")
    yield
    runtime_context.reset_context()


def backend_module():
    """SGLang's backend of gated delta nets, which can be imported once the tests' plugin is loaded."""
    return import_module("sglang.srt.layers.attention.linear.gdn_backend")


def scatter_windows(conv, windows, slots, steps, rows=None):
    """Convolution states (layers, slots, ...) from those after a step of a block (layers, rows, steps, ...)."""
    for row, (slot, step) in enumerate(zip(slots.tolist(), steps.tolist(), strict=True)):
        if step >= 0:
            conv[:, slot] = windows[:, row if rows is None else int(rows[row]), step]


@pytest.fixture
def _on_a_cpu(monkeypatch):
    scatter = import_module("sglang.kernels.ops.mamba.mamba_state_scatter_triton")
    monkeypatch.setattr(scatter, "fused_conv_window_scatter_with_mask", scatter_windows)
    monkeypatch.setattr(spec_utils, "mambaish_config", lambda config: parameters)  # there is no model to ask


class Decoding:
    """Three requests of a hybrid target in the middle of decoding, and what they have taken in so far."""

    def __init__(self, block: int, ring: int, dtype: torch.dtype = torch.float32) -> None:
        self.block, self.dtype = block, dtype
        self.generator = torch.Generator().manual_seed(9)
        self.pool = HybridReqToTokenPool(
            size=4,
            mamba_size=12,
            mamba_spec_state_size=4,
            max_context_len=512,
            device="cpu",
            enable_memory_saver=False,
            cache_params=parameters(dtype),
            mamba_layer_ids=list(LAYERS),
            enable_mamba_extra_buffer=True,
            speculative_num_draft_tokens=block,
            speculative_eagle_topk=1,
            enable_overlap_schedule=False,
            enable_linear_replayssm_spec=True,
            linear_replayssm_cache_len=ring,
        )
        self.requests, self.slots = torch.tensor(REQUESTS), torch.tensor(SLOTS, dtype=torch.int32)
        self.pool.req_index_to_mamba_index_mapping[self.requests] = self.slots
        self.layers = [layer(index, self.generator) for index in LAYERS]
        for weights in self.layers:
            weights.conv_weights = weights.conv_weights.to(dtype)
        self.past = [[self._inputs(start) for start in STARTS] for _ in LAYERS]
        self.lengths = torch.tensor(STARTS)
        self._prefill()
        kernels = LinearAttnKernelBackend.TRITON
        runner = SimpleNamespace(
            server_args=SimpleNamespace(enable_mis=False),
            device="cpu",
            is_draft_worker=False,
            req_to_token_pool=self.pool,
            token_to_kv_pool=None,
            linear_attn_backends=LinearAttnBackends(kernels, kernels, kernels),
        )
        self.backend = backend_module().GDNAttnBackend(runner)
        self.batch = SimpleNamespace(
            req_pool_indices=self.requests,
            seq_lens=self.lengths,
            forward_mode=SimpleNamespace(is_idle=lambda: False),
            mamba_track_indices=torch.tensor(KEPT_SLOTS),
            tree_cache=SimpleNamespace(page_size=1),
        )

    def _inputs(self, tokens: int) -> Inputs:
        given = drawn(tokens, self.generator)
        return Inputs(given.mixed.to(self.dtype), given.a.to(self.dtype), given.b.to(self.dtype))

    def _prefill(self) -> None:
        cache = self.pool.mamba_pool.mamba_cache
        for index, weights in enumerate(self.layers):
            for slot, inputs in zip(SLOTS, self.past[index], strict=True):
                cache.temporal[index, slot] = scratch(weights, inputs)[1][-1].float()
                cache.conv[0][index, slot] = inputs.mixed[1 - KERNEL :].T

    def verify(self) -> list[list[Inputs]]:
        """SGLang's verification of a block a request: checks every place's output, and returns the blocks' inputs."""
        starts = torch.arange(len(REQUESTS) + 1, dtype=torch.int32) * self.block
        self.backend.forward_metadata = ForwardMetadata(query_start_loc=starts, mamba_cache_indices=self.slots)
        forward = SimpleNamespace(
            forward_mode=SimpleNamespace(is_target_verify=lambda: True),
            spec_info=SimpleNamespace(draft_token_num=self.block),
            req_pool_indices=self.requests,
        )
        blocks = [[self._inputs(self.block) for _ in REQUESTS] for _ in LAYERS]
        for weights, past, block in zip(self.layers, self.past, blocks, strict=True):
            rows = block[0]
            for other in block[1:]:
                rows = joined(rows, other)
            found = self.backend.forward_extend(weights, forward, rows.mixed, rows.a, rows.b)[0]
            expected = [scratch(weights, joined(*pair))[0][-self.block :] for pair in zip(past, block, strict=True)]
            self.check(found, torch.cat(expected))
        return blocks

    def commit(self, blocks: list[list[Inputs]], kept: torch.Tensor, backend: object = None) -> None:
        """Our worker's commit of so many steps a request."""
        runner = SimpleNamespace(model_config=None, model=None, req_to_token_pool=self.pool, attn_backend=backend)
        worker = object.__new__(DSpineWorker)
        worker._target_worker = SimpleNamespace(model_runner=runner)
        worker.block_size, worker._need_mamba_verify_commit = self.block, True
        before, self.lengths = self.lengths, self.lengths + kept
        worker._update_target_mamba_state_after_verify(
            batch=self.batch, seq_lens_pre_verify=before, seq_lens_post_verify=self.lengths, commit_lens=kept.int()
        )
        self.batch.seq_lens = self.lengths
        for past, block in zip(self.past, blocks, strict=True):
            for row, steps in enumerate(kept.tolist()):
                past[row] = joined(past[row], block[row][:steps])

    def check(self, found: torch.Tensor, expected: torch.Tensor) -> None:
        """Equal, by the largest difference beside the largest number."""
        close = EXACT if self.dtype == torch.float32 else ROUNDED
        assert float((found.double() - expected).abs().max() / expected.abs().max()) < close


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("_on_a_cpu")
@pytest.mark.parametrize(
    ("block", "ring", "dtype"),
    [
        (8, 16, torch.float32),  # every commit is folded into the state
        (8, 32, torch.float32),  # several blocks lie in the ring, and it turns
        (3, 16, torch.float32),
        (16, 16, torch.float32),  # the ring that SGLang makes unless told, and the block of the published drafters
        (8, 16, torch.float16),  # steps are kept in two parts; Triton's interpreter has no bfloat16
    ],
)
def test_replayed_states_are_those_computed_from_scratch(block, ring, dtype):
    decoding = Decoding(block, ring, dtype)
    states, cursors = decoding.pool.mamba_pool.mamba_cache, decoding.pool.mamba_pool.replayssm_spec_write_pos
    folded = waiting = 0
    for kept in SCRIPT:
        decoding.commit(decoding.verify(), torch.tensor(kept).clamp(max=block))
        for index, weights in enumerate(decoding.layers):
            for row, (slot, past) in enumerate(zip(SLOTS, decoding.past[index], strict=True)):
                assert torch.equal(states.conv[0][index, slot], past.mixed[1 - KERNEL :].T)
                if int(cursors[REQUESTS[row]]):
                    waiting += 1  # the next verification says whether the ring holds the right steps
                    continue
                folded += 1
                decoding.check(states.temporal[index, slot], scratch(weights, past)[1][-1])
    decoding.verify()
    assert folded
    assert waiting or block * 2 >= ring
    for index, weights in enumerate(decoding.layers):
        past = decoding.past[index][0]
        assert STARTS[0] < 256 < len(past.mixed)
        decoding.check(states.temporal[index, KEPT_SLOTS[0]], scratch(weights, past)[1][255])
        assert torch.equal(states.conv[0][index, KEPT_SLOTS[0]], past.mixed[257 - KERNEL : 256].T)
    assert not states.temporal[:, KEPT_SLOTS[1]].any()  # no boundary was crossed


@pytest.mark.usefixtures("_on_a_cpu")
def test_states_that_are_stored_go_through_sglangs_own_commit():
    decoding, asked = Decoding(8, 16), []
    decoding.pool.mamba_pool.enable_linear_replayssm_spec = False
    assert not is_replayed(decoding.pool)
    backend = SimpleNamespace(update_mamba_state_after_mtp_verify=lambda **given: asked.append(given))
    decoding.commit([[decoding._inputs(8)] * 3] * 2, torch.tensor([8, 1, 3]), backend)
    assert asked[0]["last_correct_step_indices"].tolist() == [7, 0, 2]
    decoding.pool.mamba_pool.enable_linear_replayssm_spec = True
    assert is_replayed(decoding.pool)
    decoding.pool.mamba_pool.replayssm_is_kda = True
    assert not is_replayed(decoding.pool)
    assert not is_replayed(SimpleNamespace())  # a target without states
