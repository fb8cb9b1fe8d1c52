"""Temperature, top-k and top-p, against transformers' own warpers and against frequencies."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from cloudrl.verl_cpu.sampling import SamplingParams, draw, filtered_log_probs


def by_transformers(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    scores = TemperatureLogitsWarper(params.temperature)(None, logits)
    if params.top_k > 0:
        scores = TopKLogitsWarper(params.top_k)(None, scores)
    if params.top_p < 1:
        scores = TopPLogitsWarper(params.top_p)(None, scores)
    return scores.log_softmax(-1)


params = st.builds(
    SamplingParams,
    temperature=st.floats(0.05, 5.0),
    top_k=st.sampled_from([-1, 0, 1, 2, 5, 39, 40, 41, 1000]),
    top_p=st.one_of(st.just(1.0), st.floats(0.001, 1.0)),
)


@given(rows=st.lists(params, min_size=1, max_size=4), seed=st.integers(0, 10_000), ties=st.booleans())
def test_equals_transformers(rows: list[SamplingParams], seed: int, ties: bool) -> None:
    logits = 3 * torch.randn(len(rows), 40, generator=torch.Generator().manual_seed(seed))
    if ties:
        logits = logits.round()
    ours = filtered_log_probs(logits, rows)
    for row, wanted in enumerate(rows):
        theirs = by_transformers(logits[row : row + 1], wanted)[0]
        # Which of several equal tokens stand at the border of top-p is a matter of the sort's taste.
        mine = ours[row].sort().values if ties else ours[row]
        theirs = theirs.sort().values if ties else theirs
        assert torch.equal(mine.isinf(), theirs.isinf())
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
        assert ours[row].exp().sum() == pytest.approx(1.0)
        assert logits[row][ours[row].argmax()] == logits[row].max()
        kept = ours[row].exp() > 0  # and what is kept has the shape of the model's own distribution
        scaled = (logits[row] / wanted.temperature)[kept].log_softmax(-1)
        torch.testing.assert_close(ours[row][kept], scaled, rtol=1e-5, atol=1e-5)


def test_a_temperature_may_be_a_whole_number() -> None:
    """As Hydra reads `actor_rollout_ref.rollout.temperature=2`."""
    logits = torch.randn(1, 10)
    log_probs = filtered_log_probs(logits, [SamplingParams.from_verl({"temperature": 2, "top_k": -1, "top_p": 1})])
    torch.testing.assert_close(log_probs, (logits / 2).log_softmax(-1))


def test_half_precision_is_computed_in_float32() -> None:
    assert (
        filtered_log_probs(torch.randn(1, 10, dtype=torch.bfloat16), [SamplingParams(top_k=3)]).dtype == torch.float32
    )


def test_greedy_takes_the_most_probable_and_reports_the_unfiltered_distribution() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0], [1.0, 3.0, 2.0]])
    rows = [SamplingParams(temperature=0.0, top_k=1, top_p=0.1), SamplingParams(temperature=0.0)]
    log_probs = filtered_log_probs(logits, rows)
    torch.testing.assert_close(log_probs, logits.log_softmax(-1))
    for _ in range(20):
        assert draw(log_probs, rows).tolist() == [1, 1]


@pytest.mark.parametrize(
    "settings",
    [
        SamplingParams(temperature=0.7),
        SamplingParams(temperature=1.3, top_k=3),
        SamplingParams(top_p=0.8),
        SamplingParams(temperature=1.5, top_k=4, top_p=0.9),
    ],
)
def test_frequencies_follow_the_log_probs(settings: SamplingParams) -> None:
    rows, source = 40_000, torch.Generator().manual_seed(0)
    logits = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -3.0]).expand(rows, -1)
    log_probs = filtered_log_probs(logits, [settings] * rows)
    tokens = draw(log_probs, [settings] * rows, generator=source)
    seen = torch.bincount(tokens, minlength=6) / rows
    wanted = by_transformers(logits[:1], settings)[0].exp()
    assert torch.equal(seen > 0, wanted > 0)
    assert (seen - wanted).abs().max() < 0.01  # four standard deviations


def test_same_generator_same_tokens() -> None:
    log_probs = torch.randn(50, 20).log_softmax(-1)

    def drawn(seed: int) -> list[int]:
        source = torch.Generator().manual_seed(seed)
        return draw(log_probs, [SamplingParams()] * 50, generator=source).tolist()

    assert drawn(1) == drawn(1) != drawn(2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"temperature": -0.1}, r"temperature=-0\.1"),
        ({"top_k": -2}, "top_k=-2"),
        ({"top_p": 0.0}, r"top_p=0\.0"),
        ({"top_p": 1.1}, r"top_p=1\.1"),
        ({"repetition_penalty": 1.2}, r"repetition_penalty=1\.2"),
        ({"min_p": 0.1, "seed": 1}, "min_p, seed"),
    ],
)
def test_what_cannot_be_honoured_is_refused(given: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SamplingParams.from_verl(given)


def test_reads_what_verl_sends() -> None:
    sent = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "repetition_penalty": 1.0, "logprobs": False}
    assert SamplingParams.from_verl(sent) == SamplingParams(0.5, 7, 0.9, logprobs=False)
    assert SamplingParams.from_verl({"max_new_tokens": 5}).max_tokens == 5
    assert SamplingParams.from_verl({"stop_token_ids": [4], "max_tokens": None}).stop_token_ids == (4,)
