"""The pages of docs/ are short, found from the index, and every link and mention leads to one."""

import re
import subprocess

import pytest
from guide_pages import DOCS, GUIDES, PAGES, REPOSITORY, anchors, links

LINES = 200
MENTION = re.compile(r"(?<![\w/.-])docs/([\w/-]+\.md)(?:#([\w-]+))?")
FOREIGN = {
    "multinode.md",  # Search-R1's
    "algo/dapo.md", "algo/grpo.md", "algo/opo.md", "advance/v1_async_trainer.md", "perf/dpsk.md",  # verl's
    "features/quantization/fp8.md",  # vLLM's
    "api/batch.md",  # git-lfs's
}  # fmt: skip
"""Pages of other projects that are cited as sources."""


@pytest.mark.parametrize("guide", GUIDES)
def test_a_page_is_short_and_begins_with_its_title(guide: str) -> None:
    lines = (DOCS / guide).read_text().splitlines()
    assert len(lines) <= LINES
    assert re.match(r"# \S", lines[0])


def test_readme_is_short() -> None:
    assert len((REPOSITORY / "README.md").read_text().splitlines()) <= LINES


def test_the_index_has_every_page_once() -> None:
    listed = [target for target, _ in links(DOCS / "README.md")]
    families = [target for target, _ in links(DOCS / "failures.md") if target.startswith("failures/")]
    assert sorted([*listed, *families, "README.md"]) == sorted([*GUIDES, "your-own-task.md"])  # that one to begin with


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    here = REPOSITORY / page
    for target, anchor in links(here):
        there = here.parent / target if target else here
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), f"{target}#{anchor}"


def test_pages_that_code_and_messages_name_exist() -> None:
    """Comments, messages, ready-made files and tests name pages of ours, or those of other projects."""
    listed = subprocess.run(["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=60)
    mentions = 0
    for path in (REPOSITORY / name for name in listed.stdout.splitlines() if not name.startswith("docs/")):
        if path.suffix not in {".py", ".yml", ".md", ".toml", ""} or not path.is_file():
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        for found in MENTION.finditer(text):
            if found[1] in FOREIGN:
                continue
            mentions += 1
            page = DOCS / found[1]
            assert page.exists(), f"{path}: {found[0]}"
            assert not found[2] or found[2] in anchors(page), f"{path}: {found[0]}"
    assert mentions > 20
