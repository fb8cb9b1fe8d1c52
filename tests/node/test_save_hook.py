"""The callback of verl's trainer: what it tells the agent, and when it has a step saved."""

import json
import os
import sys
import types
from pathlib import Path

import pytest

from cloudrl.node.looks import Looks
from cloudrl.node.save_hook import SaveCallback


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def _config(save_freq: int) -> types.SimpleNamespace:
    return types.SimpleNamespace(trainer=types.SimpleNamespace(save_freq=save_freq))


def _callback(folder: Path, save_freq: int = -1, clock: Clock | None = None, **more: str) -> SaveCallback:
    environ = {"CLOUDRL_LOOKS_DIR": str(folder), "CLOUDRL_ATTEMPT": "night-2", **more}
    return SaveCallback(_config(save_freq), environ=environ, clock=clock or Clock(), is_polled=False)


def _saved(callback: SaveCallback, step: int) -> None:
    callback.on_save(trainer=None, global_step=step, checkpoint_dir=f"/c/night/global_step_{step}", async_save=False)


@pytest.fixture
def looks(tmp_path: Path) -> Looks:
    looks = Looks(tmp_path, 0)
    looks.prepare({})
    return looks


def test_the_agent_hears_of_a_save_and_its_attempt(tmp_path: Path, looks: Looks) -> None:
    callback = _callback(tmp_path / "looks-0")
    assert looks.saved() is None

    _saved(callback, 10)
    _saved(callback, 20)

    saved = looks.saved()
    assert saved is not None
    assert (saved.submission_id, saved.step, saved.folder, saved.is_async) == (
        "night-2", 20, "/c/night/global_step_20", False,
    )  # fmt: skip


def test_one_wish_of_the_agent_is_one_save(tmp_path: Path, looks: Looks) -> None:
    callback = _callback(tmp_path / "looks-0", save_freq=50)
    looks.wish("another-job 1")
    callback.look()
    assert callback.config.trainer.save_freq == 50, "it is meant for another attempt"

    looks.wish("night-2 1")
    looks.note()  # this removes what dead processes have left
    callback.look()
    assert callback.config.trainer.save_freq == 1
    _saved(callback, 7)
    callback.look()
    assert callback.config.trainer.save_freq == 50, "the wish is fulfilled"

    looks.wish("night-2 2")
    callback.look()
    assert callback.config.trainer.save_freq == 1


def test_a_wish_that_is_taken_back_is_not_fulfilled(tmp_path: Path, looks: Looks) -> None:
    callback = _callback(tmp_path / "looks-0", save_freq=50)
    for wish, save_freq in (("night-2 1", 1), ("", 50), ("night-2 2", 1), ("another-job 1", 50)):
        looks.wish(wish)
        callback.look()
        assert callback.config.trainer.save_freq == save_freq


def test_a_wish_that_was_answered_comes_back_without_a_save(tmp_path: Path, looks: Looks) -> None:
    callback = _callback(tmp_path / "looks-0", save_freq=50)
    looks.wish("night-2 2")
    callback.look()
    _saved(callback, 7)
    looks.wish("")
    _saved(callback, 50)
    for wish, save_freq in (("night-2 1", 50), ("night-2 2", 50), ("night-2 3", 1)):
        looks.wish(wish)
        callback.look()
        assert callback.config.trainer.save_freq == save_freq


def test_it_saves_when_the_last_save_is_long_ago(tmp_path: Path) -> None:
    clock = Clock()
    callback = _callback(tmp_path, clock=clock, CLOUDRL_SAVE_EVERY_S="600")

    clock.now = 599.0
    callback.look()
    assert callback.config.trainer.save_freq == -1
    clock.now = 600.0
    callback.look()
    assert callback.config.trainer.save_freq == 1
    _saved(callback, 7)
    clock.now = 1199.0
    callback.look()
    assert callback.config.trainer.save_freq == -1


def test_the_users_own_callback_runs_and_may_end_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Own:
        def __init__(self, config: object) -> None:
            self.config, self.extra = config, "what this user's trainer asks for"

        def on_save(self, **saved: object) -> None:
            raise RuntimeError(f"no room for step {saved['global_step']}")

    monkeypatch.setitem(sys.modules, "mine", types.SimpleNamespace(Own=Own))  # type: ignore[arg-type]
    callback = _callback(tmp_path, CLOUDRL_CHECKPOINT_CALLBACK="mine.Own")

    with pytest.raises(RuntimeError, match="no room for step 3"):
        _saved(callback, 3)

    assert callback.extra == "what this user's trainer asks for"
    with pytest.raises(AttributeError):
        _ = callback.nothing
    note = json.loads((tmp_path / f"{os.getpid()}.save").read_text())
    assert note["step"] == 3, "the step is saved all the same"


def test_without_a_folder_the_training_goes_on(tmp_path: Path) -> None:
    _saved(_callback(tmp_path / "gone"), 3)
    _saved(SaveCallback(_config(5), environ={}, is_polled=False), 3)
