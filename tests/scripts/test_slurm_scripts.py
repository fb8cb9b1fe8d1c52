"""Scripts for Slurm: their GPUs by name, their containers, and a cluster that `slurm script` takes as it is."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from taken_over import TakeOver
from typed_command import Run

from cloudrl.scripts.containers import Container, read_container
from cloudrl.scripts.imported import Imported
from cloudrl.scripts.lines import Fate
from cloudrl.scripts.sandbox import Call
from cloudrl.scripts.sbatch import read_sbatch, read_srun
from cloudrl.spec import Cluster
from cloudrl.verl.memory.cards import gpu_of_label

MAIN = "python3 -m verl.trainer.main_ppo"


@pytest.mark.parametrize(
    ("label", "gpu"),
    [
        ("h100", "H100"), ("gpu_a100", "A100"), ("nvidia_h100_80gb_hbm3", "H100:80GB"), ("a100_80g", "A100:80GB"),
        ("A100-SXM4-40GB", "A100:40GB"), ("mi300x", "MI300X"), ("mi300a", "MI300A"), ("rtx_4090", "RTX4090"),
        ("tesla_v100", "V100"), ("l40s", "L40S"), ("ampere", None), ("1g.10gb", None), ("a100_3g.20gb", None),
        ("ib", None), ("haswell", None), ("", None),
    ],
)  # fmt: skip
def test_the_gpu_that_a_label_means(label: str, gpu: str | None) -> None:
    assert gpu_of_label(label) == gpu


@pytest.mark.parametrize(
    ("lines", "gpu", "section"),
    [
        (["--gres=gpu:8", "--constraint=h100"], "H100:8", {"constraint": "h100"}),
        (["--gres=gpu:8", "-C a100|h100"], "A100,H100:8", {"constraint": "a100|h100"}),
        (["--gres=gpu:8", "-C [a100|h100]"], "A100,H100:8", {"constraint": "[a100|h100]"}),
        (["--gres=gpu:8", "-C a100&80gb&ib"], "A100:80GB:8", {"constraint": "a100&80gb&ib"}),
        (["--gres=gpu:8", "-C gpu80&a100"], "A100:80GB:8", {"constraint": "gpu80&a100"}),
        (["--gres=gpu:8", "-C a100_80gb|a100_40gb"], "A100:8", {"constraint": "a100_80gb|a100_40gb"}),
        (["--gres=gpu:8", "-C skylake"], "8", {"constraint": "skylake"}),
        (["--gres=gpu:a100:4", "-C h100"], "A100:4", {"gres": "gpu:a100:4", "constraint": "h100"}),
        (["--gres=gpu:nvidia_h100_80gb_hbm3:8"], "H100:80GB:8", {"gres": "gpu:nvidia_h100_80gb_hbm3:8"}),
        (["--gres=gpu:ampere:8"], "8", {"gres": "gpu:ampere:8"}),
        (["--gpus-per-node=h100:8"], "H100:8", {"gres": "gpu:h100:8"}),
        (["-G h100:16", "-N 2"], "H100:8", {"gres": "gpu:h100:8"}),
        (["--gres=lscratch:100,gpu:8"], "8", {"gres": "lscratch:100,gpu:8"}),
    ],
)  # fmt: skip
def test_gpus_are_named_and_sbatch_gets_its_own_words(lines: list[str], gpu: str, section: dict[str, str]) -> None:
    slurm = read_sbatch("".join(f"#SBATCH {line}\n" for line in lines))
    assert (slurm.cluster["gpu"], slurm.cluster["slurm"]) == (gpu, section)
    Cluster.load({"name": "ab", **slurm.cluster})


def call(text: str) -> Call:
    name, *words = text.split()
    return Call(name, tuple(words))


@pytest.mark.parametrize(
    ("text", "container"),
    [
        ("srun --container-image=verlai/verl:x python3", Container("pyxis", "verlai/verl:x")),
        ("srun --container-image docker://nvcr.io#nvidia/verl:1 a", Container("pyxis", "nvcr.io/nvidia/verl:1")),
        ("srun --container-image=me@r.io#verl:1 a", Container("pyxis", "r.io/verl:1")),
        (
            "srun --container-image=/x/verl.sqsh --container-mounts=/d:/d,/c:/k:rw,/e a",
            Container("pyxis", None, "/x/verl.sqsh", ("/d:/d", "/c:/k", "/e:/e")),
        ),
        ("srun -N2 python3", None),
        (
            "docker run -d --rm --gpus all -e A=1 -v /d:/d --name c verlai/verl:x sleep 9",
            Container("docker", "verlai/verl:x", None, ("/d:/d",)),
        ),
        ("podman run -it --shm-size=10g -p8000:80 img:1 a", Container("podman", "img:1", None, (), "10GB")),
        (
            "docker run --mount type=bind,source=/a,target=/b img",
            Container("docker", "img", None, ("/a:/b",)),
        ),
        ("docker exec c python3", None),
        ("apptainer exec --nv --bind /d:/d /x/v.sif a", Container("apptainer", None, "/x/v.sif", ("/d:/d",))),
        ("singularity run docker://verlai/verl:x a", Container("apptainer", "verlai/verl:x")),
    ],
)
def test_the_container_of_a_call(text: str, container: Container | None) -> None:
    assert read_container(call(text)) == container


PYXIS = f"""#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gpus-per-node=h100:8
module purge
module load cuda/12.4
srun --container-image=verlai/verl:vllm012 --container-mounts=/data:/data,/ckpt/me:/ckpt {MAIN} \\
    a.x=1 trainer.default_local_dir=/ckpt/run
