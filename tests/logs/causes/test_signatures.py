"""The table of known failures."""

import re
import time
from collections import Counter
from pathlib import Path

import pytest
import typer
from typed_command import Run, Typed

from cloudrl.cli._commands import load
from cloudrl.logs.causes.signatures import Signature, recognise, signatures
from cloudrl.spec.yaml_core import load_value
from cloudrl.verl.composition import compose
from cloudrl.verl.releases import RELEASE

ROWS, HERE = signatures(), Path(__file__).parent


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_finds_its_example_and_no_row_before_it_does(row: Signature):
    assert recognise(row.example, is_end=row.is_end) is row
    assert row.is_end or recognise(row.example, is_end=True) is row
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", row.name)
    assert row.follows in (None, "peer", "silence", "report")
    assert row.cause.endswith(".")
    assert row.source


def test_names_stand_once():
    assert max(Counter(row.name for row in ROWS).values()) == 1


@pytest.mark.parametrize("row", [row for row in ROWS if row.follows != "peer"], ids=lambda row: row.name)
def test_a_remedy_holds_a_command_or_an_override(row: Signature):
    assert re.search(r"cloudrl \w+|--\w+|\S+=\S+|dmesg|\+KEY", row.remedy)


@pytest.fixture(scope="module")
def helps() -> dict[tuple[str, ...], Typed]:
    """What commands have said of themselves: each is asked once."""
    return {}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_commands_and_options_of_a_remedy_are_there(
    row: Signature, run: Run, helps: dict[tuple[str, ...], Typed]
) -> None:
    def help_of(*words: str) -> Typed:
        if words not in helps:
            helps[words] = run(*words, "--help")
        return helps[words]

    named = re.findall(r"\bcloudrl ([a-z]+)(?: ([a-z]+)\b)?", row.remedy)
    options = help_of("submit").out + help_of("up").out
    for noun, verb in named:
        words = [noun, verb] if verb and isinstance(load(noun), typer.Typer) else [noun]
        assert help_of(*words).code == 0, words
        options += help_of(*words).out
    assert [each for each in re.findall(r"--[a-z][a-z-]+", row.remedy) if each not in options] == []


def test_the_overrides_of_remedies_are_keys_of_verl():
    """Each as it would be pasted; what stands for a name of the user's is in capitals."""
    words = [word.strip("',;") for row in ROWS for word in row.remedy.split()]
    overrides = dict.fromkeys(word for word in words if re.fullmatch(r"\+?(?!slurm)[a-z_]+(?:\.\w+)+=\S+", word))
    assert "data.truncation=error" in overrides
    composed = [(override, compose(RELEASE.verl, (override,)).problems) for override in overrides]
    assert [(override, problems) for override, problems in composed if problems] == []


@pytest.mark.parametrize("text", ["a" * 10**6, "File " * 10**5, "[Errno 28" * 10**5, "placement group " * 10**5])
def test_a_line_of_any_length_is_read_at_once(text: str):
    began = time.process_time()
    assert recognise(text) is None
    assert time.process_time() - began < 2


@pytest.mark.parametrize("text", ["", "step:1 - critic/score/mean:0.5", "INFO: all is well", "\x1b]0;x\x07"])
def test_what_is_no_failure(text: str):
    assert recognise(text) is None


STANDING = [
    text
    for texts in load_value((HERE / "standing_texts.yml").read_text(), "standing_texts.yml").values()
    for text in texts
]


@pytest.mark.parametrize("text", STANDING)
def test_no_signature_finds_anything_in_a_standing_text(text: str):
    """Neither a pattern by itself, whatever is left out before it is asked, nor the finder."""
    assert [row.name for row in ROWS if row.pattern.search(text)] == []
    assert recognise(text) is None


@pytest.mark.parametrize("text", STANDING)
def test_a_standing_text_hides_no_failure(text: str):
    assert [row.name for row in ROWS if recognise(f"{row.example}\n{text}", is_end=row.is_end) is not row] == []


LOOK_ALIKES = [
    (row["text"], row["signature"]) for row in load_value((HERE / "look_alikes.yml").read_text(), "look_alikes.yml")
]


@pytest.mark.parametrize(("text", "name"), LOOK_ALIKES)
def test_messages_that_others_have_been_taken_for(text: str, name: str | None):
    found = recognise(text)
    assert (found and found.name) == name
