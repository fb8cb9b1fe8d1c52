"""Tells the agent what verl has saved, and has verl save at the end of its step: a callback of verl's trainer.

`trainer.checkpoint_callback_class=cloudrl_save_hook.SaveCallback` (verl 0.9.1, trainer/ppo/checkpoint_callback.py) has
the controller make one. Nothing of verl is changed: `fit` reads `trainer.save_freq` from the configuration after each
step (trainer/ppo/v1/trainer_base.py), so a 1 in its place saves that step, and `on_save` puts the number back.

The agent lays this file as `cloudrl_save_hook` onto the PYTHONPATH of jobs; it imports nothing of ours. Callback and
agent meet in the folder CLOUDRL_LOOKS_DIR of the controller's node: `PID.save` says what was saved last, `save-wish`
which attempt is to save.
"""

import contextlib
import importlib
import json
import os
import threading
import time
from pathlib import Path
from typing import Any, Callable, Mapping, Optional

WISH = "save-wish"
"""The file with `SUBMISSION_ID NUMBER`: that attempt is to save once more, for each higher number."""
_POLL_S = 1.0


class SaveCallback:
    """verl's callback. One that the user has named runs behind it, and what else is asked of it is that one's.

    Args:
        config: the trainer's own configuration, which `fit` reads.
        environ: CLOUDRL_LOOKS_DIR; CLOUDRL_ATTEMPT, the submission id; CLOUDRL_SAVE_EVERY_S, seconds between two saves;
            CLOUDRL_CHECKPOINT_CALLBACK, the user's own class.
        clock: seconds that never run backwards.
    """

    def __init__(
        self,
        config: Any = None,
        *,
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
        is_polled: bool = True,
    ) -> None:
        self.config = config
        self._folder, self._attempt = environ.get("CLOUDRL_LOOKS_DIR", ""), environ.get("CLOUDRL_ATTEMPT", "")
        self._clock, self._saved_at, self._every_s = clock, clock(), _seconds(environ.get("CLOUDRL_SAVE_EVERY_S"))
        self._usual_freq: Optional[int] = None
        self._answered = 0
        self._own = _users_own(environ.get("CLOUDRL_CHECKPOINT_CALLBACK", ""), config)
        if is_polled:
            threading.Thread(target=self._poll, name="cloudrl-save-hook", daemon=True).start()

    def on_save(self, *args: Any, **kwargs: Any) -> None:
        """Tell the agent that a step is saved. An exception of the user's own callback ends the training."""
        with contextlib.suppress(Exception):  # whatever is wrong with us: the training goes on
            self._note(kwargs)
        if self._own is not None:
            self._own.on_save(*args, **kwargs)

    def look(self) -> None:
        """Have the step that runs saved, if the agent wants it or it is time, and no longer if it does not."""
        is_late = self._every_s is not None and self._clock() - self._saved_at >= self._every_s
        is_wanted = is_late or self._wish() > self._answered
        if self._usual_freq is None and is_wanted:
            usual = self.config.trainer.save_freq
            self.config.trainer.save_freq = 1
            self._usual_freq = usual
        elif self._usual_freq is not None and not is_wanted:  # the save would come too late
            self.config.trainer.save_freq, self._usual_freq = self._usual_freq, None

    def __getattr__(self, name: str) -> Any:
        """Of the user's own; a trainer of another release may call more than `on_save`."""
        own = self.__dict__.get("_own")
        if own is None:
            raise AttributeError(name)
        return getattr(own, name)

    def _note(self, saved: Mapping[str, Any]) -> None:
        self._saved_at, self._answered = self._clock(), max(self._answered, self._wish())
        if self._usual_freq is not None:
            self.config.trainer.save_freq, self._usual_freq = self._usual_freq, None
        if not self._folder or not self._attempt:
            return
        note = {
            "submission_id": self._attempt, "step": int(saved["global_step"]), "folder": str(saved["checkpoint_dir"]),
            "at": round(time.time(), 3), "is_async": bool(saved.get("async_save")),
        }  # fmt: skip
        path, part = (Path(self._folder, f"{os.getpid()}.{end}") for end in ("save", "save.part"))
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(part, flags, 0o600), "w") as file:
            file.write(json.dumps(note))
        part.replace(path)

    def _wish(self) -> int:
        """The number of what the agent wants of this attempt; 0 for nothing."""
        with contextlib.suppress(OSError, ValueError):
            attempt, number = Path(self._folder, WISH).read_text(encoding="utf-8").split(" ")
            if self._attempt and attempt == self._attempt:
                return int(number)
        return 0

    def _poll(self) -> None:
        while True:
            time.sleep(_POLL_S)
            with contextlib.suppress(Exception):  # a configuration that cannot be set: verl saves as it did
                self.look()


def _users_own(name: str, config: Any) -> Any:
    """The callback that the user has named, made as verl would; None without one."""
    if not name:
        return None
    module, _, kind = name.rpartition(".")
    return getattr(importlib.import_module(module), kind)(config=config)


def _seconds(text: Optional[str]) -> Optional[float]:
    try:
        return float(text) if text else None
    except ValueError:
        return None
