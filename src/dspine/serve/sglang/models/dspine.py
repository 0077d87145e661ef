"""The DSpine drafter in SGLang: its DFlash layers, with our injection behind each of them.

One rule: attention, norms and projections are SGLang's, so that they run on its caches and kernels; injection,
refinement and transition cache are the very modules and functions that `drafter.dspine` is made of. Every row of the
output holds the ordinary output and u_L side by side, since the head needs both.
Source: DSpine (arXiv 2609.36173).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.models.dflash import DFlashDraftModel
from sglang.srt.runtime_context import get_spec
from torch import Tensor, nn
from torch.nn import functional as F

from dspine.checkpoint.loading import read_tensors
from dspine.checkpoint.opening import Checkpoint
from dspine.drafter.injection import Injection
from dspine.errors import ServeError
from dspine.serve.adapter.attachment import attach
from dspine.serve.adapter.block import pass_through, rewritten
from dspine.serve.adapter.target import ServedTarget
from dspine.serve.sglang.draft import open_draft
from dspine.serve.sglang.head import DraftHead, TransitionSelector


class DSpineDraftModel(DFlashDraftModel):
    """The network. `attach` must have given it the target before its first forward.

    Args:
        config: transformers' reading of the drafter's config.json.
    """

    def __init__(self, config: Any, quant_config: Any = None, prefix: str = "") -> None:
        # SGLang attends both ways inside a block unless the config says both of these.
        config.is_causal = True
        config.layer_types = ["full_attention"] * int(config.num_hidden_layers)
        super().__init__(config, quant_config=None, prefix=prefix)
        self._checkpoint: Checkpoint = open_draft(Path(get_spec().speculative_draft_model_path))
        sizes = self._checkpoint.config.dspine
        self.width = sizes.hidden_size
        self.injection = Injection(
            sizes.num_hidden_layers,
            sizes.hidden_size,
            sizes.transfer_rank,
            sizes.message_size,
            torch.zeros(sizes.transfer_rank, sizes.hidden_size),
        )
        self.candidate_selector = TransitionSelector(self, sizes.top_k)
        self.lm_head: Any = None  # the worker sets it; `attach` made ours of it
        self._head: DraftHead | None = None
        self._loaded: dict[str, Tensor] | None = None
        self.codes = torch.empty(0)

    # ---------------------------------------------------------------- weights

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Fill every parameter from the drafter's folder, through our own loader.

        Args:
            weights: SGLang's reading of the same folder; not looked at, since it keeps what it does not know to itself.

        Raises:
            CheckpointError: a tensor is missing, unexpected, of another shape, quantised or not finite.
            ServeError: the drafter serves already.
        """
        if self._head is not None:
            raise ServeError("a drafter's weights cannot be changed while it serves", "Start the server anew.")
        loaded = self._loaded = read_tensors(self._checkpoint)
        for parameter in self.parameters():
            parameter.data.fill_(torch.nan)
        super().load_weights((name, loaded[name]) for name in self._checkpoint.trained)
        left = [name for name, parameter in self.named_parameters() if bool(parameter.isnan().any())]
        if left:  # SGLang keeps to itself what it could not place
            raise ServeError(
                f"SGLang filled none or not all of {', '.join(left)}", "Please report this to the dspine project."
            )

    def attach(self, target: ServedTarget) -> tuple[str, ...]:
        """Take the target's tables; returns warnings about how it fits.

        Raises:
            CheckpointError: it was trained for another target. ServeError: it has too few positions.
        """
        assert self._loaded is not None
        attached = attach(self._checkpoint, self._loaded, target, "--context-length")
        self.codes = attached.codes
        self._head = DraftHead(target.head_weight, attached.draft_ids)
        self._loaded = None
        return attached.warnings

    # ---------------------------------------------------------------- the pass

    @torch.no_grad()
    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        forward_batch: Any,
        input_embeds: Tensor | None = None,
        get_embedding: bool = False,
        pp_proxy_tensors: Any = None,
    ) -> Any:
        """Run one block a request.

        Args:
            input_ids, positions: (B·(M+1)), the anchor at row 0 of each block, mask tokens elsewhere.
            input_embeds: (B·(M+1), d) of the target's table.

        Returns:
            hidden_states (B·(M+1), 2d): the final-normed ordinary output, then u_L; row 0 of each block is zero.
        """
        assert input_embeds is not None
        x = input_embeds.to(self.norm.weight.dtype)  # SGLang's eager path hands over bfloat16
        anchors = input_ids.view(-1, self.block_size)[:, :1]

        def through(layer: nn.Module, x: Tensor) -> Tensor:
            update, residual = layer(positions, x, forward_batch, None)
            added: Tensor = update + residual
            return added

        layers = [partial(through, layer) for layer in self.layers]
        heard, state = pass_through(layers, self.injection, x, self.codes[anchors])
        out = torch.cat((self.normed(heard), state), dim=-1)  # (B, M, 2d)
        return LogitsProcessorOutput(next_token_logits=None, hidden_states=F.pad(out, (0, 0, 1, 0)).flatten(0, 1))

    def normed(self, x: Tensor) -> Tensor:
        """The final norm over (..., d), by SGLang's kernel, which takes matrices."""
        out: Tensor = self.norm(x.reshape(-1, self.width).contiguous())
        return out.view(x.shape)

    # ---------------------------------------------------------------- the head

    @property
    def head(self) -> DraftHead:
        if self._head is None:
            raise RuntimeError("the drafter was not attached to its target")
        return self._head

    def compute_candidates(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """V_t: ids and scores (N, K) of the likeliest tokens by the ordinary output, from rows (N, 2d)."""
        return self.head.top(hidden[:, : self.width], self.candidate_selector.top_k)

    def refine(self, last: Tensor, predecessors: Tensor) -> Tensor:
        """Last-write refinement of u_L (..., d) with known predecessors (...): final-normed states (..., d)."""
        return self.normed(rewritten(self.injection, last, self.codes[predecessors]))


EntryClass = DSpineDraftModel
