import re

from dstack._internal.core.services import is_valid_dstack_resource_name
from dstack._internal.utils.interpolator import VariablesInterpolator
from hypothesis import given
from hypothesis import strategies as st

from cloudrl.errors import SpecError
from cloudrl.spec.names import resource_name, secret_name

ANY = st.text(alphabet="aZ9-_./:@$ \n\u00e9", max_size=8)


def taken(check, value):
    try:
        return check(value) == value
    except SpecError:
        return False


@given(ANY | st.from_regex(r"[a-z][a-z0-9-]{1,45}", fullmatch=True))
def test_a_name_is_one_of_dstacks(value):
    assert taken(resource_name, value) == (is_valid_dstack_resource_name(value) and "\n" not in value)


@given(ANY | st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True))
def test_a_secret_that_we_take_can_be_filled_in(value):
    if taken(secret_name, value):
        fill = VariablesInterpolator({"secrets": {value: "x"}}).interpolate_or_error
        assert fill(f"${{{{ secrets.{value} }}}}") == "x"
        assert re.fullmatch(r"[A-Za-z0-9-_]{1,200}", value)
