"""Reading Hydra's text back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cloudrl.jobs.overrides import unquoted
from cloudrl.spec import hydra_text


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_quotes_come_off_again(value: str):
    text = hydra_text(value)
    if text[:1] in ("'", '"'):
        assert unquoted(text) == value