"""


@pytest.mark.io
def test_a_container_of_srun_is_the_clusters(take_over: TakeOver) -> None:
    imported = take_over(PYXIS)
    assert (imported.cluster["image"], imported.cluster["checkpoints"]) == ("verlai/verl:vllm012", "/ckpt")
    assert imported.cluster["slurm"] == {
        "gres": "gpu:h100:8", "container": "pyxis",
        "volumes": ["/data:/data", "/ckpt/me:/ckpt"],
    }  # fmt: skip
    assert imported.problems == ()


@pytest.mark.io
def test_options_of_sbatch_for_pyxis_are_no_options_of_the_script(take_over: TakeOver) -> None:
    """With them the whole script would run in the container, and cloudrl starts its own."""
    imported = take_over(
        "#SBATCH --nodes=2\n#SBATCH --gres=gpu:8\n#SBATCH --container-image=/x/verl.sqsh\n"
        f"#SBATCH --container-mounts=/ckpt:/checkpoints\n#SBATCH --container-workdir=/x\n{MAIN} a.x=1\n"
    )
    assert imported.cluster["slurm"] == {
        "container": "pyxis", "image": "/x/verl.sqsh", "volumes": ["/ckpt:/checkpoints"],
    }  # fmt: skip
    assert {line.number: line.fate for line in imported.lines if line.number in (3, 4, 5)} == {
        3: Fate.TAKEN, 4: Fate.TAKEN, 5: Fate.DROPPED,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ("-N2 --gpus-per-node=h100:8 -p gpu -t 1-0 --pty bash x.sh",
         {"nodes": 2, "gpu": "H100:8", "slurm": {"gres": "gpu:h100:8", "partition": "gpu", "time": "1-0"}}),
        ("--nodes 2 --ntasks 2 --gres gpu:8 --time=4:00 python3 -m x",
         {"nodes": 2, "gpu": "8", "slurm": {"time": "4:00"}}),
        ("-p debug --exclusive -l python3", {"slurm": {"partition": "debug"}}),
        ("-N 2 --mpi pmix --container-image x.sqsh --cpu-bind none --gres gpu:8 python3", {"nodes": 2, "gpu": "8"}),
        ("-N 1 -r 1 python3", {}),
        ("--overlap -N1 -w node-0 python3", {}),
        ("-w node-0 docker exec c python3", {}),
        ("python3 -N 2", {}),
        ("-N", {}),
        ("", {}),
    ],
)  # fmt: skip
def test_what_srun_asks_for_itself(words: str, fields: dict[str, object]) -> None:
    slurm = read_srun(words.split(), 3)
    assert dict(slurm.cluster) == fields
    assert {line.number for line in slurm.lines} <= {3}


@pytest.mark.io
def test_a_srun_without_a_batch_script_gives_the_cluster(take_over: TakeOver) -> None:
    imported = take_over(f"export A=1\nsrun -N 2 --gres=gpu:8 -p gpu --time=2:00:00 {MAIN} trainer.nnodes=2 a.x=1\n")
    assert (imported.cluster["nodes"], imported.cluster["gpu"]) == (2, "8")
    assert imported.cluster["slurm"] == {"partition": "gpu", "time": "2:00:00", "container": "bare"}
    taken = {line.text: line.why for line in imported.lines if line.number == 2 and line.fate is Fate.TAKEN}
    assert taken["srun --partition=gpu"] == "slurm.partition of the cluster"
    inside = take_over(f"#SBATCH -N 4\n#SBATCH --gres=gpu:8\nsrun -N 1 -p other {MAIN} a.x=1\n")
    assert inside.cluster["nodes"] == 4
    assert "partition" not in inside.cluster["slurm"]


def test_a_hash_within_a_word_is_a_comment_for_sbatch() -> None:
    [_, wrong] = read_sbatch("#SBATCH --container-image=nvcr.io#nvidia/verl:1\n").lines
    assert (wrong.fate, wrong.why.rpartition("write ")[2]) == (
        Fate.WRONG, "#SBATCH --container-image=nvcr.io\\#nvidia/verl:1",
    )  # fmt: skip
    escaped = read_sbatch("#SBATCH --container-image=nvcr.io\\#nvidia/verl:1  # why\n")
    assert [line.fate for line in escaped.lines] == [Fate.TAKEN]
    assert escaped.container == Container("pyxis", "nvcr.io/nvidia/verl:1")


@pytest.mark.io
def test_an_image_without_verl_and_a_file_elsewhere_are_named(take_over: TakeOver) -> None:
    def why(imported: Imported) -> str:
        return next(line.why for line in imported.lines if "exec" in line.text or "docker run" in line.text)

    assert "--image nvcr.io/nvidia/pytorch:25" in why(take_over(f"docker run nvcr.io/nvidia/pytorch:25 {MAIN} a.x=1"))
    imported = take_over(f"apptainer exec --bind /d:/d /x/v.sif {MAIN} a.x=1")
    assert "slurm" not in imported.cluster
    assert "/x/v.sif is a file of the script's machines" in why(imported)
    assert "--volume /d:/d" in why(imported)


SCRIPTS = {
    "pyxis": PYXIS,
    "bare": f"#SBATCH -N 2\n#SBATCH --gres=gpu:8\nmodule load cuda/12.4\nconda activate verl\n{MAIN} a.x=1\n",
    "docker": f"#SBATCH -N 2\n#SBATCH --gres=gpu:8\nsrun docker run -v /s:/s verlai/verl:x {MAIN} a.x=1\n",
}


@pytest.mark.io
@pytest.mark.parametrize("name", SCRIPTS)
def test_the_next_command_writes_a_script(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, take_over: TakeOver, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    text = SCRIPTS[name].replace("a.x=1", "actor_rollout_ref.model.path=/m data.train_files=/d/a data.val_files=/d/b")
    imported = take_over(text)
    for file, content in imported.files.items():
        (tmp_path / file).write_text(content)
    [command] = [each for each in imported.commands() if "slurm script" in each]
    done = run(*shlex.split(command)[1:])
    assert done.code == 0, done.err
    assert {"pyxis": "--container-image", "bare": "module load cuda/12.4", "docker": "/s:/s"}[name] in done.out
