import yaml
from hypothesis import given
from hypothesis import strategies as st

from cloudrl.providers.dstack.yaml_text import Section, document

texts = st.text(st.characters(exclude_categories=["Cs"]))


def test_sections_have_a_comment_and_a_blank_line_between():
    written = document(
        "what\n\nhow",
        [
            Section({"type": "task", "nodes": 2}),
            Section({"ports": [1, 2], "env": None}, comment="why\nso"),
            Section({"user": None}, comment="left out"),
        ],
    )
    assert written == ("# what\n#\n# how\n\ntype: task\nnodes: 2\n\n# why\n# so\nports:\n  - 1\n  - 2\n")


def test_a_text_of_several_lines_is_shown_as_such():
    assert document("x", [Section({"c": ["a \\\n  b"]})]) == "# x\n\nc:\n  - |-\n    a \\\n      b\n"


def test_a_long_text_stays_on_its_line():
    assert document("x", [Section({"c": "a " * 200 + "b"})]).count("\n") == 3


def test_zero_and_what_is_empty_are_values():
    assert document("x", [Section({"n": 0, "m": {}, "l": ()})]) == "# x\n\nn: 0\nm: {}\nl: []\n"


def test_words_that_yaml_1_1_reads_otherwise_are_quoted():
    words = ["no", "on", "yes", "null", "~", "1:30", "1e3", "0x1", "2024-01-01", "", "- a", "a: b", "#a", "*a", "!a"]
    written = document("x", [Section({"w": words})])
    assert yaml.safe_load(written) == {"w": words}


@given(st.dictionaries(texts, texts, min_size=1), st.lists(texts, min_size=1))
def test_any_text_comes_back(mapping, items):
    written = document("x", [Section({"env": mapping}), Section({"list": items})])
    assert yaml.safe_load(written) == {"env": mapping, "list": items}
    assert written.endswith("\n")
