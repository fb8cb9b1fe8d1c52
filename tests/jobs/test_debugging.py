"""What `submit --debug` gives to a job, and what it refuses."""

from dataclasses import replace
from pathlib import Path

import pytest
from planning import PLAIN, cluster, job, plan

from cloudrl.errors import InputError
from cloudrl.jobs import SubmitOptions
from cloudrl.jobs.debugging import debugger_of, set_debugger
from cloudrl.jobs.draft import JobDraft, Snapshot
from cloudrl.jobs.local_files import LocalFiles

BOTH = (("debugpy", "pdb"),) * 2
READY = cluster(debuggers=BOTH)


def variables(options: SubmitOptions) -> dict[str, str]:
    return dict(plan(job(), READY, options).runtime_env["env_vars"])


def test_without_it_nothing_is_set():
    assert not [name for name in variables(SubmitOptions(env={"A": "b"})) if "DEBUG" in name or name == "PYTHONPATH"]


def test_what_a_job_with_debugpy_gets():
    found = variables(SubmitOptions(debug="debugpy", submission_id="mine", env={"A": "b"}))
    assert found == {
        "HF_HUB_OFFLINE": "1",
        "A": "b",
        "RAY_DEBUG": "0",
        "RAY_DEDUP_LOGS": "0",
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        "CLOUDRL_DEBUGGER": "debugpy",
        "CLOUDRL_DEBUGGER_JOB": "mine",
        "PYTHONPATH": "${CLOUDRL_DEBUGGER_PYTHONPATH}",
    }


def test_a_post_mortem_is_debugpys_unless_it_is_said():
    found = variables(SubmitOptions(post_mortem=True))
    assert (found["CLOUDRL_DEBUGGER"], found["CLOUDRL_DEBUGGER_POST_MORTEM"]) == ("debugpy", "1")
    assert found["PYDEVD_USE_SYS_MONITORING"] == "0"
    assert variables(SubmitOptions(post_mortem=True, debug="pdb"))["CLOUDRL_DEBUGGER"] == "pdb"


def test_what_the_user_sets_stays_but_for_rays_own_debuggers():
    found = variables(
        SubmitOptions(debug="debugpy", env={"PYTHONPATH": "/mine", "RAY_DEDUP_LOGS": "1", "RAY_DEBUG": "1"})
    )
    assert found["PYTHONPATH"] == "${CLOUDRL_DEBUGGER_DIR}:/mine"
    assert (found["RAY_DEDUP_LOGS"], found["RAY_DEBUG"]) == ("1", "0")


def test_the_dry_run_shows_it():
    shown = plan(job(), READY, SubmitOptions(debug="debugpy")).render()
    assert "CLOUDRL_DEBUGGER: debugpy" in shown
    assert "PYTHONPATH: ${CLOUDRL_DEBUGGER_PYTHONPATH}" in shown


@pytest.mark.parametrize(
    ("debuggers", "who"), [((("debugpy", "pdb"), ("pdb",)), "node 1"), ((("pdb",), ("pdb",)), "nodes 0-1")]
)
def test_a_node_without_debugpy(debuggers: tuple[tuple[str, ...], ...], who: str):
    with pytest.raises(InputError, match=f"^{who} of cluster 'lab': no debugpy") as refused:
        plan(job(), cluster(debuggers=debuggers), SubmitOptions(debug="debugpy"))
    assert "when you start it: --setup 'pip install debugpy==1.8.22'" in str(refused.value.hint)


@pytest.mark.parametrize("debugger", ["debugpy", "pdb"])
def test_an_agent_that_knows_no_debuggers(debugger: str):
    with pytest.raises(
        InputError, match=r"^node 1 of cluster 'lab': an agent of a release without debuggers"
    ) as refused:
        plan(job(), cluster(debuggers=(("debugpy", "pdb"), ())), SubmitOptions(debug=debugger))
    assert "Then, with its options: cloudrl up lab" in str(refused.value.hint)


@pytest.mark.parametrize("name", ["sitecustomize.py", "sitecustomize/__init__.py"])
def test_a_working_directory_that_hides_the_hook(tmp_path: Path, name: str):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("")
    assert plan(job(), READY, SubmitOptions(working_dir=str(tmp_path)))
    debugged = SubmitOptions(working_dir=str(tmp_path), debug="debugpy")
    with pytest.raises(InputError, match=f"^{name} in the working directory") as refused:
        plan(job(), READY, debugged)
    assert f"/{name} as a line of .rayignore" in str(refused.value.hint)
    (tmp_path / ".rayignore").write_text(f"/{name}\n")
    assert plan(job(), READY, debugged)


def test_pdb_needs_no_package():
    assert plan(job(), cluster(debuggers=(("pdb",),)), SubmitOptions(debug="pdb"))


def test_a_plain_ray_cluster_has_nobody_who_leads_there():
    with pytest.raises(InputError, match="plain Ray cluster"):
        plan(job(), cluster(**PLAIN), SubmitOptions(debug="debugpy"))


def test_a_cluster_to_come_is_told_of():
    draft = JobDraft(job(), SubmitOptions(debug="debugpy"), replace(READY, debuggers=()), overrides={})
    snapshot = Snapshot(draft.cluster, LocalFiles(Path("/nowhere")), is_expected=True)
    assert any("--setup 'pip install debugpy" in note for note in set_debugger(draft, snapshot).notes)


def test_another_debugger():
    with pytest.raises(InputError, match="debug='gdb' is not a debugger"):
        debugger_of(SubmitOptions(debug="gdb"))
