"""What fails before the barrier: said on every rank with its cause, and not retried for ever."""

import json
import shutil
import socket

import pytest
from node_harness import IP, Maker, Scenarios, make_image, until
from quiet_ports import free_ports

pytestmark = pytest.mark.agents

scenario = Scenarios()


@scenario
def a_set_up_command_that_fails_on_one_rank(nodes: Maker) -> None:
    command = "seq 3; echo about to fail on rank $CLOUDRL_NODE_RANK; test $CLOUDRL_NODE_RANK = 0 || exit 3"
    cluster = nodes(2).start(f"--setup={command}")
    assert cluster.failed() == f"rank 1, setup: `{command}` exited with 3"
    for node in cluster.started.values():
        assert "the last lines of its log:\n1\n2\n3\nabout to fail on rank 1\n" in node.text()
        failure = node.failure()
        assert (failure.kind, failure.rank, failure.permanent) == ("setup", 1, True)


@scenario
def a_preflight_failure_is_final_at_its_second_time(nodes: Maker) -> None:
    """On dstack a run that fails at once is resubmitted for ever, and each time the user pays."""
    cluster = nodes(2)
    run = cluster.run_id
    for run_id, code in ((run, 1), (run, 0), (f"{run}-2", 1)):
        cluster.run_id = run_id
        cluster.start_one(0)
        cluster.start_one(1, "--cpus-per-node=2")
        reason = "rank 1, preflight: 2 CPUs for 1 GPUs; verl waits forever with fewer than 3, 3 per GPU"
        assert cluster.failed(code) == reason
        for node in cluster.started.values():
            assert node.text().count(f"\nCLOUDRL FAILED: {reason}\n") == (code == 0)


@scenario
def the_second_time_is_final_on_other_machines_too(nodes: Maker) -> None:
    """Of three hosts with disks of their own the first attempt had a and b; the second has c as its head, and b."""
    cluster = nodes(2)
    for hosts, code in (("ab", 1), ("cb", 0)):
        for rank, host in enumerate(hosts):
            cluster.start_one(rank, "--gpus-per-node=9", f"--checkpoints={cluster.folder / host}")
        cluster.failed(code)


@scenario
def checkpoints_that_cannot_be_written_leave_no_memory_so_it_is_final_at_once(nodes: Maker) -> None:
    cluster = nodes(1)
    (cluster.folder / "file").touch()
    folder = cluster.folder / "file" / "checkpoints"
    reason = f"rank 0, preflight: the checkpoint folder {folder} cannot be written by"
    assert cluster.start(f"--checkpoints={folder}").failed(0).startswith(reason)


@scenario
def a_data_set_that_does_not_exist(nodes: Maker) -> None:
    said = "rank 0, data: data adition: there is no data set 'adition'; did you mean 'addition'?"
    assert nodes(2).start("--data=adition").failed().startswith(said)


@scenario
def a_model_that_is_missing_on_one_rank(nodes: Maker) -> None:
    cluster = nodes(2)
    model, missing = cluster.folder / "model", cluster.folder / "modle"
    model.mkdir()
    (model / "config.json").touch()
    cluster.start_one(0, f"--model={model}")
    cluster.start_one(1, f"--model={missing}", HF_HOME=str(cluster.folder / "own"))
    said = f"FileNotFoundError: {missing} has no config.json, so it is not a Hugging Face model folder"
    assert cluster.failed() == f"rank 1, model: model {missing}: {said}"


@scenario
def versions_that_differ(nodes: Maker) -> None:
    cluster = nodes(2)
    other = make_image(cluster.folder / "other")
    other.have("ray", "2.52.0")
    cluster.start_one(0)
    cluster.start_one(1, image=other)
    reason = "rank 1, preflight: Ray 2.52.0 here and 2.60.0 on rank 0; all nodes need the same"
    assert cluster.failed() == reason


@scenario
def an_image_without_ray(nodes: Maker) -> None:
    cluster = nodes(1)
    bare = make_image(cluster.folder / "bare")
    [ray] = bare.packages.glob("ray-*")
    shutil.rmtree(ray)
    cluster.start_one(0, image=bare)
    assert "no Ray in this Python; add a set-up command `pip install 'ray[default]'`" in cluster.failed()


@scenario
def an_image_that_is_broken_says_the_remedy(nodes: Maker) -> None:
    cluster = nodes(1)
    cluster.image.module(
        "clash", "raise ImportError('mkl-service: MKL_THREADING_LAYER=INTEL is incompatible with libgomp')"
    )
    reason = cluster.start("--import-check=json,clash").failed()
    assert reason.startswith("rank 0, preflight: the image is broken: import clash: ImportError: mkl-service")
    assert "-> numpy's MKL clashes with libgomp: add the set-up command `pip install -U numpy`" in reason
    assert cluster[0].failure().signature == "preflight|json, clash|MKL_THREADING_LAYER"


@scenario
def an_import_that_ends_the_process_says_nothing_of_an_earlier_attempt(nodes: Maker) -> None:
    cluster = nodes(1)
    cluster.image.module("crash", "import os; print('libcrash: illegal hardware', flush=True); os._exit(6)")
    result = cluster.folder / "node-0" / "imports.json"
    result.parent.mkdir(parents=True)
    result.write_text(json.dumps({"path": "."}))
    reason = cluster.start("--import-check=crash").failed()
    assert reason == "rank 0, preflight: the image is broken: libcrash: illegal hardware"


