"""Variables that cloudrl sets itself are refused wherever a user can name some; others are not."""

import pytest

import cloudrl
from cloudrl.errors import InputError, SpecError
from cloudrl.options.environment import parse_env

OWN = [
    "CLOUDRL_RUN_ID", "CLOUDRL_NODE_RANK", "CLOUDRL_FILES", "CLOUDRL_DEBUGGER_DIR",
    "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_ADDRESS",
]  # fmt: skip


@pytest.mark.parametrize("name", OWN)
def test_an_own_variable_is_refused(name: str) -> None:
    for declare in (
        lambda: cloudrl.Cluster(name="lab", env={name: "zzz"}),
        lambda: cloudrl.recipe("grpo-tiny").replace(env={name: "zzz"}),
        lambda: parse_env([f"{name}=zzz"], {}),
    ):
        with pytest.raises((SpecError, InputError), match=f"{name} is set by cloudrl") as caught:
            declare()
        assert "zzz" not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "CLOUDRL_SERVICE_JUDGE",
        "CLOUDRL_SEARCH_URL",
        "CLOUDRL_SEARCH_TOPK",
        "CLOUDRL_RETRIEVER_TOKEN",
        "RAY_DEDUP_LOGS",
        "RAY_DEBUG",
        "PATH",
    ],
)
def test_what_a_user_may_set(name: str) -> None:
    assert parse_env([f"{name}=x"], {}) == {name: "x"}
