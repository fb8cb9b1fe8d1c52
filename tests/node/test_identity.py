"""Which node this is, from the variables of each provider."""

import pytest

from cloudrl.errors import InputError
from cloudrl.node.identity import Identity, address_towards, read_identity

DSTACK = {
    "DSTACK_RUN_NAME": "ray-cluster",
    "DSTACK_RUN_ID": "5d1f4c2e",
    "DSTACK_NODE_RANK": "1",
    "DSTACK_NODES_NUM": "2",
    "DSTACK_MASTER_NODE_IP": "127.0.0.1",
    "DSTACK_GPUS_PER_NODE": "8",
    "DSTACK_GPUS_NUM": "16",
}
SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_NAME": "train",
    "SLURM_NODEID": "0",
    "SLURM_JOB_NUM_NODES": "4",
    "SLURM_GPUS_ON_NODE": "4",
    "CLOUDRL_HEAD_IP": "10.0.0.1",
}


def test_dstack() -> None:
    assert read_identity(DSTACK) == Identity(
        provider="dstack", name="ray-cluster", run_id="5d1f4c2e", rank=1, nodes=2,
        head_ip="127.0.0.1", ip="127.0.0.1", gpus_per_node=8,
    )  # fmt: skip


def test_slurm() -> None:
    assert read_identity(SLURM) == Identity(
        provider="slurm", name="train", run_id="4711", rank=0, nodes=4,
        head_ip="10.0.0.1", ip="10.0.0.1", gpus_per_node=4,
    )  # fmt: skip


def test_own_variables_win_over_those_of_a_provider() -> None:
    own = {
        "CLOUDRL_PROVIDER": "local", "CLOUDRL_CLUSTER": "mine", "CLOUDRL_RUN_ID": "abc", "CLOUDRL_NODE_RANK": "2",
        "CLOUDRL_NODES_NUM": "3", "CLOUDRL_HEAD_IP": "10.1.1.1", "CLOUDRL_NODE_IP": "10.1.1.3",
        "CLOUDRL_GPUS_PER_NODE": "1",
    }  # fmt: skip
    wanted = Identity("local", "mine", "abc", 2, 3, "10.1.1.1", "10.1.1.3", 1)
    assert read_identity({**DSTACK, **SLURM, **own}) == wanted


def test_one_node_needs_no_variable() -> None:
    alone = read_identity({})
    assert (alone.provider, alone.name, alone.rank, alone.nodes) == ("local", "ray-cluster", 0, 1)
    assert alone.ip == alone.head_ip
    assert alone.gpus_per_node is None
    assert alone.is_head


def test_an_empty_variable_counts_as_none() -> None:
    assert read_identity({**DSTACK, "CLOUDRL_NODE_RANK": ""}).rank == 1


@pytest.mark.parametrize(("rank", "nodes"), [("2", "2"), ("-1", "2"), ("0", "0"), ("0", "-3"), ("1", "1")])
def test_a_rank_outside_the_cluster(rank: str, nodes: str) -> None:
    with pytest.raises(InputError, match=f"rank {rank} does not fit a cluster of {nodes} nodes"):
        read_identity({**DSTACK, "DSTACK_NODE_RANK": rank, "DSTACK_NODES_NUM": nodes})


@pytest.mark.parametrize("text", ["one", "1.0", "0x1", "1 2", "½"])
@pytest.mark.parametrize("name", ["DSTACK_NODE_RANK", "DSTACK_NODES_NUM", "DSTACK_GPUS_PER_NODE"])
def test_what_is_no_number_is_quoted(name: str, text: str) -> None:
    with pytest.raises(InputError, match="should be a number and is") as caught:
        read_identity({**DSTACK, name: text})
    assert name in caught.value.message
    assert repr(text) in caught.value.message


def test_one_node_on_bridge_networking_has_not_the_address_of_its_host() -> None:
    """dstack names the host's; 192.0.2.0/24 is on nobody's interface (RFC 5737)."""
    alone = {**DSTACK, "DSTACK_NODE_RANK": "0", "DSTACK_NODES_NUM": "1", "DSTACK_MASTER_NODE_IP": "192.0.2.7"}
    found = read_identity(alone)
    assert found.ip == found.head_ip == address_towards("192.0.2.1")


def test_several_nodes_without_a_head() -> None:
    without = {key: value for key, value in SLURM.items() if key != "CLOUDRL_HEAD_IP"}
    with pytest.raises(InputError, match="4 nodes, and no address of rank 0") as caught:
        read_identity(without)
    assert "CLOUDRL_HEAD_IP" in str(caught.value.hint)


def test_address_towards() -> None:
    assert address_towards("127.0.0.1") == "127.0.0.1"
    assert address_towards("no address at all") == "127.0.0.1"