@scenario
def another_key_on_a_worker_and_a_rank_that_never_comes(nodes: Maker) -> None:
    cluster = nodes(3)
    (cluster.folder / "another-key").write_bytes(b"of another run")
    cluster.start_one(0, "--join-timeout-s=2")
    cluster.start_one(1, f"--key-file={cluster.folder / 'another-key'}")
    assert cluster.exit_codes() == [1, 1]
    assert "rank 1, join: rank 0 refused this node: wrong or missing token" in cluster[1].reason()
    late = "rank 0, join: ranks 1-2 did not join within 2 s"
    here = f"{IP}:{cluster.agent_ports[0]}"
    why = f"not started, started with another key, or {here} cannot be reached from there"
    assert cluster[0].reason() == f"{late}: {why}"


@scenario
def a_rank_that_does_not_belong_ends_the_start_of_all(nodes: Maker) -> None:
    """Before, rank 0 refused it and waited for the others, and each of the two judged by itself."""
    cluster = nodes(3)
    (cluster.control / "hold-1").touch()
    for rank in (0, 1):
        cluster.start_one(rank, CLOUDRL_NODES_NUM="2")
    cluster.start_one(2)
    reason = "rank 2, preflight: rank 2 does not belong to this cluster of 2 nodes; start all nodes with the same"
    assert cluster.failed() == f"{reason} number of nodes"


@scenario
def a_head_that_never_answers(nodes: Maker) -> None:
    cluster = nodes(2)
    cluster.start_one(1, "--join-timeout-s=0.5")
    until(lambda: cluster[1].phase() == "failed", "it gives up")
    cluster[1].process.terminate()  # it would wait for the head's verdict
    assert cluster.failed() == f"rank 1, join: rank 0 does not answer at {IP}:{cluster.agent_ports[0]}"


@scenario
def a_control_store_behind_a_firewall(nodes: Maker) -> None:
    """The agent of rank 0 answers, its Ray does not come up."""
    cluster = nodes(2)
    (cluster.control / "hold-0").touch()
    cluster.start_one(0)
    until(lambda: cluster[0].phase() == "ray", "rank 0 waits for its Ray")
    cluster.start_one(1, "--ray-timeout-s=1", "--lost-after-s=6")
    closed = f"rank 1, join: {IP}:{cluster.gcs_port} (Ray's control store) cannot be reached"
    assert cluster.failed().startswith(f"{closed}, though {cluster.agent_ports[0]} answers")


@scenario
def nodes_that_ray_does_not_count(nodes: Maker) -> None:
    """Control store and agents answer, and Ray says of no port between raylets that it cannot reach it."""
    cluster, [port] = nodes(2), free_ports(1)
    (cluster.control / "alone").touch()
    cluster.start("--ray-timeout-s=10", f"--object-manager-port={port}")
    closed = f"{IP}:{port} (Ray's object manager)"
    ports = f"{closed} from rank 1, {closed} from rank 0 cannot be reached; is a firewall between the nodes?"
    assert cluster.failed() == f"rank 0, ray: Ray does not count all nodes as alive after 10 s: {ports}"


@scenario
def a_port_that_ray_can_do_without_today_is_a_warning(nodes: Maker) -> None:
    [port] = free_ports(1)
    cluster = nodes(2).start(f"--node-manager-port={port}").ready()
    warning = f"warning: {IP}:{port} (Ray's node manager) on rank 0 cannot be reached from here"
    assert warning in cluster[1].text()


@scenario
def the_port_of_the_agent_is_in_use(nodes: Maker) -> None:
    cluster = nodes(1)
    [port] = cluster.agent_ports
    with socket.create_server((IP, port)):
        reason = cluster.start().failed()
    assert reason == f"rank 0, preflight: port {port} of the agent is in use: Address already in use"


@scenario
def the_address_of_the_node_is_another_machines(nodes: Maker) -> None:
    cluster = nodes(1)
    cluster.start_one(0, CLOUDRL_NODE_IP="192.0.2.1")  # RFC 5737: nobody's
    reason = "rank 0, preflight: no interface of this node has 192.0.2.1, where its agent should listen -> "
    assert cluster.failed().startswith(reason)


@scenario
def a_port_of_ray_is_in_use(nodes: Maker) -> None:
    """Ray itself needs 40 seconds for each try, and then says that it "timed out during startup"."""
    cluster = nodes(1)
    port = cluster.dashboard_port
    with socket.create_server(("127.0.0.1", port)):
        reason = cluster.start().failed()
    assert reason == f"rank 0, ray: ports are in use on this node: {port} (Ray's dashboard)"
    assert not (cluster.control / "starts-0").exists()


@scenario
def the_status_says_why_while_the_ranks_agree(nodes: Maker) -> None:
    cluster = nodes(2)
    cluster.start_one(1, "--setup=exit 7")  # no rank 0 yet that could give the verdict
    until(lambda: cluster[1].phase() == "failed", "its failure")
    failure = cluster[1].status()["failure"]
    assert (failure["kind"], failure["rank"], failure["reason"]) == ("setup", 1, "`exit 7` exited with 7")
    cluster.start_one(0)
    assert cluster.failed() == "rank 1, setup: `exit 7` exited with 7"


test_scenario = scenario.test()
