"""Batched decoding and the server around it, with the tiny model and against transformers' own `generate`."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from cloudrl.verl_cpu.generation import Request, generate
from cloudrl.verl_cpu.sampling import SamplingParams
from cloudrl.verl_cpu.server import HfServer, ServerSettings, TokenOutput
from cloudrl.verl_cpu.tiny_model import make_tiny_model

PROMPTS = [(5, 6, 7), (60, 61), tuple(range(10, 40)), (3,)]
GREEDY = SamplingParams(temperature=0.0)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_tiny_model(str(tmp_path_factory.mktemp("models") / "tiny-qwen2"))


@pytest.fixture(scope="module")
def model(path: str) -> Any:
    """The tiny model with larger weights, whose choices are far from ties."""
    model = AutoModelForCausalLM.from_pretrained(path).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(10)
    return model


def request(prompt: tuple[int, ...], params: SamplingParams = GREEDY, *, limit: int = 8, end: int = 2) -> Request:
    return Request(prompt, params, limit, frozenset([end]))


def test_greedy_equals_transformers_for_prompts_of_different_lengths(model: Any) -> None:
    together = generate(model, [request(prompt, end=-1) for prompt in PROMPTS])
    for prompt, completion in zip(PROMPTS, together, strict=True):
        alone = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=8,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        assert completion.token_ids == alone[0, len(prompt) :].tolist()


def test_log_probs_are_the_models_own(model: Any) -> None:
    """As verl's trainer computes them: a forward pass over prompt and answer, logits over the temperature."""
    settings = SamplingParams(temperature=0.7)
    completions = generate(model, [request(prompt, settings) for prompt in PROMPTS])
    for prompt, completion in zip(PROMPTS, completions, strict=True):
        ids = torch.tensor([[*prompt, *completion.token_ids]])
        with torch.no_grad():
            log_probs = (model(ids).logits[0, len(prompt) - 1 : -1] / 0.7).log_softmax(-1)
        own = log_probs.gather(-1, torch.tensor(completion.token_ids).unsqueeze(-1)).squeeze(-1)
        torch.testing.assert_close(torch.tensor(completion.log_probs), own, rtol=1e-4, atol=1e-4)


def test_filters_count_in_processed_log_probs_and_not_in_raw_ones(model: Any) -> None:
    settings = SamplingParams(temperature=2.0, top_k=1)
    [processed] = generate(model, [request((5, 6, 7), settings)])
    [raw] = generate(model, [request((5, 6, 7), settings)], raw_log_probs=True)
    assert processed.token_ids == raw.token_ids
    assert processed.log_probs == pytest.approx([0.0] * len(processed.token_ids), abs=1e-6)
    with torch.no_grad():
        first = model(torch.tensor([[5, 6, 7]])).logits[0, -1].log_softmax(-1)[raw.token_ids[0]]
    assert raw.log_probs[0] == pytest.approx(first.item(), abs=1e-4)


def test_each_row_ends_at_its_own_token_or_limit(model: Any) -> None:
    [free] = generate(model, [request((5, 6, 7), end=-1)])
    third = free.token_ids[2]
    wanted = free.token_ids.index(third) + 1
    ended, limited = generate(model, [request((5, 6, 7), end=third), request((5, 6, 7), limit=5, end=-1)])
    assert ended.token_ids == free.token_ids[:wanted]
    assert limited.token_ids == free.token_ids[:5]
    assert [len(limited.log_probs), len(ended.log_probs)] == [5, wanted]


def settings(path: str, **changes: Any) -> ServerSettings:
    values = {
        "model_path": path,
        "dtype": "float32",
        "trust_remote_code": False,
        "prompt_length": 32,
        "response_length": 6,
        "ignore_eos": False,
        "logprobs_mode": "processed_logprobs",
        "seed": 1,
    }
    return ServerSettings(**{**values, **changes})


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, timeout=60))


def ask(server: HfServer, prompt: tuple[int, ...], **params: Any) -> Coroutine[Any, Any, TokenOutput]:
    return server.generate(list(prompt), {"repetition_penalty": 1.0, **params}, request_id="r")


def test_requests_that_wait_together_are_decoded_together(path: str) -> None:
    server, batches = HfServer(settings(path)), []
    decode = server._decode
    server._decode = lambda requests: batches.append(len(requests)) or decode(requests)

    async def many() -> list[TokenOutput]:
        return await asyncio.gather(*[ask(server, prompt, temperature=0.0) for prompt in PROMPTS * 3])

    outputs = run(many())
    assert batches == [12]
    assert [output.token_ids for output in outputs[:4]] == [output.token_ids for output in outputs[4:8]]


