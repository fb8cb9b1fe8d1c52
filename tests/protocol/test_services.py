"""Services and artifacts as words of the agent's command line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudrl.errors import InputError
from cloudrl.protocol.services import Artifact, Service, parse_artifact, parse_service

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
COMMAND = TEXT.filter(str.strip)
SERVICES = st.builds(
    Service,
    port=st.integers(1, 65535),
    command=COMMAND,
    name=st.just("") | st.just("search"),
    needs=st.lists(TEXT, max_size=2).map(tuple),
    health=st.just("") | TEXT,
    restart=st.integers(0, 9),
)


@given(SERVICES)
def test_what_is_written_is_what_is_read(service: Service) -> None:
    assert parse_service(str(service)) == service


@given(COMMAND)
def test_an_artifact_is_read_as_it_is_written(command: str) -> None:
    artifact = Artifact("search-wiki-18", command)
    assert parse_artifact(str(artifact)) == artifact


@pytest.mark.parametrize(
    ("text", "service"),
    [
        ("8000:bash launch.sh", Service(8000, "bash launch.sh")),
        ("1:a", Service(1, "a")),
        ("65535:curl http://x:80/y", Service(65535, "curl http://x:80/y")),
        ("8000: a\nb ", Service(8000, " a\nb ")),
        ('{"port": 8000, "command": "a", "later": 1}', Service(8000, "a")),
    ],
)
def test_a_port_and_a_command(text: str, service: Service) -> None:
    assert parse_service(text) == service


def test_the_plain_form_is_kept_where_nothing_else_is_said() -> None:
    assert str(Service(8000, "bash launch.sh")) == "8000:bash launch.sh"
    assert str(Service(8000, "a", health="/health")) == '{"port": 8000, "command": "a", "health": "/health"}'


@pytest.mark.parametrize(
    "text",
    ["", "8000", "8000:", "8000: ", ":a", "0:a", "65536:a", "-1:a", "٨:a", "bash x", '{"port": 0, "command": "a"}'],
)
def test_neither_port_nor_command(text: str) -> None:
    with pytest.raises(InputError, match=r"is not PORT:COMMAND, for example '8000:bash launch.sh'"):
        parse_service(text)


@pytest.mark.parametrize("text", ["{", '{"port": 8000}', '{"port": "8000", "command": "a"}'])
def test_what_is_no_json_of_a_service(text: str) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        parse_service(text)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b"])
def test_an_artifact_has_a_folder_of_its_own(name: str) -> None:
    with pytest.raises(InputError, match="is not an artifact"):
        parse_artifact(str(Artifact(name, "true")))
