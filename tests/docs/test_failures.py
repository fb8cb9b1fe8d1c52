"""The page on failures has the table of signatures."""

from pathlib import Path

from cloudrl.logs.causes.signatures import signatures

PAGE = Path(__file__).parents[2] / "docs/failures.md"
HEAD = "| name | what it means | what to do |\n|---|---|---|\n"


def test_the_table_is_that_of_the_finder(golden):
    rows = "".join(
        f"| `{each.name}` | {cell(each.cause)}{FOLLOWS.get(each.follows, '')}{VAGUE * each.is_vague} "
        f"| {cell(each.remedy)} |\n"
        for each in signatures()
    )
    before = PAGE.read_text().partition(HEAD)[0]
    golden(PAGE, before + HEAD + rows)


FOLLOWS = {
    "peer": " Never the cause itself.",
    "silence": " The cause is the rank that they waited for.",
}
VAGUE = " Named only where nothing else is known."


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
