"""Secrets that are known by their form, wherever they stand."""

import pytest

from cloudrl.protocol.secret_names import command_with_secret, mask_by_form


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgres://me:abc@host/db", "postgres://me:***@host/db"),
        ("there is no file https:/me:a@b@host/r.yml", "there is no file https:/me:***@host/r.yml"),
        ("redis://:abc@host:6379", "redis://:***@host:6379"),
        ("https://0123456789abcdef@host/x", "https://***@host/x"),
        ("X=hf_abcdefghijklmnopq", "X=***"),
        ("http://host:8265/x", "http://host:8265/x"),
        ("ssh://me@host:22, ray://10.0.0.1:8265/a", "ssh://me@host:22, ray://10.0.0.1:8265/a"),
        ("s3://bucket/a:b@c", "s3://bucket/a:b@c"),
    ],
)
def test_masked_by_form(text: str, shown: str) -> None:
    assert mask_by_form(text) == shown
    assert mask_by_form(shown) == shown


@pytest.mark.parametrize(
    "command",
    [
        "pip install --index-url https://me:abc@host/simple x", "export WANDB_KEY=abc", "HF_TOKEN='abc' run",
        "git clone https://ghp_abcdefghijklmnopqrstuv@github.com/a/b", 'a; DB_PASSWORD="abc"; b',
    ],
)  # fmt: skip
def test_a_command_with_a_secret(command: str) -> None:
    assert command_with_secret(command)


@pytest.mark.parametrize(
    "command",
    [
        "pip install --index-url https://me:$TOKEN@host/simple", "export HF_TOKEN=$MY_TOKEN",
        'HF_TOKEN="$(cat /x)" run', "export SSL_KEY=/etc/key", "export PPO_MAX_TOKEN_LEN=8192",
        "HF_TOKEN= run", "pip install -U 'x[key]==1'",
        "export GOOGLE_KEY_FILE=key.json", "wget https://host:8080/a@b",
        'test -n "$HF_TOKEN"', "apt-get install -y x",
    ],
)  # fmt: skip
def test_a_command_without_one(command: str) -> None:
    assert not command_with_secret(command)
