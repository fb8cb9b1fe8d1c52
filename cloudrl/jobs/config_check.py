"""verl's whole configuration, composed and checked before the job is sent: what verl would find out on rented GPUs."""

from collections.abc import Sequence

from cloudrl.errors import InputError
from cloudrl.jobs.draft import JobDraft, Snapshot
from cloudrl.spec import override_argument
from cloudrl.verl.composition import CONFIG_NAME, Problem, compose, is_known
from cloudrl.verl.rules import notes, problems

_MAIN = "verl.trainer.main_ppo"
_NAMES = ("--config-name", "-cn")
_ELSEWHERE = ("--config-path", "-cp", "--config-dir", "-cd")
"""Options of Hydra's command line, by which the configuration is the user's own (Hydra 1.3, _internal/utils.py)."""


def check_config(draft: JobDraft, snapshot: Snapshot) -> JobDraft:
    """Pass: refuse what Hydra or verl would refuse, all of it at once; where nobody here knows, say that.

    Raises:
        InputError: The job cannot work, and the user has not asked to send it all the same.
    """
    release, fork = draft.cluster.verl_version, snapshot.files.verl_fork
    config_name = _config_name(draft.job.entrypoint)
    if config_name is None:
        return draft
    if fork is not None or release is None or not is_known(release):
        which = "a verl of your own" if fork is not None else f"verl {release or 'of unknown version'}"
        return draft.noting(f"the configuration is not checked before the job starts: cloudrl does not know {which}")
    words = tuple(override_argument(key, value) for key, value in draft.arguments.items())
    composed = compose(release, words, config_name)
    found = composed.problems
    if composed.values is not None:
        found = problems(composed.values, draft.cluster.nodes * draft.cluster.gpus_per_node)
        draft = draft.noting(*notes(composed.values))
    draft = draft.noting(
        *(f"{added} is a key of your own, and verl has {known}: is that meant?"
          for added, known in composed.lookalikes.items())
    )  # fmt: skip
    if draft.options.unchecked:
        return draft.noting(*(each.text for each in found))
    if found:
        raise _refusal(release, found)
    return draft


def _config_name(entrypoint: Sequence[str]) -> str | None:
    """Which of verl's configurations the driver composes; None for another program, or with files of the user's own."""
    if _MAIN not in entrypoint:
        return None
    words = entrypoint[entrypoint.index(_MAIN) + 1 :]
    if any(word.partition("=")[0] in _ELSEWHERE for word in words):
        return None
    for number, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in _NAMES:
            return value if equals else next(iter(words[number + 1 :]), None)
    return CONFIG_NAME


def _refusal(release: str, found: Sequence[Problem]) -> InputError:
    anyway = "Send it all the same: --unchecked"
    if len(found) == 1:
        return InputError(found[0].text, hint="\n".join(filter(None, (found[0].hint, anyway))))
    lines = [f"verl {release} cannot run this job, for {len(found)} reasons:"]
    for each in found:
        lines += [f"  {each.text}", *([f"    {each.hint}"] if each.hint else [])]
    return InputError("\n".join(lines), hint=anyway)