def test_answers_with_the_step_of_its_weights(path: str, model: Any) -> None:
    server = HfServer(settings(path))

    async def story() -> tuple[TokenOutput, TokenOutput, TokenOutput]:
        before = await ask(server, (5, 6, 7), temperature=0.0)
        await server.load_weights(dict(model.state_dict()), 3)
        after = await ask(server, (5, 6, 7), temperature=0.0, logprobs=True)
        without = await ask(server, (5, 6, 7), temperature=0.0, logprobs=False)
        return before, after, without

    before, after, without = run(story())
    assert before.extra_fields == {"global_steps": None}
    assert after.extra_fields == {"global_steps": 3}
    assert after.token_ids == generate(model, [request((5, 6, 7), limit=6)])[0].token_ids != before.token_ids
    assert len(after.log_probs or []) == len(after.token_ids)
    assert without.log_probs is None
    assert after.stop_reason == "completed"


def test_weights_that_do_not_fit_are_refused(path: str, model: Any) -> None:
    server = HfServer(settings(path))
    state = dict(model.state_dict())
    state["model.other"] = state.pop("lm_head.weight")
    with pytest.raises(RuntimeError, match=r"missing \['lm_head.weight'\], unexpected \['model.other'\]"):
        run(server.load_weights(state, 1))


def test_length_is_bounded_as_in_verls_servers(path: str) -> None:
    server = HfServer(settings(path, ignore_eos=True))

    def length(prompt: tuple[int, ...], **params: Any) -> int:
        return len(run(ask(server, prompt, temperature=1.0, **params)).token_ids)

    assert length((5, 6)) == 6  # response_length
    assert length(tuple(range(3, 38))) == 3  # prompt_length + response_length - 35
    assert length((5, 6), max_tokens=2) == 2
    assert length(tuple(range(3, 100))) == 1


def test_a_wrong_request_fails_alone(path: str) -> None:
    server = HfServer(settings(path))

    async def both() -> list[Any]:
        asked = [ask(server, (5,), temperature=0.0), ask(server, (5,), temperature=0.0, min_p=0.1)]
        return await asyncio.gather(*asked, return_exceptions=True)

    good, bad = run(both())
    assert isinstance(good, TokenOutput)
    assert isinstance(bad, ValueError)


def test_an_error_in_decoding_reaches_everyone_who_waits(path: str) -> None:
    server = HfServer(settings(path))

    async def story() -> tuple[list[Any], TokenOutput]:
        beyond = [ask(server, (5, 10**6), temperature=0.0), ask(server, (5,), temperature=0.0)]
        failed = await asyncio.gather(*beyond, return_exceptions=True)
        return failed, await ask(server, (5,), temperature=0.0)

    failed, later = run(story())
    assert [type(error) for error in failed] == [IndexError, IndexError]
    assert later.token_ids


def test_unknown_logprobs_mode_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="logprobs_mode=raw_logits"):
        settings(path, logprobs_mode="raw_logits")


def slowly(server: HfServer, tokens: int) -> asyncio.Event:
    """Have the server decode `tokens` tokens and then wait for an abort; set once it is there."""
    reached, is_stopped, asked = asyncio.Event(), server._aborts.is_set, 0
    loop = asyncio.get_running_loop()

    def stopped() -> bool:
        nonlocal asked
        asked += 1
        if asked == tokens + 1:
            loop.call_soon_threadsafe(reached.set)
            server._aborts.wait(30)
        return is_stopped()

    server._aborts.is_set = stopped  # type: ignore[method-assign]
    return reached


def test_an_answer_that_is_cut_off_goes_on_where_it_was(path: str) -> None:
    """As verl's client does: the tokens that there are become part of the prompt, with the newer weights."""

    async def story() -> tuple[TokenOutput, TokenOutput, TokenOutput]:
        server = HfServer(settings(path))
        whole = await ask(server, (5, 6, 7), temperature=0.0, ignore_eos=True, logprobs=True)
        reached = slowly(server, 2)
        asked = asyncio.ensure_future(ask(server, (5, 6, 7), temperature=0.0, ignore_eos=True, logprobs=True))
        await reached.wait()
        await server.abort_all_requests()
        cut = await asked
        rest = asyncio.ensure_future(
            ask(server, (5, 6, 7, *cut.token_ids), temperature=0.0, ignore_eos=True, max_tokens=4)
        )
        await asyncio.sleep(0)
        assert not rest.done()
        await server.load_weights(dict(server._model.state_dict()), 7)
        await server.resume_generation()
        return whole, cut, await rest

    whole, cut, rest = run(story())
    assert (cut.stop_reason, rest.stop_reason) == ("aborted", "completed")
    assert len(cut.token_ids) == len(cut.log_probs or []) == 2
    assert [*cut.token_ids, *rest.token_ids] == whole.token_ids
    assert (cut.extra_fields, rest.extra_fields) == ({"global_steps": None}, {"global_steps": 7})


def test_a_server_that_leaves_the_rotation_lets_nobody_wait(path: str) -> None:
    async def story() -> list[TokenOutput]:
        server = HfServer(settings(path))
        await server.abort_all_requests(reject_request=True)
        refused = await ask(server, (5, 6, 7), temperature=0.0)
        await server.resume_generation()
        return [refused, await ask(server, (5, 6, 7), temperature=0.0)]

    refused, answered = run(story())
    assert (refused.token_ids, refused.stop_reason) == ([], "aborted")
    assert answered.stop_reason == "completed"
