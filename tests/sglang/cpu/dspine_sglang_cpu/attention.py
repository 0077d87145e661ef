"""Attention for a CPU that knows prefill, decoding, and a block verified behind its context.

One rule: written from the definition, request by request; a block is a chain, so that row t sees the context and the
rows up to itself, unless its layer attends both ways.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


class PlainAttention(TorchNativeAttnBackend):
    """SGLang's plain torch backend, which has no TARGET_VERIFY mode, with one."""

    def forward_extend(
        self, q: Tensor, k: Tensor, v: Tensor, layer: Any, forward_batch: Any, save_kv_cache: bool = True, **rest: Any
    ) -> Tensor:
        if not forward_batch.forward_mode.is_target_verify():
            return super().forward_extend(q, k, v, layer, forward_batch, save_kv_cache)
        pool, table = self.token_to_kv_pool, self.req_to_token_pool.req_to_token
        if save_kv_cache and k is not None:
            pool.set_kv_buffer(layer, KVWriteLoc(forward_batch.out_cache_loc, None), k, v)
        keys, values = pool.get_key_buffer(layer.layer_id), pool.get_value_buffer(layer.layer_id)
        width, rows = forward_batch.spec_info.draft_token_num, []
        query = q.view(forward_batch.batch_size, width, layer.tp_q_head_num, layer.qk_head_dim).transpose(1, 2)
        contexts = forward_batch.seq_lens.tolist()
        for row, (request, context) in enumerate(zip(forward_batch.req_pool_indices.tolist(), contexts, strict=True)):
            slots = table[request, : context + width].long()
            mask = None
            if layer.attn_type != AttentionType.ENCODER_ONLY:
                mask = torch.ones(width, context + width, dtype=torch.bool).tril(diagonal=context)
            mixed = scaled_dot_product_attention(
                query[row : row + 1],
                keys[slots].transpose(0, 1)[None],
                values[slots].transpose(0, 1)[None],
                attn_mask=mask,
                scale=layer.scaling,
                enable_gqa=True,
            )
            rows.append(mixed[0].transpose(0, 1))
        return torch.cat(rows).reshape(len(rows) * width, -1)
