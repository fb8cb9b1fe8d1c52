"""No secret is seen in a command, however it was given; everything else stays."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cloudrl.verl
from cloudrl.jobs.redaction import MASK, redact, redact_command, redact_text, redact_words
from cloudrl.protocol.secret_names import is_secret, is_secret_override

ENV_VARS = "++ray_kwargs.ray_init.runtime_env.env_vars"


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["+x.api_key=abc", "data.prompt_key=prompt"], ["+x.api_key=***", "data.prompt_key=prompt"]),
        (["WANDB_API_KEY=abc", "python3", "t.py"], ["WANDB_API_KEY=***", "python3", "t.py"]),
        (["MY_KEY=abc"], ["MY_KEY=***"]),
        ([f"{ENV_VARS}={{WANDB_API_KEY: abc}}"], [f"{ENV_VARS}={{WANDB_API_KEY: ***"]),
        ([f"{ENV_VARS}={{A:1,my_key:abc}}"], [f"{ENV_VARS}={{A:1,my_key:***"]),
        ([f"{ENV_VARS}.my_key=abc"], [f"{ENV_VARS}.my_key=***"]),
        ([f"{ENV_VARS}={{WANDB_API_KEY:", "abc}"], [f"{ENV_VARS}={{WANDB_API_KEY:", "***"]),
        (['{"env": {"HF_TOKEN": "abc"}}'], ['{"env": {"HF_TOKEN": ***']),
        ([r"{\"password\" : \"abc\"}"], [r"{\"password\" : ***"]),
        (["--wandb-api-key", "abc", "--steps", "2"], ["--wandb-api-key", "***", "--steps", "2"]),
        (["--wandb-api-key=abc"], ["--wandb-api-key=***"]),
        (["--hub_token", "-abc", "-token", "abc"], ["--hub_token", "***", "-token", "***"]),
        (["--use-token", "--steps", "2"], ["--use-token", "--steps", "2"]),
        (["--env", "my_key=abc", "--env=my_key=abc"], ["--env", "my_key=***", "--env=my_key=***"]),
        (["-eMY_SECRET=abc"], ["-eMY_SECRET=***"]),
        (["-c", "export HF_TOKEN=abc; python t.py"], ["-c", "export HF_TOKEN=***"]),
        (["-c", "python t.py --api-key abc"], ["-c", "python t.py --api-key ***"]),
        (["--index-url=https://me:abc@pypi.test/"], ["--index-url=https://me:***@pypi.test/"]),
        (["--index-url=https://me:a@bc@pypi.test/"], ["--index-url=https://me:***@pypi.test/"]),
        (["https://0123456789abcdef0123@github.com/a", "https://me@h"], ["https://***@github.com/a", "https://me@h"]),
        (
            ["-H", "Authorization: Bearer abc", "-H", "X-Api-Key: abc"],
            ["-H", "Authorization: ***", "-H", "X-Api-Key: ***"],
        ),
        (["+trainer.wandb_key=abc"], ["+trainer.wandb_key=***"]),
        (["+trainer={swanlab_key: abc}"], ["+trainer={swanlab_key: ***"]),
        (["PGPASSWORD=abc"], ["PGPASSWORD=***"]),
        (["the secret of it", "API_KEY", "HF_TOKEN="], ["the secret of it", "API_KEY", "HF_TOKEN="]),
        (["--max-tokens", "5", "data.image_key=x"], ["--max-tokens", "5", "data.image_key=x"]),
        (["model={tokenizer: a, prompt_key: b}"], ["model={tokenizer: a, prompt_key: b}"]),
        ([], []),
        (["", "x"], ["", "x"]),
    ],
)
def test_redacted(words: list[str], shown: list[str]) -> None:
    assert redact_words(words) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("python t.py # don't", "python t.py # don't"),
        ("HF_TOKEN=abc python t.py # don't", "HF_TOKEN=***"),
        ("python t.py --api-key abc # don't", "python t.py --api-key ***"),
        ("python t.py 'x={WANDB_API_KEY: abc}", "python t.py 'x={WANDB_API_KEY: ***"),
    ],
)
def test_what_no_shell_can_read_is_redacted_too(text: str, shown: str) -> None:
    assert redact_command(text) == shown


def test_a_command_without_secrets_stays_as_it_was_typed() -> None:
    assert redact_command("cd /x  &&  python t.py") == "cd /x  &&  python t.py"


NAMES = st.sampled_from(["HF_TOKEN", "wandb_api_key", "x.password", "client-secret"])
FORMS = ["{}={}", "--{}={}", "--{} {}", "x={{{}: {}}}", '{{"{}":"{}"}}', "bash -c 'run --{} {}'", "{}='{}"]
PLAIN = st.text(st.characters(categories=("L", "N"), max_codepoint=500), min_size=8)


@given(name=NAMES, form=st.sampled_from(FORMS), secret=PLAIN, before=st.text(max_size=7))
def test_a_named_secret_is_never_shown(name: str, form: str, secret: str, before: str) -> None:
    command = f"python {form.format(name, secret)}"
    assert secret not in redact_command(command)
    assert secret not in redact_text(f"{before} {command}")


@given(st.lists(st.text(max_size=12), max_size=6))
def test_any_words_end_well(words: list[str]) -> None:
    assert len(redact_words(words)) == len(words)
    redact_text(shlex.join(words))


def test_which_variables_are_secret():
    secret = (
        "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID",
        "MY_SECRET", "clientsecret", "DB_PASSWORD", "PGPASSWORD", "DB_PASS", "MYSQL_PWD", "HFTOKEN", "accessToken",
        "API_TOKENS", "GITHUB_PAT", "REDISCLI_AUTH",
    )  # fmt: skip
    plain = (
        "TOKENIZERS_PARALLELISM",
        "NCCL_DEBUG",
        "MONKEY",
        "KEYBOARD",
        "PWD",
        "OLDPWD",
        "MAX_TOKENS",
        "RAY_AUTH_MODE",
    )
    assert [name for name in (*secret, *plain) if is_secret(name)] == [*secret]


def test_which_overrides_are_secret():
    variables = "ray_kwargs.ray_init.runtime_env.env_vars"
    secret = (
        "x.api_key", "reward.hf_token", "login.password", "store.credentials", "a.token", f"{variables}.WANDB_API_KEY",
        "trainer.wandb_key", "trainer.swanlab_key", "x.wandbKey", "x.accessToken", "db_pass", "a.git_pat", "my_token",
    )  # fmt: skip
    plain = (
        "data.prompt_key", "data.image_key", "actor_rollout_ref.rollout.max_num_batched_tokens", "data.tokenizer",
        f"{variables}.VERL_FILE_LOGGER_PATH", "data.my_key", "data.enable_thinking_key", "reward_fn_key",
        "x.answer_key", "x.pad_token", "trainer.balance_dp_token", "x.monkey", "a.max_tokens",
    )  # fmt: skip
    assert [key for key in (*secret, *plain) if is_secret_override(key)] == [*secret]


def test_no_key_of_verl_is_taken_for_a_secret():
    files = sorted(Path(cloudrl.verl.__file__).with_name("trainer_config").rglob("*.yaml"))
    keys = {key for file in files for key in re.findall(r"^ *([\w.]+):", file.read_text(), re.MULTILINE)}
    assert len(keys) > 400
    assert [key for key in keys if is_secret_override(key)] == []


@pytest.mark.parametrize("secret", ["hf_" + "a" * 34, "sk-proj-" + "b" * 40, "AKIA" + "C" * 16, "ghp_" + "d" * 36])
def test_a_token_of_a_known_form_is_masked_whatever_it_is_called(secret: str) -> None:
    assert redact({"entrypoint": f"python x.py +reward.judge={secret}"}, []) == {
        "entrypoint": f"python x.py +reward.judge={MASK}"
    }
    assert redact("task-model hf_x risk-adjusted-by-many-words", []) == "task-model hf_x risk-adjusted-by-many-words"


def test_secrets_are_redacted():
    data: dict[str, Any] = {
        "env_vars": {"HF_TOKEN": "hf_abcdef", "A": "with hf_abcdef inside", "EMPTY_TOKEN": ""},
        "list": ["hf_abcdef", 1, None, {"API_KEY": "k"}],
        "url": "https://user:pw@host/x https://host/y http://t@h",
    }
    assert redact(data, ["hf_abcdef", "1"]) == {
        "env_vars": {"HF_TOKEN": "***", "A": "with *** inside", "EMPTY_TOKEN": ""},
        "list": ["***", 1, None, {"API_KEY": "***"}],
        "url": "https://user:***@host/x https://host/y http://t@h",
    }
    assert data["env_vars"]["HF_TOKEN"] == "hf_abcdef"
