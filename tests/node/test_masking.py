"""Secrets in what is kept of logs."""

import json
import time

import pytest

from cloudrl.node.masking import Masker, secrets_of

KEY = "-----BEGIN KEY-----\nMIIEpAIBAAKCAQEA\n-----END KEY-----\n"

MORE = ("a/b&c secret", "131072", "87654321")


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
        ("INFO:root:HF_TOKEN=abcdefgh", "INFO:root:HF_TOKEN=***"),
        ("HF_TOKEN_PATH=x:HF_TOKEN=abcdefgh", "HF_TOKEN_PATH=x:HF_TOKEN=***"),
        ("os.environ['HF_TOKEN']='abcdefgh'", "os.environ['HF_TOKEN']='***'"),
        ("\x1b[36mHF_TOKEN\x1b[0m=\x1b[1;32mabcdefgh\x1b[0m", "\x1b[36mHF_TOKEN\x1b[0m=\x1b[1;32m***\x1b[0m"),
        (json.dumps("first\nHF_TOKEN=abcdefgh"), r'"first\nHF_TOKEN=***"'),
        (json.dumps("first\nhf_AbCdEfGhIjKlMnOpQr"), r'"first\n***"'),
        ("\x1b[36mhf_AbCdEfGhIjKlMnOpQr", "\x1b[36m***"),
        ("TOKEN=abcdefgh, KEY: abcdefgh", "TOKEN=***, KEY: ***"),
        ("risk-AbCdEfGhIjKlMnOpQr x.TOKEN:abcdefgh", "risk-AbCdEfGhIjKlMnOpQr x.TOKEN:abcdefgh"),
        ("github_pat_11ABCDEFG0123456789_abc", "***"),
        ("sk_live_0123456789abcdefgh", "***"),
        ("AKIAIOSFODNN7EXAMPLE", "***"),
        ("Authorization: Bearer abc.def-ghi", "Authorization: Bearer ***"),
        ("{'authorization': 'Bearer abc.def-ghi'}", "{'authorization': 'Bearer ***'}"),
        ("GET /?q=a%2Fb%26c%20secret", "GET /?q=***"),
        ("http://me:p@ssw0rd@host/x", "http://me:***@host/x"),
        ("pid 131072 of 87654321", "pid 131072 of ***"),
    ],
)  # fmt: skip
def test_what_is_left_of_a_text(text: str, kept: str) -> None:
    masker = Masker(["s3cret-value!", "s3cret-value!-and-more", KEY, 'quo"ted\\secret', "short", "", *MORE])
    assert masker.mask(text.encode()).decode() == kept


def test_without_known_secrets_the_form_decides() -> None:
    assert Masker([]).mask(b"X_TOKEN=abcdefgh other=abcdefgh") == b"X_TOKEN=*** other=abcdefgh"


@pytest.mark.parametrize(
    "text", ["A_KEY" * 99999, "\x1b[1m" * 99999, "://a:" * 99999, "TOKEN=\\" * 99999, "K_" * 99999]
)
def test_no_text_takes_long(text: str) -> None:
    before = time.process_time()
    Masker([]).mask(text.encode())
    assert time.process_time() - before < 10


def test_texts_are_masked_before_they_are_json() -> None:
    masker = Masker(["131072", "secret-value"])
    held = {"message": "first\nhf_AbCdEfGhIjKlMnOpQr", "HF_TOKEN": "x", "pids": [131072, ("secret-value", None)]}
    assert masker.mask_all(held) == {"message": "first\n***", "HF_TOKEN": "***", "pids": (131072, ("***", None))}


def test_which_variables_hold_secrets() -> None:
    env = {"HF_TOKEN": "a", "HF_TOKEN_PATH": "b", "MY_PASSWORD": "c", "HOME": "d"}
    assert secrets_of(env) == ("a", "c")
