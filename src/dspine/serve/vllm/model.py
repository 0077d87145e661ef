"""The DSpine drafter in vLLM: its DFlash layers, our injection behind each of them, and the greedy walk.

One rule: attention, norms and projections are vLLM's, so that they run on its caches and kernels; injection, refinement
and transition cache are the very modules and functions that `drafter.dspine` is made of. What a forward hands back in
the place of hidden states are the drafted tokens themselves. Source: DSpine (arXiv 2609.36173).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from vllm.logger import init_logger
from vllm.model_executor.models.qwen3_dflash import DFlashQwen3ForCausalLM, dflash_has_any_non_causal
from vllm.platforms import current_platform

from dspine.checkpoint.loading import read_tensors
from dspine.drafter.injection import Injection
from dspine.drafter.tables import TargetTables
from dspine.drafter.transitions import predecessors, transition_scores, walked
from dspine.errors import ServeError
from dspine.kernels.law import Law
from dspine.serve.adapter.attachment import attach
from dspine.serve.adapter.block import pass_through, rewritten
from dspine.serve.adapter.draft import drafter_folder
from dspine.serve.vllm import cpu, hook
from dspine.serve.vllm.draft import open_draft
from dspine.serve.vllm.limits import broken_limits, check_block, check_method
from dspine.serve.vllm.target import served_target

logger = init_logger("vllm.dspine")


class DSpineDraftModel(DFlashQwen3ForCausalLM):
    """The network. The hook must have attached it to its target before its first forward.

    Args:
        vllm_config: of the engine; its speculative_config names the drafter.
    """

    model_cls = cpu.LayersOnCpu if current_platform.is_cpu() else DFlashQwen3ForCausalLM.model_cls  # at `model`

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        check_method(vllm_config)
        if broken := broken_limits(vllm_config):
            raise broken[0]
        spec = vllm_config.speculative_config
        checkpoint = open_draft(drafter_folder(spec.draft_model_config.model, spec.draft_model_config.revision))
        sizes = checkpoint.config.dspine
        check_block(spec.num_speculative_tokens, sizes.candidates)
        if dflash_has_any_non_causal(spec.draft_model_config.hf_config):
            raise ServeError(
                f"{checkpoint.config.folder}: its config.json does not say is_causal, and vLLM would let the rows of "
                "a block see those behind them",
                'Write "is_causal": true into it.',
            )
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self._vllm_config, self._checkpoint = vllm_config, checkpoint
        self._rows, self._top_k = 1 + spec.num_speculative_tokens, sizes.top_k
        self.injection = Injection(
            sizes.num_hidden_layers,
            sizes.hidden_size,
            sizes.transfer_rank,
            sizes.message_size,
            torch.zeros(sizes.transfer_rank, sizes.hidden_size),
        )
        self.has_own_embed_tokens = self.has_own_lm_head = False  # vLLM puts the target's in their places
        self._tables: TargetTables | None = None
        self._codes = torch.empty(0)
        hook.install()
        if current_platform.is_cpu():
            cpu.mend_sampling()

    # ---------------------------------------------------------------- weights

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Fill every parameter from the drafter's folder, through our own loader.

        Args:
            weights: vLLM's reading of the same folder; not looked at.

        Raises:
            CheckpointError: a tensor is missing, unexpected, of another shape, quantised or not finite.
            ServeError: the drafter drafts already, or vLLM left a parameter as it was.
        """
        if self._tables is not None:
            raise ServeError("a drafter's weights cannot be changed while it drafts", "Start the engine anew.")
        self._loaded = read_tensors(self._checkpoint)
        parameters = {
            name: parameter
            for name, parameter in self.named_parameters()
            if not name.startswith(("lm_head.", "model.embed_tokens.", "model.mask_embedding"))
        }
        for parameter in parameters.values():
            parameter.data.fill_(torch.nan)
        trained = {name: self._loaded[name] for name in self._checkpoint.trained}
        trained = {name: tensor for name, tensor in trained.items() if not name.startswith("confidence_head.")}
        ours = {name: trained.pop(name) for name in [*trained] if name.startswith("injection.")}
        self.injection.load_state_dict({name.removeprefix("injection."): tensor for name, tensor in ours.items()})
        super().load_weights(trained.items())
        left = [name for name, parameter in parameters.items() if bool(parameter.isnan().any())]
        if left:
            raise ServeError(
                f"vLLM filled none or not all of {', '.join(left)}", "Please report this to the dspine project."
            )

    def attach(self) -> None:
        """Take the target's tables, which vLLM has put in the places of ours by now.

        Raises:
            CheckpointError: it was trained for another target. ServeError: it has too few positions.
        """
        target = served_target(self._vllm_config, self.model.embed_tokens, self.lm_head)
        attached = attach(self._checkpoint, self._loaded, target, "--max-model-len")
        for warning in attached.warnings:
            logger.warning(warning)
        self._codes = attached.codes
        self._tables = TargetTables(target.embedding, target.head_weight, attached.draft_ids)
        self._loaded = {}

    # ---------------------------------------------------------------- drafting

    @torch.no_grad()
    def forward(self, input_ids: Tensor, positions: Tensor, inputs_embeds: Tensor | None = None) -> Tensor:
        """Draft one block a request.

        Args:
            input_ids, positions: (N,), blocks of M+1 rows with the anchor at row 0 and mask tokens elsewhere; rows
                behind the last whole block are padding.
            inputs_embeds: None always: the table is the target's.

        Returns:
            token ids (N, 1) int64; row 0 of a block says nothing.
        """
        if self._tables is None:
            raise ServeError(
                "vLLM did not attach dspine's drafter to its target",
                "Another plugin may have replaced DFlashProposer._maybe_share_lm_head: set VLLM_PLUGINS=dspine.",
            )
        count = len(input_ids)
        missing = -count % self._rows
        x = F.pad(self.model.embed_input_ids(input_ids), (0, 0, 0, missing))  # (B·(M+1), d)
        anchors = F.pad(input_ids, (0, missing)).view(-1, self._rows)[:, 0].long()

        def through(layer: nn.Module, x: Tensor) -> Tensor:
            update, residual = layer(positions=positions, hidden_states=x[:count], residual=None)
            return F.pad(update + residual, (0, 0, 0, missing))

        layers = [partial(through, layer) for layer in self.model.layers]
        heard, last = pass_through(layers, self.injection, x, self._codes[anchors].unsqueeze(1))
        tokens = self._walk(heard, last, anchors, self._tables)
        return F.pad(tokens, (1, 0)).view(-1, 1)[:count]

    def _walk(self, heard: Tensor, last: Tensor, anchors: Tensor, tables: TargetTables) -> Tensor:
        """Candidates, transition cache and the greedy walk: states (B, M, d), anchors (B,) → tokens (B, M)."""
        _, candidates = tables.top(self._normed(heard), self._top_k)
        codes = self._codes[predecessors(anchors, candidates)]  # (B, M, K, r)
        refined = self._normed(rewritten(self.injection, last.unsqueeze(2), codes))
        scores = transition_scores(refined, tables.head, candidates)
        return walked(scores, candidates, Law.greedy_rows(len(anchors)), None).tokens

    def _normed(self, x: Tensor) -> Tensor:
        """The final norm over (..., d), by vLLM's kernel, which takes matrices."""
        out: Tensor = self.model.norm(x.reshape(-1, x.shape[-1]).contiguous())
        return out.view(x.shape)

    def get_top_tokens(self, hidden_states: Tensor) -> Tensor:
        """The drafted tokens (n,) of rows (n, 1) of a forward."""
        return hidden_states.squeeze(-1)

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """Not asked of a drafter that hands over tokens.

        Raises:
            ServeError: always.
        """
        raise ServeError(
            "vLLM asked dspine's drafter for logits, which it does not have", "Please report this to the project."
        )
