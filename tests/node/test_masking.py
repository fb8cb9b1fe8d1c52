"""Secrets in what is kept of logs."""

import json

import pytest

from cloudrl.node.masking import Masker, secrets_of

KEY = "-----BEGIN KEY-----\nMIIEpAIBAAKCAQEA\n-----END KEY-----\n"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("token s3cret-value!", "token ***"),
        ("twice s3cret-value!s3cret-value!", "twice ******"),
        ("a longer one: s3cret-value!-and-more", "a longer one: ***"),
        ("a\nMIIEpAIBAAKCAQEA\nb", "a\n***\nb"),
        (json.dumps({"x": 'quo"ted\\secret'}), '{"x": "***"}'),
        ("short is a word", "short is a word"),
        ("WANDB_API_KEY=0123456789", "WANDB_API_KEY=***"),
        ("{'HF_TOKEN': 'abcdefgh', 'A': 'b'}", "{'HF_TOKEN': '***', 'A': 'b'}"),
        (r'{\"HF_TOKEN\": \"abcdefgh\"}', r'{\"HF_TOKEN\": \"***\"}'),
        ("HF_TOKEN_PATH=/root/token", "HF_TOKEN_PATH=/root/token"),
        ("pad_token: endoftext, data.prompt_key=prompt", "pad_token: endoftext, data.prompt_key=prompt"),
        ("using hf_AbCdEfGhIjKlMnOpQr now", "using *** now"),
        ("http://me:passw0rd@host/x", "http://me:***@host/x"),
        ("nothing at all: é", "nothing at all: é"),
    ],
)  # fmt: skip
def test_what_is_left_of_a_text(text: str, kept: str) -> None:
    masker = Masker(["s3cret-value!", "s3cret-value!-and-more", KEY, 'quo"ted\\secret', "short", ""])
    assert masker.mask(text.encode()).decode() == kept


def test_without_known_secrets_the_form_decides() -> None:
    assert Masker([]).mask(b"X_TOKEN=abcdefgh other=abcdefgh") == b"X_TOKEN=*** other=abcdefgh"


def test_which_variables_hold_secrets() -> None:
    env = {"HF_TOKEN": "a", "HF_TOKEN_PATH": "b", "MY_PASSWORD": "c", "HOME": "d"}
    assert secrets_of(env) == ("a", "c")
