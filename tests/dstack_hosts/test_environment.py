"""What a job finds in its environment."""

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstack_hosts.standin.environment import Cluster, hostfile, job_environment, profile


def submission(**changes):
    return {
        "run": {"id": "r1", "run_spec": {"run_name": "ray-cluster", "repo_id": None}},
        "job_submission": {"id": "j1"},
        "job_spec": {"job_num": 1, "jobs_per_replica": 2, "env": {}},
        "cluster_info": {"job_ips": ["10.0.0.1", "10.0.0.2"], "master_job_ip": "10.0.0.1", "gpus_per_job": 8},
        "secrets": {},
        **changes,
    }


def test_the_variables_of_a_node():
    variables = job_environment({"PATH": "/bin"}, submission(), "/work")
    assert variables == {
        "PATH": "/bin",
        "DSTACK_RUN_ID": "r1",
        "DSTACK_JOB_ID": "j1",
        "DSTACK_RUN_NAME": "ray-cluster",
        "DSTACK_REPO_ID": "",
        "DSTACK_REPO_DIR": "",
        "DSTACK_WORKING_DIR": "/work",
        "DSTACK_NODES_IPS": "10.0.0.1\n10.0.0.2",
        "DSTACK_MASTER_NODE_IP": "10.0.0.1",
        "DSTACK_NODE_RANK": "1",
        "DSTACK_NODES_NUM": "2",
        "DSTACK_GPUS_PER_NODE": "8",
        "DSTACK_GPUS_NUM": "16",
        "DSTACK_MPI_HOSTFILE": "/dstack/mpi/hostfile",
    }


def test_the_task_wins_over_secrets_over_dstack_over_the_image():
    spec = {"job_num": 0, "jobs_per_replica": 1, "env": {"A": "task"}}
    one = submission(job_spec=spec, secrets={"A": "secret", "DSTACK_RUN_ID": "secret", "B": "secret"})
    variables = job_environment({"B": "image", "C": "image"}, one, "/")
    assert [variables[key] for key in ("A", "B", "C", "DSTACK_RUN_ID")] == [
        "task",
        "secret",
        "image",
        "secret",
    ]


def test_placeholders_go_on_as_they_are():
    spec = {"job_num": 0, "jobs_per_replica": 1, "env": {"A": "${HOME} ${{ run.name }} $$"}}
    assert job_environment({}, submission(job_spec=spec), "/")["A"] == "${HOME} ${{ run.name }} $$"


def test_exported_functions_of_bash_are_dropped():
    base = {"BASH_FUNC_f%%": "() {", "BASH_FUNC_g()": "() {", "BASH_FUNC_h": "kept"}
    assert [key for key in job_environment(base, submission(), "/") if key.startswith("BASH")] == [
        "BASH_FUNC_h"
    ]


@pytest.mark.parametrize(
    ("gpus", "text"), [([8, 4], "a slots=8\nb slots=4\n"), ([0, 0], "a\nb\n")], ids=["gpus", "cpus"]
)
def test_hostfile(gpus, text):
    assert hostfile(Cluster(["a", "b"], "a", 8, gpus)) == text


def test_hostfile_is_empty_while_an_address_is_missing():
    assert hostfile(Cluster(["a", ""], "a", 8, [8, 8])) == ""


@given(st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=40))
def test_a_login_shell_gets_the_same_value(value):
    script = profile({"VALUE": value, "HOME": "/nowhere", "not-a-name": "x", "DSTACK_WORKING_DIR": "/"})
    done = subprocess.run(
        ["sh", "-c", script + 'printf %s "$VALUE"'],
        capture_output=True,
        env={"PATH": "/usr/bin:/bin"},
        timeout=10,
    )
    assert (done.stdout, done.stderr) == (value.encode(), b"")
