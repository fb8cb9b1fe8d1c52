"""Three secrets from one key."""

import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from patience import SLOWER

from cloudrl.errors import InputError
from cloudrl.node.tokens import node_key, read_or_make_key
from cloudrl.protocol.tokens import Tokens, derive


def _hkdf(key: bytes, info: bytes) -> str:
    """The same by an implementation that others wrote."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(key).hex()


def test_known_answer() -> None:
    """Client and nodes may run different releases of cloudrl: the derivation must never change."""
    tokens = derive(b"key")
    assert tokens.agent == "be7048346bb17dd012df2a77f10c09e5c4b11dff08023e09263deae0b5d79637"
    assert tokens.ray == "9046a025d1cf240492ff11fee8fb505d83ee47986a02fb20344435483315f1de"


@given(st.binary(min_size=1, max_size=4096))
def test_it_is_rfc_5869(key: bytes) -> None:
    assert derive(key).agent == _hkdf(key, b"cloudrl agent")
    assert derive(key).ray == _hkdf(key, b"cloudrl ray")
    assert derive(key).peers == _hkdf(key, b"cloudrl peers")


def test_a_start_with_another_key_is_another_attempt() -> None:
    assert derive(b"key").attempt_id == derive(b"key").attempt_id != derive(b"other").attempt_id
    assert derive(b"key").attempt_id not in derive(b"key").agent


def test_tokens_never_show() -> None:
    assert repr(derive(b"key")) == "Tokens()"
    assert str(Tokens("a" * 64, "b" * 64, "c" * 64)) == "Tokens()"


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_key_is_made_once_and_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "key"
    key = read_or_make_key(path)
    assert len(key) == 64
    assert read_or_make_key(path) == key
    assert _mode(path) == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["key"]


def test_two_makers_get_one_key(tmp_path: Path) -> None:
    start = threading.Barrier(8)

    def make(path: Path) -> bytes:
        start.wait(10 * SLOWER)
        return read_or_make_key(path)

    with ThreadPoolExecutor(8) as pool:
        for round_ in range(20):
            path = tmp_path / str(round_)
            assert set(pool.map(make, [path] * 8)) == {path.read_bytes()}
            assert len(path.read_bytes()) == 64


def test_a_file_that_a_crash_left_empty_is_no_key(tmp_path: Path) -> None:
    (tmp_path / "key").touch(0o600)
    assert len(read_or_make_key(tmp_path / "key")) == 64


def test_where_the_key_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    given_key, job_key, run_dir = tmp_path / "given", tmp_path / ".ssh" / "dstack_job", tmp_path / "run"
    given_key.write_bytes(b"given")
    job_key.parent.mkdir()
    job_key.write_bytes(b"of the run")
    assert node_key(2, run_dir, given_key) == b"given"
    assert node_key(2, run_dir, None) == b"of the run"
    assert node_key(1, run_dir, None) == (run_dir / "key").read_bytes()
    assert len((run_dir / "key").read_bytes()) == 64


def test_several_nodes_without_a_common_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of their own would let them refuse each other for ever."""
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(InputError, match=r"2 nodes, and no key that all have: no .*/\.ssh/dstack_job \(user \d+, home"):
        node_key(2, tmp_path / "run", None)
