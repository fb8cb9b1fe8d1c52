"""The pages on failures have the tables of signatures, a page for each family."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from cloudrl.logs.causes import signatures as finder
from cloudrl.logs.causes.signatures import Signature, signatures
from cloudrl.spec.yaml_core import load_value

DOCS = Path(__file__).parents[2] / "docs"
KNOWN = Path(finder.__file__).with_name("known")
FAMILIES = sorted(path.stem for path in KNOWN.glob("*.yml"))
BEGIN, END = "<!-- Written by tests/docs/test_failures.py --update-golden. -->\n", "<!-- End. -->\n"
FOLLOWS = {
    "peer": " Never the cause itself.",
    "silence": " The cause is the rank that they waited for.",
}
VAGUE = " Named only where nothing else is known."


def rows(family: str) -> list[Signature]:
    by_name = {each.name: each for each in signatures()}
    path = KNOWN / f"{family}.yml"
    return [by_name[row["name"]] for row in load_value(path.read_text(), path.name)]


def subject(family: str) -> str:
    """What the first line of a table says of it, without the note for maintainers."""
    [text] = re.findall(r"\A# (.+?\.) `signatures\.py`", (KNOWN / f"{family}.yml").read_text())
    return str(text)


def page(family: str) -> Path:
    return DOCS / "failures" / f"{family.replace('_', '-')}.md"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_page_is_the_table_of_its_family(family: str, golden: Callable[[Path, str], None]) -> None:
    head = (
        f"# Known failures: {family.replace('_', ' ')}\n\n"
        f"{subject(family)} How they are found: [why a job failed](../failures.md).\n\n"
        "| name | what it means | what to do |\n|---|---|---|\n"
    )
    golden(page(family), head + "".join(row(each) for each in rows(family)))


def test_the_families_are_listed(golden: Callable[[Path, str], None]) -> None:
    """In the order in which they are asked."""
    order = [each.name for each in signatures()]
    families = sorted(FAMILIES, key=lambda family: order.index(rows(family)[0].name))
    table = "".join(f"| [{page(each).stem}](failures/{page(each).name}) | {subject(each)} |\n" for each in families)
    before, after = re.split(f"{BEGIN}(?s:.*){END}", (DOCS / "failures.md").read_text())
    golden(DOCS / "failures.md", f"{before}{BEGIN}| family | |\n|---|---|\n{table}{END}{after}")


def test_every_page_belongs_to_a_family() -> None:
    assert {path.name for path in page("x").parent.iterdir()} == {page(each).name for each in FAMILIES}


def row(each: Signature) -> str:
    extra = FOLLOWS.get(each.follows or "", "") + VAGUE * each.is_vague
    return f"| `{each.name}` | {cell(each.cause)}{extra} | {cell(each.remedy)} |\n"


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
