"""Keys come and go, others stay."""

from dstack_hosts.standin.authorized_keys import add, remove, with_keys, without_keys

MINE, OTHER = "ssh-ed25519 AAA me@laptop", "ssh-rsa BBB fleet"


def test_a_key_goes_by_what_it_is_not_by_its_comment():
    assert without_keys(f"{OTHER}\n{MINE}\n", ["ssh-ed25519 AAA another comment"]) == f"{OTHER}\n"


def test_a_file_without_a_last_newline_is_whole_afterwards():
    assert with_keys(OTHER, [f"{MINE}\n"]) == f"{OTHER}\n{MINE}\n"


def test_removal_takes_all_copies_as_the_true_shim_does():
    assert without_keys(with_keys(f"{MINE}\n{OTHER}\n", [MINE]), [MINE]) == f"{OTHER}\n"


def test_in_a_file(tmp_path):
    path = tmp_path / "authorized_keys"
    path.write_text(f"{OTHER}\n")
    add(path, [MINE])
    assert path.read_text() == f"{OTHER}\n{MINE}\n"
    remove(path, [MINE])
    assert path.read_text() == f"{OTHER}\n"
