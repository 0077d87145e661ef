"""Decoding over an mlx-lm target, with a drafter or without, one request at a time.

One rule: a request gets what the torch engine would give it: the same parameters, noise, records and cuts, from other
arithmetic; what cannot be honoured is refused by name.
Source: DSpine (arXiv 2609.36173), section on speculative decoding.

    target, drafter = load_mlx_pair("nano", "nano")
    [answer] = MlxEngine(target, drafter).generate([prompt_ids], SamplingParams(max_new_tokens=64))
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dspine.decode.policy import Own, Verify, check_policy, read_verify
from dspine.decode.records import Completion, Update
from dspine.decode.request import Request
from dspine.decode.rows import Row
from dspine.decode.sampling import SamplingParams
from dspine.errors import ConfigError, RequestError
from dspine.serve.mlx.caches import check_caches
from dspine.serve.mlx.processing import check_processors
from dspine.serve.mlx.proposal import MlxDrafter
from dspine.serve.mlx.sequence import Sequence as Progress
from dspine.serve.mlx.target import MlxTarget
from dspine.target.taps import check_taps


class MlxEngine:
    """A target, a drafter, and the loop over both.

    Args:
        target: the model whose output this is.
        drafter: proposes candidates; None decodes one token a round, through the same code.
        prefill_chunk: most prompt tokens in one forward.
        verify: "full", a number of candidates, or "confidence:C"; see `decode/policy.py`.

    Raises:
        ConfigError: prefill_chunk below 1, or another `verify`: those that weigh costs are the torch engine's.
        TargetError: taps that the target does not have, or caches that cannot be rolled back.
    """

    def __init__(
        self,
        target: MlxTarget,
        drafter: MlxDrafter | None = None,
        *,
        prefill_chunk: int = 512,
        verify: Verify = "full",
    ) -> None:
        if prefill_chunk < 1:
            raise ConfigError(f"prefill_chunk is {prefill_chunk}", "give at least 1")
        policy = read_verify(verify)
        if not isinstance(policy, Own):
            raise ConfigError(
                f"verify is {str(policy)!r}, and the mlx backend neither measures costs nor verifies trees",
                'give "full", a number of candidates, or "confidence:C"',
            )
        check_policy(policy, drafter)
        if drafter is not None:
            check_taps(drafter.target_layer_ids, target.num_layers)
            check_caches(target.new_caches(), target.name)
        self._target = target
        self._drafter = drafter
        self._own = policy
        self._chunk = prefill_chunk
        self._next_id = 0

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[Completion]:
        """Answer prompts one after the other.

        Args:
            prompts: token ids of each prompt.
            params: for all, or one for each; None is greedy with the defaults.

        Raises:
            RequestError: a prompt or parameters that cannot be honoured; nothing is run then.
            TargetError: the target's logits are not numbers.
        """
        each = [params] * len(prompts) if params is None or isinstance(params, SamplingParams) else list(params)
        if len(each) != len(prompts):
            raise RequestError(f"{len(each)} parameter sets for {len(prompts)} prompts", "give one, or one for each")
        requests = [self._request(prompt, own) for prompt, own in zip(prompts, each, strict=True)]
        ended = [update.completion for request in requests for update in self._run(request) if update.finished]
        return [completion for completion in ended if completion is not None]

    def stream(self, prompt: Sequence[int], params: SamplingParams | None = None) -> Iterator[Update]:
        """Answer a prompt piece by piece; the last update has the completion. Closing the iterator ends the request.

        Raises:
            RequestError: at once, for a prompt or parameters that cannot be honoured.
        """
        return self._run(self._request(prompt, params))

    def _request(self, prompt: Sequence[int], params: SamplingParams | None) -> Request:
        request = Request.checked(self._next_id, prompt, params or SamplingParams(), self._target, self._drafter)
        check_processors(request)
        self._next_id += 1
        return request

    def _run(self, request: Request) -> Iterator[Update]:
        row = Row(request, self._target.tokenizer, drafting=False)
        progress = Progress(self._target, self._drafter, row, request.own or self._own, self._chunk)
        progress.prefill()
        while True:
            update = row.update()
            if update is not None:
                if update.error is not None:
                    raise update.error
                yield update
            if row.finish is not None:
                return
            progress.advance()
