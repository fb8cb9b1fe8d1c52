"""Phrases that do not read as plain English, in code, messages and docs: `python tests/plain_english.py`.

Prints each with its file and line, and what to write instead. Exit status 1 if there are any.
"""

import re
import subprocess
import sys
from pathlib import Path

PHRASES = {
    r"\b(?:is|are|was|were) none\b": "name the thing: 'FILE is not a recipe', 'the folder has no steps'",
    r"\b[Nn]one (?:where|when) there (?:is|are) none\b": "say when: 'None without a limit', 'None if absent'",
    r"(?<![`/\"'])\b[Nn]obody\b(?![`/\"'])": "name the subject: user, client, rank, server; or 'unknown'",
    r"\blies?\b": "'is stored in', 'is located at', 'belongs to'",
    r"(?<!here )\bis no (?:[a-z]+|[A-Z]+) (?:file|folder|number|agent|debugger)\b": "'is not a ...'",
    r"\bcomes? to (?:lie|be|stand)\b": "'is put', 'is created', 'becomes'",
    r"\bis (?:told|heard) of\b": "'learns of', 'gets'",
}
FOLDERS = ("cloudrl", "docs", "tests", "benchmarks", "README.md", "CHANGELOG.md", "AGENTS.md", "tasks", "fleets")
FOREIGN = ("trainer_config", "/recorded/", "/vendor/", "look_alikes", "standing_texts", "tests/plain_english.py")
"""Texts of other projects, and this file."""


def main() -> int:
    listed = subprocess.run(["git", "ls-files", *FOLDERS], capture_output=True, text=True, check=True).stdout
    names = [
        name
        for name in listed.splitlines()
        if name.endswith((".py", ".md", ".yml", ".sh")) and not any(part in name for part in FOREIGN)
    ]
    found = [
        f"{name}:{number}: {match[0]!r}: write {better}"
        for name in names
        for number, line in enumerate(Path(name).read_text(encoding="utf-8").splitlines(), 1)
        for phrase, better in PHRASES.items()
        if (match := re.search(phrase, line))
    ]
    print("\n".join(found) if found else f"Plain English in {len(names)} files")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
