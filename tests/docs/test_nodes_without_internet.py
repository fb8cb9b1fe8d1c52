"""The image that users build for nodes without internet has what nodes with internet would install."""

from guide_pages import DOCS

from cloudrl.verl.releases import release


def test_the_image_is_that_of_the_release_with_what_it_installs() -> None:
    row = release(None, vendor="nvidia", rollout="vllm")
    page = (DOCS / "nodes-without-internet.md").read_text()
    assert f"From: {row.image}\n" in page
    assert f"docker://{row.image}\n" in page
    [install] = row.install
    assert f"    {install}\n" in page
    assert f"enroot start --rw verl {install}\n" in page
