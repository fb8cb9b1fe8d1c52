"""verl's side of the rollout `hf`: where a replica's server runs, and how weights get to it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, Iterable
from typing import TYPE_CHECKING, Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutMode, RolloutReplica
from verl.workers.rollout.utils import ensure_async_iterator

from cloudrl.verl_cpu.server import HfServer, ServerSettings

if TYPE_CHECKING:
    import torch


def _server_name(replica_rank: int) -> str:
    """The name under which a trainer finds its replica's server; unique among the jobs of a cluster."""
    return f"cloudrl_hf_server_{ray.get_runtime_context().get_job_id()}_{replica_rank}"


class HfReplica(RolloutReplica):
    """One replica: one server, on the node of the replica's first worker.

    A replica of several workers (tensor, data or pipeline parallel), on one node or on several, has one server
    as well: a CPU run shows the layout, and gains nothing from splitting a model that fits one process.
    """

    async def launch_servers(self) -> None:
        """Start the server and wait until it answers.

        Raises:
            NotImplementedError: In the mode of judges that share GPUs with training (`RolloutMode.COLOCATED`).
        """
        if self.rollout_mode is RolloutMode.COLOCATED:
            raise NotImplementedError(f"the CPU rollout knows no mode {self.rollout_mode}")
        node_id = await self.workers[0].__ray_call__.remote(_node_id)
        self._server_handle = (
            ray.remote(HfServer)
            .options(
                name=_server_name(self.replica_rank),
                num_cpus=0,
                max_concurrency=self.max_concurrency,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node_id, soft=False),
            )
            .remote(self._settings())
        )
        self._server_address = f"hf-{self.replica_rank}"
        self.servers = [self._server_handle]
        await self._server_handle.do_nothing.remote()

    def _settings(self) -> ServerSettings:
        return ServerSettings(
            model_path=self.model_config.path,
            dtype=self.config.dtype,
            trust_remote_code=bool(self.model_config.get("trust_remote_code", False)),
            prompt_length=self.config.prompt_length,
            response_length=self.config.response_length,
            ignore_eos=self.config.ignore_eos,
            logprobs_mode=self.config.logprobs_mode,
            seed=self.config.seed + self.replica_rank,
        )


def _node_id(_: object) -> str:
    return str(ray.get_runtime_context().get_node_id())


class HfWorkerAdapter(BaseRollout):
    """Lives in each training worker, or in each worker of a rollout of its own, and hands weights to a server.

    `replica_rank` and `is_leader_rank` are read by verl (verl 0.9.1, checkpoint_engine/base.py).
    """

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1) -> None:
        super().__init__(config, model_config, device_mesh)
        workers = (
            self.config.tensor_model_parallel_size
            * self.config.data_parallel_size
            * self.config.pipeline_model_parallel_size
        )
        rank = int(os.environ["RANK"])
        self.replica_rank = rank // workers if replica_rank == -1 else replica_rank
        self.is_leader_rank = rank % workers == 0

    async def resume(self, tags: list[str]) -> None:
        """Nothing to do: a server on the CPU releases nothing."""

    async def release(self) -> None:
        """Nothing to do, as above."""

    async def update_weights(
        self,
        weights: Iterable[tuple[str, torch.Tensor]] | AsyncIterable[tuple[str, torch.Tensor]],
        wire_format: str = "named_tensors",
        global_steps: int | None = None,
        peft_config: object = None,
        **_: object,
    ) -> None:
        """Send weights to the server.

        Every rank walks through `weights`, since each full tensor is gathered, or received, by all of them together;
        the replica's first rank sends.

        Raises:
            NotImplementedError: For LoRA adapters that are not merged, and for delta updates.
        """
        if wire_format != "named_tensors" or peft_config is not None:
            raise NotImplementedError(
                f"the CPU rollout takes whole tensors only, not wire_format={wire_format} peft_config={peft_config}"
            )
        state = {name: tensor.detach().cpu() async for name, tensor in ensure_async_iterator(weights)}
        if self.is_leader_rank:
            server = ray.get_actor(_server_name(self.replica_rank))
            await server.load_weights.remote(state, global_steps)
