"""The script for sbatch: what Slurm and bash read in it."""

from __future__ import annotations

import difflib
import json
import os
import re
import shutil
import subprocess
from typing import Any

import pytest
from hostile import HOSTILE, lines, texts
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudrl.errors import SpecError
from cloudrl.protocol.options import AgentOptions
from cloudrl.providers.slurm.cluster import SlurmCluster
from cloudrl.providers.slurm.plan import make_plan
from cloudrl.providers.slurm.script import to_slurm
from cloudrl.spec import Cluster

FEW = max(20, settings().max_examples // 4)
"""Each example starts a shell."""
GPUS = {"nvidia": "H100:8", "amd": "MI300X:8"}
BACK_ENDS = ("bare", "docker", "podman", "apptainer", "pyxis")
VARIANTS = [(back_end, vendor) for back_end in BACK_ENDS for vendor in GPUS]
WHOLE = ("bare", "nvidia")
COMPARED_WITH = {
    **{(back_end, "nvidia"): WHOLE for back_end in BACK_ENDS},
    **{(back_end, "amd"): (back_end, "nvidia") for back_end in BACK_ENDS},
    ("podman", "nvidia"): ("docker", "nvidia"),
}
"""The golden file of a variant is its difference from this one, so that it shows what the variant changes."""
JOB = {
    "submission_id": "grpo__TASK__",
    "argv": [
        "python3",
        "-m",
        "verl.trainer.main_ppo",
        "trainer.nnodes=2",
        "trainer.default_local_dir=/ckpt/grpo__TASK__",
    ],
    "runtime_env": {"env_vars": {"HF_HUB_OFFLINE": "1"}},
    "metadata": {"job_name": "grpo__TASK__"},
}
START = "# ---- From here on"


def cluster(
    back_end: str = "bare", gpu: str | None = None, slurm: dict[str, Any] | None = None, **fields: Any
) -> Cluster:
    section = {"container": back_end, "volumes": ["/shared/ckpt:/checkpoints"], **(slurm or {})}
    return Cluster(**{"name": "two", "nodes": 2, "gpu": gpu, "slurm": section, **fields})


def variant(back_end: str, vendor: str) -> Cluster:
    """One with something in every place."""
    section: dict[str, Any] = {
        "partition": "gpu", "account": "rl-lab", "time": "24:00:00", "exclusive": True, "mail-type": ["END", "FAIL"],
        "comment": 'two words, "quoted"',
    }  # fmt: skip
    if back_end != "pyxis":
        section |= {
            "modules": ["rocm/7.0" if vendor == "amd" else "cuda/13.0"],
            "node_setup": ["ulimit -l unlimited || true"],
        }
    if back_end in ("docker", "podman"):
        section |= (
            {"dockerfile": "/shared/verl/Dockerfile"} if vendor == "amd" else {"container_options": ["--ipc=host"]}
        )
    return cluster(
        back_end, GPUS[vendor], section, data=["gsm8k"], models=["Qwen/Qwen2.5-0.5B-Instruct"], memory="512GB..",
        env={"NCCL_DEBUG": "WARN", "GREETING": "it's"}, secrets=["HF_TOKEN"], setup=["pip install -q 'math-verify'"],
    )  # fmt: skip


def rendered(back_end: str, vendor: str) -> str:
    return to_slurm(variant(back_end, vendor), JOB, agent=b"")


def evaluated(script: str, expression: str) -> list[str]:
    """What bash makes of the settings."""
    text = script.partition(START)[0] + f"\nprintf '%s\\0' {expression}\n"
    done = subprocess.run(["bash", "-c", text], capture_output=True, check=True, timeout=60)
    return done.stdout.decode().split("\0")[:-1]


def directives(script: str) -> dict[str, str | None]:
    """What sbatch reads: its own way with quotes and backslashes (22.05, src/common/slurm_opt.c: _get_argument)."""
    found: dict[str, str | None] = {}
    for line in script.splitlines():
        if line and not line.startswith("#"):
            break  # it reads no further
        if line.startswith("#SBATCH "):
            text, quote, escaped = "", "", False
            for character in line.removeprefix("#SBATCH "):
                if escaped or (character not in "\\\"'" and (quote or (character not in "# "))):
                    text, escaped = text + character, False
                elif character == "\\":
                    escaped = True
                elif quote:
                    text, quote = (text, "") if character == quote else (text + character, quote)
                elif character in "\"'":
                    quote = character
                else:
                    break
            name, equals, value = text.partition("=")
            found[name.removeprefix("--")] = value if equals else None
    return found


def test_rendered_bytes(golden, repository):
    golden(repository / "tests/golden/bare-nvidia.slurm.sh", rendered(*WHOLE))


@pytest.mark.parametrize(("back_end", "vendor"), [each for each in VARIANTS if each != WHOLE])
def test_rendered_bytes_of_a_variant(back_end, vendor, golden, repository):
    other = COMPARED_WITH[back_end, vendor]
    difference = difflib.unified_diff(
        rendered(*other).splitlines(keepends=True),
        rendered(back_end, vendor).splitlines(keepends=True),
        f"{'-'.join(other)}.slurm.sh",
        f"{back_end}-{vendor}.slurm.sh",
        n=1,
    )
    golden(repository / "tests/golden" / f"{back_end}-{vendor}.slurm.diff", "".join(difference))


@pytest.mark.parametrize(("back_end", "vendor"), [*VARIANTS, ("bare", None)])
def test_bash_and_shellcheck_have_nothing_to_say(back_end, vendor, tmp_path):
    script = tmp_path / "job.sh"
    script.write_text(to_slurm(variant(back_end, vendor) if vendor else cluster(), JOB if vendor else None))
    subprocess.run(["bash", "-n", str(script)], check=True, timeout=60)
    if (back_end, vendor) not in (
        WHOLE,
        ("docker", "amd"),
        ("podman", "nvidia"),
        ("apptainer", "nvidia"),
        ("pyxis", "nvidia"),
    ):
        return  # other settings than these and the same program, as the golden files show
    if not shutil.which("shellcheck"):
        pytest.skip("no shellcheck: apt-get install shellcheck")
    done = subprocess.run(["shellcheck", str(script)], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == ""


def test_portable_fields_become_options_of_sbatch():
    given_ = directives(to_slurm(cluster("docker", "H100:8", nodes=4, memory="64GB..1TB", cpu="x86:96..")))
    assert given_ == {
        "job-name": "two", "nodes": "4", "ntasks-per-node": "1", "gpus-per-node": "8", "cpus-per-task": "96",
        "mem": "65536M", "comment": "cloudrl:", "requeue": None, "open-mode": "append", "output": "%x-%j.log",
        "signal": "B:USR1@120",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("section", "absent"),
    [
        ({"gres": "gpu:mi300x:8"}, "gpus-per-node"),
        ({"exclusive": True}, "cpus-per-task"),
        ({"mem-per-cpu": "4G"}, "mem"),
        ({"requeue": False}, "requeue"),
    ],
)
def test_the_section_wins(section, absent):
    given_ = directives(to_slurm(cluster("docker", "MI300X:8", section, memory="64GB")))
    assert absent not in given_
    assert set(section) - {"requeue"} <= set(given_)


@pytest.mark.parametrize(
    ("section", "kept"),
    [
        ({}, ["SLURM_CPUS_PER_TASK", "SLURM_GPUS_PER_NODE"]),
        ({"exclusive": True, "gres": "gpu:8", "mem-per-cpu": "4G"}, []),
        ({"cpus-per-gpu": 8, "cpu-bind": "none"}, ["SLURM_CPUS_PER_GPU", "SLURM_CPU_BIND", "SLURM_GPUS_PER_NODE"]),
    ],
)
def test_srun_reads_no_variable_of_a_job_in_which_sbatch_was_typed(section, kept, monkeypatch):
    """Two variables for memory are an error of srun; one for CPUs or GPUs is a smaller step, or none at all."""
    for memory in ("CPU", "GPU", "NODE"):
        monkeypatch.setenv(f"SLURM_MEM_PER_{memory}", "1")
    for name in ("CPUS_PER_TASK", "CPUS_PER_GPU", "GPUS", "GPUS_PER_NODE", "CPU_BIND"):
        monkeypatch.setenv(f"SLURM_{name}", "1")
    script = to_slurm(cluster("docker", "H100:8", section), agent=b"")
    assert evaluated(script, '"${!SLURM_@}" end') == [*kept, "end"]


@settings(max_examples=FEW)
@given(st.dictionaries(st.sampled_from(["account", "constraint", "comment", "x-of-2099"]), lines, max_size=3))
def test_sbatch_reads_each_value_as_it_was_given(section):
    try:
        script = to_slurm(cluster(slurm=section))
    except SpecError:  # no printable line
        return
    assert section.items() <= directives(script).items()


@settings(max_examples=FEW)
@given(
    st.dictionaries(st.from_regex(r"A[A-Za-z0-9_]{0,5}", fullmatch=True), texts, max_size=3),
    st.lists(texts, max_size=2),
    st.sampled_from(["/a b", "/it's", "/$(x)", "/`x`", '/a"b', "/a,b", "/a#b"]),
)
def test_bash_reads_each_value_as_it_was_given(env, setup, folder):
    try:
        section = {"volumes": [f"{folder}:/checkpoints"], "run_dir": folder, "container_options": ["--x=" + folder]}
        declared = cluster("docker", "H100:8", section, env=env, setup=setup, image="a/b:c")
    except SpecError:
        return
    script = to_slurm(declared, agent=b"")
    words = evaluated(script, '"$RUN_DIR" "${VOLUMES[@]}" "${CONTAINER_OPTIONS[@]}" "${options[@]}"')
    assert words[:3] == [folder, f"{folder}:/checkpoints", "--x=" + folder]
    assert AgentOptions.from_argv(words[3:]).setup == declared.setup
    if env:
        assert evaluated(script, " ".join(f'"${each}"' for each in env)) == list(env.values())


@pytest.mark.parametrize("text", [each for each in HOSTILE if each.isprintable()])
def test_the_job_is_read_as_it_was_given(text):
    job = {**JOB, "argv": ["python3", text, "JOB\n", f"a\nJOB\n{text}"]}
    script = to_slurm(cluster(), job, agent=b"")
    function = script[script.index("write_job() {") :].partition("\n# cloudrl-node")[0]
    done = subprocess.run(["bash", "-c", f"{function}\nwrite_job"], capture_output=True, check=True, timeout=60)
    assert json.loads(done.stdout) == job


@pytest.mark.parametrize(
    ("section", "fields", "words"),
    [
        ({"nodes": 3}, {}, "cloudrl writes --nodes itself"),
        ({"hetjob": True}, {}, "slurm.hetjob: verl places training on whichever nodes have room first"),
        ({"gpus": 16}, {"gpu": "H100:8", "image": "a/b:c"}, "counts the GPUs of all nodes together"),
        ({"mail_type": "END"}, {}, "did you mean 'mail-type'"),
        ({"comment": "two\nlines"}, {}, "line break"),
        ({"dockerfile": "/x"}, {}, "bare builds no image"),
        ({"container": "docker", "image": "/x.sif"}, {"gpu": "H100:8"}, "docker runs no file"),
        ({"container": None, "image": "/x.sif"}, {}, "how do nodes run /x.sif"),
        ({"container_options": ["-v"]}, {}, "bare takes none"),
        ({"container": "pyxis", "modules": ["x"]}, {}, "in the container"),
        ({"tmp_dir": "/local/scratch-1"}, {}, "/local/scratch-1 has 16 bytes, and at most 15 leave room"),
        ({"container": None}, {"gpu": "H100:8"}, "how do nodes run an image"),
        ({"volumes": None}, {}, "one that all nodes share"),
        ({"container": "docker", "volumes": ["/elsewhere:/x"]}, {"image": "a/b:c"}, "is on none of the volumes"),
        ({"volumes": ["/shared:/checkpoints", "/a:/b"]}, {}, "nothing can be mounted"),
        ({"volumes": ["net:/checkpoints"]}, {}, "no network volumes"),
        (
            {"container": "apptainer", "volumes": ["/ckpt:/checkpoints", "/hf:/root/.cache/huggingface"]},
            {"image": "a/b:c"},
            "volume /hf:/root/.cache/huggingface: programs in apptainer run as you",
        ),
        (
            {"container": "docker", "volumes": ["/ckpt:/checkpoints", "/hf:/root"]},
            {"image": "a/b:c", "user": "1000:1000"},
            "volume /hf:/root: programs in docker run as user 1000:1000",
        ),
        ({}, {"gpu": "80GB..", "image": "a/b:c"}, "leaves their number open"),
        ({}, {"env": {"HF_TOKEN": "hf_abc"}}, "would stand in the file"),
    ],
)
def test_what_cannot_be_had_is_refused(section, fields, words):
    with pytest.raises(SpecError, match=words) as error:
        to_slurm(cluster(slurm=section, **fields))
    assert "hf_abc" not in str(error.value)


@pytest.mark.parametrize(
    ("section", "image", "asked"),
    [
        ({"tmp_dir": "/scratch"}, "a/b", "a/b"),
        ({}, "verlai/verl:vllm", "verlai/verl:vllm"),
        ({}, "nvcr.io/nvidia/pytorch:24.01", "nvcr.io#nvidia/pytorch:24.01"),
        ({}, "registry:5000/verl:1", "registry:5000#verl:1"),
        ({}, "ubuntu:24.04", "ubuntu:24.04"),
        ({"image": "/shared/my verl.sqsh"}, "verlai/verl:vllm", "/shared/my verl.sqsh"),
    ],
)
def test_pyxis_is_asked_for_an_image_as_enroot_spells_it(section, image, asked, tmp_path):
    volumes = [f"{tmp_path}/new:/checkpoints"]
    text = to_slurm(cluster("pyxis", "H100:8", {"volumes": volumes, **section}, image=image), agent=b"")
    settings_, _, functions = text.partition(START)
    prepare = functions[functions.index("prepare_image() {") : functions.index("prepare_node() {")]
    words = evaluated(f"{settings_}\nCLOUDRL_RUN_DIR=/run\n{prepare}\nprepare_image\n{START}", '"${STEP[@]}"')
    assert words[0] == f"--container-image={asked}"
    folder = section.get("tmp_dir", "/tmp")  # which enroot would make of memory
    assert words[-1] == f"--container-mounts=/run:/run,{volumes[0]},{folder}:{folder}"
    assert (tmp_path / "new").is_dir()


@pytest.mark.parametrize(
    ("holder", "others", "code", "image"),
    [
        (None, "", 0, "pulled"),
        ("11", "", 0, "pulled"),
        ("13", "", 0, "pulled"),
        ("12", 'echo theirs >"$CLOUDRL_IMAGE"; rm "$CLOUDRL_IMAGE.lock"', 0, "theirs"),
        ("12", 'rm "$CLOUDRL_IMAGE.lock"', 0, "pulled"),
        ("12", "SECONDS=99", 4, None),
        ("nobody", "SECONDS=99", 4, None),
        (None, "false", 4, None),
    ],
    ids=["free", "job over", "earlier start", "another pulls", "another fails", "for ever", "no room", "no image"],
)
def test_of_two_jobs_one_pulls_the_image_of_apptainer(holder, others, code, image, tmp_path):
    text = to_slurm(cluster("apptainer", "H100:8", {"run_dir": str(tmp_path), "join_timeout": "60s"}), agent=b"")
    images, lock = tmp_path / "images", tmp_path / "images/a_b_c.sif.lock"
    images.mkdir()
    if holder == "nobody":
        lock.touch()  # as good as no link at all
    elif holder:
        lock.symlink_to(holder)
        (images / f"a_b_c.sif.{holder}.part").write_text("half")
    stand_ins = f"""
        apptainer() {{ {others if others == "false" else 'echo pulled >"$4"'}; }}
        timeout() {{ "${{@:2}}"; }}
        is_over() {{ [ "$1" = 11 ]; }}
        sleep() {{ {others or "false"}; }}
        IMAGE=a/b:c
        prepare_image
        """
    text = text.rpartition("\nif [")[0] + stand_ins
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "SLURM_JOB_ID": "13"}
    done = subprocess.run(["bash", "-c", text], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    file = images / "a_b_c.sif"
    assert (file.read_text().strip() if file.exists() else None) == image
    assert os.path.lexists(lock) == (others == "SECONDS=99")  # that of a job that runs is left alone
    if code:
        assert "FAILED: no image a/b:c" in done.stdout
    elif holder != "12":
        assert [each.name for each in images.iterdir()] == ["a_b_c.sif"]


def test_a_module_may_bring_singularity_where_the_image_is_pulled(tmp_path):
    declared = cluster("apptainer", "H100:8", {"run_dir": str(tmp_path), "node_setup": ["load"]}, image="a/b:c")
    functions = """
        load() { singularity() { echo "$*" >$HOME/words; touch "$4"; }; }
        timeout() { "${@:2}"; }
        prepare_image
        """
    text = to_slurm(declared, agent=b"").rpartition("\nif [")[0] + functions
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "SLURM_JOB_ID": "13"}
    done = subprocess.run(["bash", "-c", text], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    part = f"{tmp_path}/images/a_b_c.sif.13.part"
    assert (tmp_path / "words").read_text() == f"pull --force --disable-cache {part} docker://a/b:c\n"


@pytest.mark.parametrize("back_end", ["docker", "podman", "apptainer", "pyxis"])
def test_models_are_kept_beside_the_checkpoints_unless_the_user_names_a_place(back_end, monkeypatch):
    monkeypatch.setenv("HF_HOME", "/home/me/hf")  # of the shell in which sbatch is typed
    monkeypatch.setenv("HF_HUB_CACHE", "/home/me/hub")
    asked = '"$HF_HOME" "${HF_HUB_CACHE-none}"'
    script = to_slurm(cluster(back_end, "H100:8", image="a/b:c"), agent=b"")
    assert evaluated(script, asked) == ["/checkpoints/.cloudrl/huggingface", "none"]
    named = to_slurm(cluster(back_end, "H100:8", image="a/b:c", env={"HF_HUB_CACHE": "/hub"}), agent=b"")
    assert evaluated(named, '"$HF_HUB_CACHE"') == ["/hub"]
    if back_end != "pyxis":  # which hands on all variables
        assert "HF_HOME" in evaluated(script, '"${VARIABLES[@]}"')


def test_without_a_container_the_shell_says_where_models_are_kept(monkeypatch):
    monkeypatch.setenv("HF_HOME", "/home/me/hf")
    assert evaluated(to_slurm(cluster(), agent=b""), '"$HF_HOME"') == ["/home/me/hf"]


def test_a_site_gives_containers_its_way_out_and_its_fast_network(monkeypatch):
    """The addresses of the nodes are no matter of the proxy; a token is a secret, which is named."""
    given_ = {
        "https_proxy": "http://proxy:3128", "NO_PROXY": "intranet", "HF_ENDPOINT": "https://mirror",
        "HF_TOKEN": "hf_abc", "NCCL_IB_HCA": "mlx5", "UCX_TLS": "rc", "PYTHONPATH": "/site",
    }  # fmt: skip
    for name in [name for name in os.environ if name.startswith(("NCCL_", "UCX_", "HF_", "FI_", "GLOO_"))]:
        monkeypatch.delenv(name)
    for name, value in given_.items():
        monkeypatch.setenv(name, value)
    text = to_slurm(cluster("docker", "H100:8", image="a/b:c"), agent=b"").rpartition("\nif [")[0]
    text += """
        address_of() { echo "10.0.0.${1#node}"; }
        keep_nodes_off_proxy node1 node2
        site_variables
        echo "$no_proxy"
        """
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, timeout=60, check=True)
    *names, direct = done.stdout.split()
    wanted = {"https_proxy", "no_proxy", "NO_PROXY", "HF_ENDPOINT", "HF_HOME", "NCCL_IB_HCA", "UCX_TLS"}
    assert set(names) == wanted
    assert direct == "intranet,localhost,127.0.0.1,node1,10.0.0.1,node2,10.0.0.2"


@pytest.mark.parametrize(
    ("back_end", "folder"), [("bare", "/local/scratch1"), ("docker", "/local/a long name"), ("pyxis", "/scratch")]
)
def test_a_node_keeps_its_files_in_a_folder_that_leaves_room_for_sockets(back_end, folder):
    script = to_slurm(cluster(back_end, "H100:8", {"tmp_dir": folder}, image="a/b:c"), agent=b"")
    assert evaluated(script, '"$TMP_DIR"') == [folder]


def test_an_image_file_is_run_as_it_is_and_tells_no_release():
    declared = cluster("apptainer", "H100:8", {"image": "/shared/verl.sif"})
    assert evaluated(to_slurm(declared, agent=b""), '"$IMAGE"') == ["/shared/verl.sif"]
    assert make_plan(declared).facts.verl_version is None


def test_no_variable_of_the_user_replaces_one_of_the_script():
    texts = [to_slurm(variant(*each), JOB, agent=b"").partition(START)[0] for each in VARIANTS]
    names = set(re.findall(r"^([A-Z_]+)=", "\n".join(texts), re.MULTILINE))
    assert {"RUN_DIR", "IMAGE", "STEP"} <= names
    for name in [*names, "UID"]:
        with pytest.raises(SpecError, match=f"^{name}: the job script has"):
            to_slurm(cluster(env={name: "x"}))
        with pytest.raises(SpecError, match=f"^{name}: the job script has"):
            to_slurm(cluster(secrets=[name]))


def test_without_a_container_checkpoints_lie_where_the_volume_does():
    section = {"volumes": ["/shared/me:/checkpoints"]}
    declared = {
        back_end: cluster(back_end, slurm=section, checkpoints="/checkpoints/a") for back_end in ("bare", "docker")
    }
    assert SlurmCluster.read(declared["bare"]).checkpoint_folder == "/shared/me/a"
    assert SlurmCluster.read(declared["docker"]).checkpoint_folder == "/checkpoints/a"
