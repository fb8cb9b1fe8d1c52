import re
from importlib.metadata import version
from pathlib import Path

import pytest

from cloudrl.errors import SpecError
from cloudrl.verl import releases
from cloudrl.verl.releases import RELEASE, RELEASES, release
from cloudrl.verl_cpu import plugin

PINNED = re.compile(r"[A-Za-z0-9_-]+==[0-9.]+")


def test_nothing_is_installed_from_an_unpinned_place():
    for row in RELEASES:
        for command in row.install:
            assert command.startswith("pip install --no-deps ")
            packages = [word for word in command.split()[2:] if not word.startswith("-")]
            assert f"verl=={row.verl}" in packages
            assert all(PINNED.fullmatch(package) for package in packages)
        assert re.fullmatch(r"[a-z0-9]+/[a-z0-9-]+:\S*[0-9]\S*", row.image)
        assert "latest" not in row.image


def test_every_row_says_where_it_is_from_and_can_be_asked_for():
    for row in RELEASES:
        assert row.source.startswith(("verl v", "AMD: "))
        assert row.rollout in ("vllm", "sglang")
        assert release(row.verl, vendor=row.vendor, rollout=row.rollout) is row
    assert len({(row.verl, row.vendor, row.rollout) for row in RELEASES}) == len(RELEASES)


def test_what_was_seen_on_gpus_has_a_card_a_date_and_what_was_not_seen():
    seen = [row for row in RELEASES if row.confirmed]
    assert {(row.verl, row.vendor) for row in seen} == {(RELEASE.verl, "nvidia")}
    for row in seen:
        assert re.search(r" on one H200, [0-9]{1,2} [A-Z][a-z]+ 20[0-9]{2}; not .*no rollout engine$", row.confirmed)


def test_the_release_is_the_one_that_the_tests_run():
    assert version("verl") == RELEASE.verl
    assert release() is RELEASE


def test_it_stands_once_and_the_plug_in_reads_it_there():
    package = Path(releases.__file__).parents[1]
    named = re.compile(rf"^(?!\s*#).*['\"]{re.escape(RELEASE.verl)}['\"]", re.MULTILINE)
    files = [
        file for kind in ("py", "yml") for file in package.rglob(f"*.{kind}") if "trainer_config" not in file.parts
    ]
    assert [file.name for file in files if named.search(file.read_text("utf-8"))] == ["fields.py"]  # an example
    assert plugin.tested_verl() == RELEASE.verl


@pytest.mark.parametrize(
    ("asked", "image"),
    [
        ({}, "verlai/verl:vllm024.dev2"),
        ({"rollout": "sglang"}, "verlai/verl:sgl0512.dev4"),
        ({"vendor": "amd"}, "verlai/verl:rocm702-vllm020-te210-20260518"),
        ({"vendor": "amd", "rollout": "sglang"}, "amdagi/verl-dev:rocm7.14_torch2.12_release_0724"),
        ({"verl": "0.8.0"}, "verlai/verl:vllm020.dev1"),
        ({"verl": "0.7.1", "vendor": "amd"}, "rocm/verl:verl-0.7.1.amd0_rocm7.0.2_ubuntu22.04_py3.12_vllm0.20.2"),
    ],
)  # fmt: skip
def test_what_is_left_out_is_chosen(asked, image):
    assert release(**asked).image == image


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        ({"verl": "0.9.2"}, "verl 0.9.2 on GPUs of 'nvidia'"),
        ({"verl": "0.8.0", "vendor": "amd"}, "verl 0.8.0 on GPUs of 'amd'"),
        ({"vendor": "google"}, "verl 0.9.1 on GPUs of 'google'"),
        ({"verl": "0.7.1", "vendor": "amd", "rollout": "sglang"},
         "verl 0.7.1 with rollout engine 'sglang' on GPUs of 'amd'"),
    ],
)  # fmt: skip
def test_a_pair_without_an_image_is_refused_with_all_that_there_are(asked, what):
    with pytest.raises(SpecError) as caught:
        release(**asked)
    assert caught.value.message == f"no image is known for {what}"
    assert caught.value.hint.startswith("Known: verl 0.9.1 with vllm for nvidia, 0.9.1 with sglang for nvidia, ")
    assert caught.value.hint.endswith("; or name an image yourself: image=...")
