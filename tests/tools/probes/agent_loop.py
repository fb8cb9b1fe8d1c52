"""verl's own agent loop worker, tool agent, parser and replay buffer around the search tool, in one process.

Reads {"overrides": [...]} of a recipe as JSON from standard input and answers with JSON. Not verl's are only the model,
which writes what a script says, and the retrieval server. The queue between worker and trainer is the real one, without
the units that store tensors: all of it that matters here are the prompts' states.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import transfer_queue
import verl
from aiohttp import web
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transfer_queue import interface
from transfer_queue.controller import TransferQueueController
from transformers import PreTrainedTokenizerFast
from verl.tools.tool_registry import load_all_tools
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.workers.rollout.replica import TokenOutput

from cloudrl import tools

TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "{% for call in message.get('tool_calls') or [] %}<tool_call>\n{{ call['function'] | tojson }}\n</tool_call>"
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PASSAGE = '"Ottawa"\nOttawa is the capital of Canada.'
CALL = """\
<think>I do not know.</think>
<tool_call>
{"name": "search", "arguments": {"query": "capital of Canada"}}
</tool_call>"""
ANSWER = "<answer> Ottawa </answer>"
TIMEOUT_S = 5.0
"""Of a search, each of which takes milliseconds."""
TRAJECTORY = {"step": 0, "sample_index": 0, "rollout_n": 0, "validate": False}


def tokenizer() -> PreTrainedTokenizerFast:
    """A token a byte, and those that part the messages, as Qwen has them."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    symbols = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    inner = Tokenizer(models.BPE(vocab={each: number for number, each in enumerate(symbols)}, merges=[]))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    inner.add_special_tokens(special)
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=TEMPLATE
    )


class Model:
    """Calls until it has a tool's answer, or so often as `calls` says, and then answers."""

    def __init__(self, words: PreTrainedTokenizerFast, calls: int = 1) -> None:
        self.words, self.calls, self.seen = words, calls, []

    async def generate(self, request_id: str, *, prompt_ids: list[int], **_: Any) -> TokenOutput:
        context = self.words.decode(prompt_ids)
        self.seen.append(context)
        text = ANSWER if context.count("<|im_start|>tool") >= self.calls else CALL
        ids = self.words.encode(f"{text}<|im_end|>", add_special_tokens=False)
        return TokenOutput(token_ids=ids, log_probs=[-0.5] * len(ids), num_preempted=0)


class Server:
    """Search-R1's API."""

    def __init__(self) -> None:
        self.is_well, self.asked = True, 0

    async def handle(self, request: web.Request) -> web.Response:
        self.asked += 1
        body = await request.json()
        if not self.is_well:
            return web.Response(status=500, text="no index")
        document = {"document": {"id": "1", "contents": PASSAGE}, "score": 0.9}
        return web.json_response({"result": [[document] * body["topk"] for _ in body["queries"]]})

    async def start(self) -> int:
        app = web.Application()
        app.router.add_post("/retrieve", self.handle)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner.addresses[0][1]


def start_queue() -> None:
    """The queue's controller and a client of it, which verl starts as actors of Ray."""
    controller = TransferQueueController.__ray_metadata__.modified_class()
    interface._TQ_CLIENT = transfer_queue.TransferQueueClient("probe", controller.get_zmq_server_info())
    put = transfer_queue.async_kv_batch_put

    async def put_states(keys: list[str], partition_id: str, tags: list[dict[str, Any]], **_: Any) -> None:
        await put(keys=keys, partition_id=partition_id, tags=tags)

    transfer_queue.async_kv_batch_put = put_states
    transfer_queue.kv_clear = lambda **_: None


def states() -> dict[str, str]:
    """Of the prompts, by their names."""
    return {key: tag["status"] for key, tag in transfer_queue.kv_list()["train"].items() if tag.get("is_prompt")}


def worker(config: Any, model: Model) -> Any:
    """A worker as its constructor leaves it: that one connects to Ray's actors and loads the model's configuration."""
    made = object.__new__(AgentLoopWorkerTQ.__ray_metadata__.modified_class)
    made.config, made.rollout_config, made.llm_client = config, config.actor_rollout_ref.rollout, model
    made.tokenizer, made.processor, made.hf_model_type = model.words, None, "qwen2"
    made.dataset_cls, made.reward_loop_worker_handles, made.distillation_enabled = RLHFDataset, None, False
    made.tools = load_all_tools(None, config.actor_rollout_ref.rollout.multi_turn.function_tool_path)
    return made


