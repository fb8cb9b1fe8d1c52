"""The manifest of a user's file or folder: its address, and paths that must not pass."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudrl.protocol.manifest import MAX_FILES, Manifest, Part

DIGEST = "a" * 64
GOOD = Manifest((Part("model/a/x", 1, DIGEST), Part("model/b", 2, DIGEST)))


def rows(*paths: str) -> dict[str, Any]:
    return {"parts": [[path, 1, DIGEST] for path in paths]}


def test_it_travels_as_json():
    assert Manifest.from_json(json.loads(json.dumps(GOOD.to_json()))) == GOOD
    assert (GOOD.name, GOOD.size_bytes, GOOD.by_path["model/b"].size_bytes) == ("model", 3, 2)


def test_the_address_follows_the_content():
    first, second = GOOD.parts
    others = [
        Manifest((first._replace(path="model/a/y"), second)),
        Manifest((first._replace(size_bytes=2), second)),
        Manifest((first._replace(sha256="b" * 64), second)),
        Manifest((second,)),
    ]
    addresses = {each.address for each in [GOOD, *others]}
    assert len(addresses) == 5
    assert all(len(address) == 32 and set(address) <= set("0123456789abcdef") for address in addresses)
    assert Manifest(GOOD.parts).address == GOOD.address


ALONE = ["../x", "/etc/passwd", "a/../../x", "a/./x", "a//x", "", ".", "..", "a/", "a\0b", "x" * 256, "\udc80"]
TOGETHER = [("a/x", "b/x"), ("a/y", "a/x"), ("a/x", "a/x"), ("a", "a/x"), ("a/b", "a/b/c")]


@pytest.mark.parametrize("paths", [*((path,) for path in ALONE), *TOGETHER])
def test_paths_that_do_not_pass(paths: tuple[str, ...]):
    with pytest.raises(ValueError, match=r"path|manifest"):
        Manifest.from_json(rows(*paths))


MANIFESTS = [None, [], {}, {"parts": []}, {"parts": "x"}, rows(*(f"a/{n:05}" for n in range(MAX_FILES + 1)))]
SIZES, DIGESTS = (-1, True, 1.5, "1"), (DIGEST[1:], DIGEST.upper(), None)
PARTS = [["a", 1], [1, 1, DIGEST], *(["a", size, DIGEST] for size in SIZES), *(["a", 1, each] for each in DIGESTS)]


@pytest.mark.parametrize("value", [*MANIFESTS, *({"parts": [part]} for part in PARTS)])
def test_what_is_no_manifest(value: Any):
    with pytest.raises(ValueError):
        Manifest.from_json(value)


@given(st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=4))
def test_whatever_passes_stays_below_its_folder(names: list[str]):
    try:
        manifest = Manifest.from_json(rows("/".join(names)))
    except ValueError:
        return
    assert not {"", ".", ".."} & set(manifest.parts[0].path.split("/"))
    assert "\0" not in manifest.parts[0].path
