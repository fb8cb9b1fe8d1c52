"""What planning finds wrong with a job, and the overrides that settle it.

A hint is a fix if its first line is nothing but overrides: that line can be pasted behind the command, and
`cloudrl check --fix` applies it. Any other hint is advice for a person.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cloudrl.errors import InputError, SpecError
from cloudrl.spec import HydraText, Job, parse_override
from cloudrl.spec.hydra import override_argument, split_key

ANYWAY = "Send it all the same: --unchecked"
_KEY = re.compile(r"(\+\+?|~)?[A-Za-z_][\w-]*(\.[\w-]+)+|model_engine|~[A-Za-z_]\w*")
_PLACEHOLDER = "..."


@dataclass(frozen=True)
class Finding:
    """One reason why a job cannot run.

    Attributes:
        text: what is wrong, with both values.
        hint: what to do; "" if unknown.
        is_about_verl: whether it is verl that would refuse the job, so that `--unchecked` sends it all the same.
        owner: who has set the key, such as `recipe 'grpo'`; "" for the user.
        key: the override that verl cannot read, so that nothing behind it can be checked; "" for any other finding.
    """

    text: str
    hint: str = ""
    is_about_verl: bool = False
    owner: str = ""
    key: str = ""

    @property
    def fix(self) -> tuple[str, ...]:
        """The overrides that settle it; empty if the hint is advice.

        Those of a key that verl cannot read take its place.
        """
        words = overrides_of(self.hint)
        is_named = any(split_key(word.partition("=")[0])[1] == self.key for word in words)
        return (f"~{self.key}", *words) if self.key and words and not is_named else words

    @property
    def sentence(self) -> str:
        """The text, and who has set the key."""
        return f"{self.text} (set by {self.owner})" if self.owner else self.text

    def to_json(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {"text": self.text, "hint": self.hint, "fix": list(self.fix), "set_by": self.owner or "user"}


class JobRefused(InputError):
    """A job that cannot run, with all the reasons, and the overrides that settle those that can be settled.

    Attributes:
        findings: all of them, in the order in which planning looks.
        fix: overrides to add to the command. With them the job has no finding but those in `rest`.
        rest: findings that no override settles.
        warnings: what planning warns of besides, such as too little memory.
    """

    def __init__(
        self,
        findings: tuple[Finding, ...],
        fix: tuple[str, ...],
        rest: tuple[Finding, ...],
        warnings: tuple[str, ...] = (),
    ) -> None:
        self.findings, self.fix, self.rest, self.warnings = findings, fix, rest, warnings
        hints = [ANYWAY] if all(each.is_about_verl for each in findings) else []
        if len(findings) == 1:
            [only] = findings
            super().__init__(only.sentence, hint="\n".join(filter(None, (only.hint, *hints))) or None)
            return
        lines = [f"this job cannot run, for {len(findings)} reasons:"]
        for each in findings:
            lines += [f"  {each.sentence}", *(f"    {line}" for line in each.hint.splitlines())]
        super().__init__("\n".join(lines), hint="\n".join(hints) or None)

    def warning(self, *sentences: str) -> JobRefused:
        """The same, with what the user should look at besides."""
        return JobRefused(self.findings, self.fix, self.rest, sentences)

    def to_json(self) -> list[dict[str, Any]]:
        """JSON-ready form of all findings."""
        return [finding.to_json() for finding in self.findings]

    def corrected(self, words: Sequence[str]) -> list[str] | None:
        """The words of the command with the fix in it; None if no override settles anything."""
        return corrected_command(words, self.fix) if self.fix else None

    @property
    def remaining(self) -> JobRefused | None:
        """What is still wrong with the corrected command; None if nothing is."""
        return JobRefused(self.rest, (), self.rest) if self.rest else None


def overrides_of(hint: str) -> tuple[str, ...]:
    """The overrides in the first line of a hint; empty if that line is a sentence, or leaves something open."""
    try:
        words = shlex.split(hint.partition("\n")[0])
    except ValueError:  # a quote in a sentence
        return ()
    return tuple(words) if all(map(_is_override, words)) else ()


def _is_override(word: str) -> bool:
    key, equals, _ = word.partition("=")
    return bool(_KEY.fullmatch(key)) and bool(equals or key.startswith("~")) and _PLACEHOLDER not in word


def with_fix(job: Job, overrides: Mapping[str, Any], fix: Iterable[str]) -> dict[str, Any]:
    """A user's overrides with those of a fix in place of what they set before.

    `~key` takes out what the user has set; where that is nothing, what the recipe has set.
    """
    fixed = dict(overrides)
    for word in fix:
        key, value = parse_override(word)
        bare = split_key(key)[1]
        before = [each for each in fixed if split_key(each)[1] == bare]
        fixed = {each: text for each, text in fixed.items() if each not in before}
        if not key.startswith("~") or not before:
            fixed[key] = value
    return {key: text for key, text in fixed.items() if not key.startswith("~") or _removes(job, overrides, key)}


def _removes(job: Job, overrides: Mapping[str, Any], key: str) -> bool:
    """Whether there is something to take out: a key of the recipe, or one that the user has asked to delete."""
    return key in overrides or job.override(split_key(key)[1]) is not None


def words_of(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
    """The overrides that differ, as words of a command; `~key` for one that is left out."""
    kept = {split_key(key)[1] for key in after}
    gone = (f"~{split_key(key)[1]}" for key in before if split_key(key)[1] not in kept)
    changed = (override_argument(key, str(text)) for key, text in after.items() if before.get(key) != text)
    return (*gone, *changed)


def corrected_command(words: Iterable[str], fix: Iterable[str]) -> list[str]:
    """The words of a command with a fix: in place of the overrides of the same keys, or behind them.

    Args:
        words: as typed, without the name of the program.
        fix: overrides, as `JobRefused.fix` has them.
    """
    by_key = {split_key(word.partition("=")[0])[1]: word for word in fix}
    typed, placed = [], set[str]()
    for word in words:
        bare = _key_of(word)
        if bare is None or bare not in by_key:
            typed.append(word)
        elif bare not in placed:
            placed.add(bare)
            typed += [] if by_key[bare].startswith("~") else [by_key[bare]]
    return [*typed, *(word for bare, word in by_key.items() if bare not in placed)]


def _key_of(word: str) -> str | None:
    try:
        return split_key(parse_override(word)[0])[1]
    except SpecError:
        return None


def apply(arguments: Mapping[str, str], fix: Iterable[str]) -> dict[str, str]:
    """Overrides as Hydra text with a fix; what `~key` names is left out."""
    fixed = dict(arguments)
    for word in fix:
        key, value = parse_override(word)
        bare = split_key(key)[1]
        fixed = {each: text for each, text in fixed.items() if split_key(each)[1] != bare}
        if not key.startswith("~"):
            fixed[key] = HydraText(value)
    return fixed