async def run_prompts(made: Any, uids: list[str]) -> None:
    """As the trainer asks for them, with as many conversations each as the recipe wants."""
    prompts = [
        {"uid": uid, "raw_prompt": [{"role": "user", "content": "Capital of Canada?"}], "agent_name": "tool_agent",
         "global_steps": 0}
        for uid in uids
    ]  # fmt: skip
    for uid in uids:
        tag = {"is_prompt": True, "global_steps": 0, "status": "pending"}
        await transfer_queue.async_kv_put(key=uid, partition_id="train", tag=tag)
    await asyncio.gather(*[made._run_prompt(each, {"logprobs": True}, trajectory=TRAJECTORY) for each in prompts])


def sampled(prompts: int) -> str:
    """What the trainer says when it looks for them."""
    buffer = ReplayBuffer(
        trainer_mode="sync", trainer_config={}, max_off_policy_threshold=None, max_off_policy_strategy="drop",
        sampler_kwargs={},
    )  # fmt: skip
    try:
        batch, _ = buffer.sample(0, "train", prompts)
    except Exception as error:  # noqa: BLE001 - what the trainer ends with
        return f"{type(error).__name__}: {error}"
    return f"{len(batch.keys)} conversations"


async def conversation(config: Any, model: Model) -> dict[str, Any]:
    """One, by the tool agent alone, with what verl trains on."""
    found: list[Any] = []
    made = worker(config, model)

    async def keep(output: Any, *_: Any, **__: Any) -> None:
        found.append(output)

    made._agent_loop_postprocess = keep
    raw = [{"role": "user", "content": "Capital of Canada?"}]
    await made._run_agent_loop({"logprobs": True}, TRAJECTORY, agent_name="tool_agent", trace=False, raw_prompt=raw)
    [output] = found
    parts = {
        whose: model.words.decode(
            [each for each, mask in zip(output.response_ids, output.response_mask, strict=True) if mask == kept]
        )
        for whose, kept in (("model", 1), ("others", 0))
    }
    return {
        **parts,
        "prompt": model.words.decode(output.prompt_ids),
        "turns": output.num_turns,
        "probabilities": len(output.response_logprobs or ()) == len(output.response_ids),
    }


async def main(overrides: list[str]) -> dict[str, Any]:
    start_queue()
    server = Server()
    os.environ["CLOUDRL_SEARCH_TIMEOUT_S"] = str(TIMEOUT_S)
    os.environ["CLOUDRL_SEARCH_URL"] = f"http://127.0.0.1:{await server.start()}/retrieve"
    with initialize_config_dir(config_dir=str(Path(verl.__file__).parent / "trainer" / "config"), version_base=None):
        path = f"{tools.__path__[0]}/search.py"
        key = "actor_rollout_ref.rollout.multi_turn.function_tool_path"
        config = compose(config_name="ppo_trainer", overrides=[*overrides, f"{key}={path}"])
    OmegaConf.resolve(config)
    words, answer = tokenizer(), {}
    answer["well"] = await conversation(config, Model(words))
    answer["greedy"] = {**await conversation(config, Model(words, calls=99)), "asked": server.asked - 1}

    model = Model(words)
    await run_prompts(worker(config, model), ["good"])
    answer["group"] = {"status": states()["good"], "trainer": sampled(1)}

    await run_prompts(worker(config, model), ["of another node"])
    server.is_well = False
    answer["failing"] = await conversation(config, Model(words))
    await run_prompts(worker(config, Model(words)), [f"early{number}" for number in range(3)])
    answer["early"] = states()["early0"]
    await asyncio.sleep(TIMEOUT_S)  # in which the server might recover
    uids = [f"prompt{number}" for number in range(12)]
    await run_prompts(worker(config, Model(words)), uids)
    # that one is enough for a batch, and all others have failed: verl would go on
    answer["ended"] = {"statuses": [states()[uid] for uid in uids], "trainer": sampled(1)}
    return answer


print(json.dumps(asyncio.run(main(json.load(sys.stdin)["overrides"]))))
