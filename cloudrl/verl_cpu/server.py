"""The Ray actor that generates for one rollout replica.

It imports torch and transformers, not verl: verl's imports would add seconds to its start.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from cloudrl.verl_cpu.generation import Completion, Request, generate
from cloudrl.verl_cpu.sampling import SamplingParams

# Requests reach the server one by one; those that arrive within this time are decoded together.
_GATHER_S = 0.01


@dataclass(frozen=True)
class ServerSettings:
    """What a server takes from verl's rollout configuration (`actor_rollout_ref.rollout`)."""

    model_path: str
    dtype: str
    trust_remote_code: bool
    prompt_length: int
    response_length: int
    ignore_eos: bool
    logprobs_mode: str
    seed: int

    def __post_init__(self) -> None:
        if self.logprobs_mode not in ("processed_logprobs", "raw_logprobs"):
            raise ValueError(
                f"rollout.logprobs_mode={self.logprobs_mode}: the CPU rollout knows processed_logprobs, raw_logprobs"
            )


@dataclass
class TokenOutput:
    """The fields of verl's TokenOutput (verl/workers/rollout/replica.py), without importing verl."""

    token_ids: list[int]
    log_probs: list[float] | None
    stop_reason: str = "completed"
    routed_experts: None = None
    num_preempted: int | None = None
    extra_fields: dict[str, Any] = field(default_factory=dict)


class HfServer:
    """Generates for one replica, with requests that wait at the same time decoded as one batch.

    An actor with asyncio: calls interleave, decoding happens in a thread, and weights change only between two
    batches.
    """

    def __init__(self, settings: ServerSettings) -> None:
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        self._settings = settings
        self._model = AutoModelForCausalLM.from_pretrained(
            settings.model_path, dtype=getattr(torch, settings.dtype), trust_remote_code=settings.trust_remote_code
        ).eval()
        self._generator = torch.Generator().manual_seed(settings.seed)
        self._end_ids = _end_ids(self._model)
        self._weights_step: int | None = None
        self._waiting: list[tuple[Request, asyncio.Future[Completion]]] = []
        self._model_in_use = asyncio.Lock()
        self._worker: asyncio.Task[None] | None = None
        self._aborts = threading.Event()
        self._rejects = False
        self._resumed = asyncio.Event()
        self._resumed.set()

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling_params: Mapping[str, Any],
        request_id: str,
        image_data: object = None,
        video_data: object = None,
        **_: object,
    ) -> TokenOutput:
        """Go on from one prompt; the signature is that of verl's own servers.

        An answer that `abort_all_requests` has cut off has the stop reason `aborted`: verl asks again, with the tokens
        that there are as part of the prompt (verl 0.9.1, workers/rollout/llm_server.py: FullyAsyncLLMServerClient).

        Raises:
            ValueError: For settings or inputs that this server does not know.
        """
        if image_data or video_data:
            raise ValueError(f"request {request_id}: the CPU rollout generates from text only")
        params = SamplingParams.from_verl(sampling_params)
        while not self._resumed.is_set():
            if self._rejects:
                return self._output(Completion(), params)
            await self._resumed.wait()
        return self._output(await self._enqueue(self._request(prompt_ids, params)), params)

    async def abort_all_requests(self, reject_request: bool = False, **_: object) -> None:
        """End all answers at their next token; returns once no request is being decoded.

        Requests that come before `resume_generation` wait for it.

        Args:
            reject_request: End those as well, without a token: the server leaves the rotation.
        """
        self._rejects = reject_request
        self._resumed.clear()
        self._aborts.set()
        if self._worker is not None:
            await asyncio.wait([self._worker])

    async def resume_generation(self) -> None:
        """Take requests again."""
        self._aborts.clear()
        self._rejects = False
        self._resumed.set()

    async def load_weights(self, weights: Mapping[str, torch.Tensor], step: int | None) -> None:
        """Take over the trainer's weights.

        Args:
            weights: Every parameter of the model by its name.
            step: The training step they are from.

        Raises:
            RuntimeError: When a parameter is missing or unknown.
        """
        async with self._model_in_use:
            missing, unexpected = self._model.load_state_dict(weights, strict=False)
            tied = set(self._model.all_tied_weights_keys) if self._model.config.tie_word_embeddings else set()
            if unexpected or set(missing) - tied:
                raise RuntimeError(f"weights do not fit the model: missing {missing}, unexpected {unexpected}")
            self._weights_step = step

    async def do_nothing(self, *_: object, **__: object) -> None:
        """For what verl tells its servers and a CPU has no use for; returns once the server is up."""

    # There is no device memory to release.
    wake_up = sleep = clear_kv_cache = release_kv_cache = resume_kv_cache = start_profile = stop_profile = do_nothing

    def _output(self, completion: Completion, params: SamplingParams) -> TokenOutput:
        return TokenOutput(
            token_ids=completion.token_ids,
            log_probs=completion.log_probs if params.logprobs else None,
            stop_reason="completed" if completion.has_ended else "aborted",
            extra_fields={"global_steps": self._weights_step},
        )

    def _request(self, prompt_ids: Sequence[int], params: SamplingParams) -> Request:
        settings = self._settings
        room = settings.prompt_length + settings.response_length - len(prompt_ids)
        limit = params.max_tokens if params.max_tokens is not None else min(settings.response_length, room)
        own = frozenset() if params.ignore_eos or settings.ignore_eos else self._end_ids
        return Request(
            prompt_ids=tuple(prompt_ids),
            params=params,
            max_tokens=max(1, limit),
            end_ids=own | frozenset(params.stop_token_ids),
        )

    async def _enqueue(self, request: Request) -> Completion:
        answer: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, answer))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._decode_all())
        return await answer

    async def _decode_all(self) -> None:
        while self._waiting:
            await asyncio.sleep(_GATHER_S)
            batch, self._waiting = self._waiting, []
            async with self._model_in_use:
                requests = [request for request, _ in batch]
                decoding = asyncio.get_running_loop().run_in_executor(None, self._decode, requests)
                await asyncio.wait([decoding])
            error = decoding.exception()
            for row, (_, answer) in enumerate(batch):
                if answer.done():  # its caller has gone
                    continue
                if error is not None:
                    answer.set_exception(error)
                else:
                    answer.set_result(decoding.result()[row])

    def _decode(self, requests: Sequence[Request]) -> list[Completion]:
        raw = self._settings.logprobs_mode == "raw_logprobs"
        completions: list[Completion] = generate(
            self._model, requests, raw_log_probs=raw, generator=self._generator, is_stopped=self._aborts.is_set
        )
        return completions


def _end_ids(model: Any) -> frozenset[int]:
    """The tokens at which the model ends an answer."""
    declared = model.generation_config.eos_token_id
    if declared is None:
        declared = model.config.eos_token_id
    if declared is None:
        return frozenset()
    return frozenset(declared if isinstance(declared, list) else [declared])
