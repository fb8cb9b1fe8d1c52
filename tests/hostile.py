"""Texts that YAML, a shell, Hydra or dstack could read as something else."""

from hypothesis import strategies as st

HOSTILE = [
    "'", '"', "a'b\"c", "$(rm -rf /)", "`id`", "$HOME", "${HOME}", "$$", "$${X}", "${{ secrets.x }}",
    "$${{ x }}", "${{ groups[0].nodes[0].IP_ADDRESS }}", "${{ groups[9] }}", "${{", "a: b", "# no comment",
    "- item", "-x", "--data", "yes", "no", "null", "1e3", "1:30", "\n", "a\nb\n", "\ttab", "a &", "a && b",
    "a; b", "a | b", "!!", "!x", "\\", "\\\n", "é", "\u2028", "\x85", "\ufeff", "\x1b[31m", "\U0001f600",
    "%", "*", "~", "=", "{a}", "[a]", "<x>", "\r\n", "\x7f",
]  # fmt: skip

texts = st.lists(
    st.one_of(st.sampled_from(HOSTILE), st.text(st.characters(exclude_categories=["Cs"]), max_size=4))
).map(" ".join)
"""Of any length, on any number of lines."""

lines = st.one_of(
    st.sampled_from(HOSTILE),
    st.text(st.characters(exclude_categories=["Cs", "Cc", "Cf", "Zl", "Zp", "Zs"]), min_size=1, max_size=6),
)
"""Short ones, as a name in somebody's cloud could be."""

names = st.from_regex(r"[a-z][a-z0-9-]{1,40}", fullmatch=True) | st.sampled_from(["no", "on", "yes", "null", "true"])
"""Names that dstack takes, some of which YAML takes for values."""

tags = st.dictionaries(
    st.from_regex(r"[A-Za-z0-9_-]{1,6}", fullmatch=True) | st.sampled_from(["no", "on", "1e3", "-"]),
    st.from_regex(r"[A-Za-z0-9 .:/=_+@-]{0,6}", fullmatch=True) | st.sampled_from(["no", "1:30", " ", "=", "0x1"]),
    max_size=2,
)
