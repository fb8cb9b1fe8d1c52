"""Programs other than verl's own trainers: composed by the YAML that their own source names, and by no rule of ours."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from planning import LEAST, cluster, plan, typed

from cloudrl.jobs import Submission, SubmitOptions
from cloudrl.jobs.findings import Finding, JobRefused
from cloudrl.jobs.program_files import own_files
from cloudrl.jobs.working_dir import scan
from cloudrl.spec import Job
from cloudrl.verl.command import UnknownConfig, read_command
from cloudrl.verl.program_config import program_config
from cloudrl.verl.release_files import SHIPPED, source_of
from cloudrl.verl.releases import RELEASE

DAPO = ("python3", "-m", "recipe.dapo.main_dapo")
ONE_STEP = ("python3", "-m", "verl.experimental.one_step_off_policy.main_ppo")
FULLY_ASYNC = ("python3", "-m", "verl.experimental.fully_async_policy.fully_async_main")
MAIN = "import hydra\n\n@hydra.main(config_path='config', config_name='{name}', version_base=None)\ndef main(c): ...\n"
YAML = "hydra:\n  searchpath:\n    - {searched}\ndefaults:\n  - ppo_trainer\n  - _self_\nmine:\n  temperature: 1.0\n"
IN_CHECKOUT, IN_PACKAGE = "file://verl/trainer/config", "pkg://verl.trainer.config"
FILES = {
    "recipe/dapo/main_dapo.py": MAIN.format(name="dapo_trainer"),
    "recipe/dapo/config/dapo_trainer.yaml": YAML.format(searched=IN_PACKAGE),
}
CHECKOUT = {
    "verl/__init__.py": "",
    "verl/trainer/main_ppo.py": MAIN.format(name="ppo_trainer"),
    "verl/trainer/config/ppo_trainer.yaml": (
        "data: {train_files: a, val_files: b, prompts_per_step: 8}\n"
        "trainer: {nnodes: 1, n_gpus_per_node: 8, default_local_dir: c}\n"
        "actor_rollout_ref: {model: {path: m}}\n"
    ),
}


def sent(
    folder: Path, entrypoint: tuple[str, ...], *words: str, files: Mapping[str, str] | None = None, **changes: Any
) -> Submission:
    """What is sent of a working directory with these files; without any, of none."""
    for name, text in (files or {}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    made = Job(name="x", entrypoint=entrypoint, data=["gsm8k"], model="Qwen/Qwen2.5-7B-Instruct",
               verl=changes.get("verl", RELEASE.verl))  # fmt: skip
    options = SubmitOptions(working_dir=str(folder) if files else None, overrides=typed(*words))
    return plan(made, cluster(verl_version=made.verl), options, here=folder)


def refused(folder: Path, entrypoint: tuple[str, ...], *words: str, **changes: Any) -> list[Finding]:
    with pytest.raises(JobRefused) as caught:
        sent(folder, entrypoint, *words, **changes)
    return list(caught.value.findings)


LEAST_WORDS = tuple(f"{key}={value}" for key, value in LEAST.items())


def test_a_recipe_of_the_working_directory_has_the_keys_of_its_own_yaml(tmp_path: Path) -> None:
    submission = sent(tmp_path, DAPO, "mine.temperature=0.5", files=FILES)
    [skipped] = submission.not_checked
    assert skipped.startswith("sections, batches, values and names of the configuration, and memory (the job runs reci")
    assert "trainer.nnodes=2" in submission.argv
    [finding] = refused(tmp_path, DAPO, "mine.temperatur=0.5", "data.train_batch_size=abc", files=FILES)
    assert finding.text == "mine.temperatur: recipe.dapo.main_dapo has no such key"
    assert finding.fix[-1] == "mine.temperature=0.5"


def test_keys_that_a_program_of_ones_own_does_not_have(tmp_path: Path) -> None:
    files = {"train.py": MAIN.format(name="x"), "config/x.yaml": "mine: 1\n"}
    found = refused(tmp_path, ("python3", "train.py"), "one.x=1", "two.y=2", "three.z=3", files=files)
    assert [finding.text for finding in found] == [
        f"{key}: train.py has no such key" for key in ("one.x", "two.y", "three.z")
    ]
    assert found[0].hint == "If its code reads the key: +one.x=1"  # and no word on forks of verl


def test_rules_of_main_ppo_are_not_applied_to_another_program(tmp_path: Path) -> None:
    assert sent(tmp_path, DAPO, "actor_rollout_ref.actor.ppo_mini_batch_size=7", files=FILES).warnings == ()


def test_a_search_path_into_a_checkout_needs_that_checkout(tmp_path: Path) -> None:
    files = {**FILES, "recipe/dapo/config/dapo_trainer.yaml": YAML.format(searched=IN_CHECKOUT)}
    [finding, *_] = refused(tmp_path, DAPO, files=files)
    assert "hydra.searchpath names verl/trainer/config, which is not in the working directory" in finding.text
    assert finding.fix == (f"hydra.searchpath=[{IN_PACKAGE}]",)
    sent(tmp_path, DAPO, *finding.fix, files=files)
    own = sent(tmp_path, DAPO, "data.prompts_per_step=4", files={**files, **CHECKOUT})
    assert not [word for word in own.argv if word.startswith("trainer.resume_mode")]  # it has no such key


def test_a_search_path_keeps_its_other_folders(tmp_path: Path) -> None:
    searched = f"{IN_CHECKOUT}\n    - file://conf"
    files = {**FILES, "recipe/dapo/config/dapo_trainer.yaml": YAML.format(searched=searched), "conf/a.yaml": "a: 1\n"}
    [finding, *_] = refused(tmp_path, DAPO, files=files)
    assert finding.fix == (f"hydra.searchpath=[{IN_PACKAGE},file://conf]",)


@pytest.mark.parametrize("version_base", ["", ", version_base='1.1'"])
def test_an_older_program_has_its_yaml_beside_it(version_base: str, tmp_path: Path) -> None:
    main = f"import hydra\n\n@hydra.main(config_name='x'{version_base})\ndef main(c): ...\n"
    optional = "hydra: {searchpath: [file://opt]}\ndefaults: [db: pg]\na: 1\n"  # Hydra warns: there is no _self_
    files = {"train.py": main, "x.yaml": optional, "db/pg.yaml": "p: 1\n"}
    assert sent(tmp_path, ("python3", "train.py"), "a=2", files=files).warnings == ()
    [finding] = refused(tmp_path, ("python3", "train.py"), "b=2", files=files)
    assert finding.text == "b: train.py has no such key"


def test_a_verl_of_unknown_release(tmp_path: Path) -> None:
    main = ("python3", "-m", "verl.trainer.main_ppo")
    [warning] = sent(tmp_path, main, "data.prompts_per_ste=4", files=CHECKOUT, verl=None).warnings
    assert (
        warning
        == "with verl of unknown version: data.prompts_per_ste: the verl of the working directory has no such key"
    )


def test_without_a_working_directory_the_same_is_a_warning(tmp_path: Path) -> None:
    [warning, *_] = sent(tmp_path, ONE_STEP).warnings
    assert warning.startswith(
        "hydra.searchpath names verl/trainer/config, which is not in the working directory; to find"
    )
    assert warning.endswith(f"'hydra.searchpath=[{IN_PACKAGE}]'")
    assert sent(tmp_path, ONE_STEP, f"hydra.searchpath=[{IN_PACKAGE}]").warnings == ()


def test_a_verl_of_the_working_directory_has_its_own_keys(tmp_path: Path) -> None:
    main = ("python3", "-m", "verl.trainer.main_ppo")
    submission = sent(tmp_path, main, "data.prompts_per_step=4", files=CHECKOUT)
    assert submission.not_checked[0].endswith("(a verl of your own; cloudrl verl add makes it known)")
    [finding] = refused(tmp_path, main, "data.train_batch_size=4", files=CHECKOUT)
    assert finding.text.startswith("data.train_batch_size: the verl of the working directory has no such key")


def test_a_configuration_of_ones_own_for_main_ppo(tmp_path: Path) -> None:
    main = ("python3", "-m", "verl.trainer.main_ppo", "--config-dir=conf", "--config-name=mine")
    files = {"conf/mine.yaml": YAML.format(searched=IN_CHECKOUT)}
    words = (*LEAST_WORDS, "algorithm.adv_estimator=grpo")
    assert sent(tmp_path, main, *words, "mine.temperature=0.5", files=files).not_checked == ("memory (card unknown)",)
    [finding] = refused(tmp_path, main, *words, "actor_rollout_ref.rollout.name=vlm", files=files)
    assert "vlm" in finding.text  # verl's own program, so its rules hold


def test_programs_of_verl_that_are_no_trainer_of_main_ppo(tmp_path: Path) -> None:
    assert sent(tmp_path, FULLY_ASYNC, "async_training.staleness_threshold=0.5").warnings == ()
    [finding] = refused(tmp_path, FULLY_ASYNC, "async_training.stalenes_threshold=0.5")
    assert finding.fix[-1] == "async_training.staleness_threshold=0.5"
    evaluation = sent(tmp_path, ("python3", "-m", "verl.trainer.main_eval"), "data.path=/d/x.parquet")
    assert [word for word in evaluation.argv if word.startswith(("trainer.", "actor_"))] == []


def test_a_program_that_the_release_does_not_have(tmp_path: Path) -> None:
    old = ("torchrun", "--nproc_per_node=8", "-m", "verl.trainer.fsdp_sft_trainer")
    data = "data.train_files=/d/x.parquet"
    [finding] = refused(tmp_path, old, data)
    assert finding.text == (
        "verl 0.9.1 has no program verl.trainer.fsdp_sft_trainer; did you mean 'verl.trainer.sft_trainer'?"
    )
    submission = sent(tmp_path, old, data, verl="0.7.0")
    assert "model.partial_pretrain=/models/qwen" in submission.argv
    [finding] = refused(tmp_path, old, data, "data.train_batchsize=8", verl="0.7.0")
    assert finding.fix[-1] == "data.train_batch_size=8"


@pytest.mark.parametrize(
    ("folder", "text"),
    [
        ("mine/config", "--config-path mine/config: there is no such folder beside verl.trainer.main_ppo"),
        ("<checkout>/config", "--config-path <checkout>/config: <checkout> has to be filled in"),
    ],
)
def test_a_folder_of_configurations_that_is_not_beside_the_program(folder: str, text: str, tmp_path: Path) -> None:
    main = ("python3", "-m", "verl.trainer.main_ppo", f"--config-path={folder}", "--config-name=ppo_trainer.yaml")
    first, *others = refused(tmp_path, main, "trainer.project_name=<name>")
    assert first.text == text
    assert "config-dir" in first.hint
    assert [finding.text for finding in others] == ["trainer.project_name=<name>: <name> has to be filled in"]


@pytest.mark.parametrize(
    ("entrypoint", "files", "why"),
    [
        (DAPO, None, "recipe.dapo.main_dapo is neither in verl 0.9.1 nor in the folder of --working-dir"),
        (("python3", "train.py"), {"train.py": "print(1)\n"}, "train.py is neither in verl 0.9.1"),
        (("python3", "train.py"), {"train.py": "if __name__ == '__main__': ...\n"}, "has no configuration of Hydra's"),
        (("python3", "train.py"), {"train.py": "def broken(:\n"}, "train.py is neither in verl 0.9.1"),
        ((*DAPO, "--config-path=/etc/conf"), FILES, "--config-path /etc/conf is a folder of the nodes"),
        ((*DAPO, "--config-path=../../../conf"), FILES, "--config-path ../../../conf leads to a folder of the nodes"),
        (("python3", "-m", "verl.trainer.main_ppo", "--config-path=../../conf"), {"conf/a.yaml": ""},
         "--config-path ../../conf leads to a folder of the nodes"),
        ((*DAPO, "--config-path=pkg://mlite.config"), FILES, "pkg://mlite.config is a package of the nodes"),
        (DAPO, {**FILES, "recipe/dapo/config/dapo_trainer.yaml": YAML.format(searched="file:///etc")},
         "hydra.searchpath=file:///etc is a folder of the nodes"),
        (DAPO, {**FILES, "recipe/dapo/config/dapo_trainer.yaml": YAML.format(searched="file://${oc.env:CONF}")},
         "hydra.searchpath=file://${oc.env:CONF} depends on the nodes"),
        (DAPO, {**FILES, "recipe/dapo/config/dapo_trainer.yaml": YAML.format(searched="pkg://verl..etc")},
         "pkg://verl..etc is no package"),
        (("python3", "train.py"), {"train.py": MAIN.format(name="x").replace("'config'", "HERE + '/config'")},
         "train.py computes its config_path for hydra.main"),
        (("python3", "train.py"), {"train.py": MAIN.format(name="x"), "mine/db.py": "ConfigStore.instance()\n"},
         "register configurations in Hydra's ConfigStore"),
    ],
)  # fmt: skip
def test_what_is_not_here_is_said_in_one_line(
    entrypoint: tuple[str, ...], files: dict[str, str] | None, why: str, tmp_path: Path
) -> None:
    [skipped] = sent(tmp_path, entrypoint, files=files).not_checked
    assert skipped.startswith("the configuration (")
    assert why in skipped


@pytest.mark.parametrize(
    "yaml", ["- 1\n", "a: [\n", "hydra: 3\n", "hydra: {searchpath: 3}\n", "x: &a [*a]\n", "", "# @package _global_\n"]
)
def test_odd_yaml_ends_no_check(yaml: str, tmp_path: Path) -> None:
    try:
        sent(tmp_path, DAPO, files={**FILES, "recipe/dapo/config/dapo_trainer.yaml": yaml})
    except JobRefused as refusal:
        assert refusal.findings  # noqa: PT017  either will do


def test_the_package_of_a_file_stays(tmp_path: Path) -> None:
    text = "# @package deep\nhydra: {searchpath: []}\nmine: {x: 1}\n"
    files = {**FILES, "recipe/dapo/config/dapo_trainer.yaml": text}
    assert not [each for each in sent(tmp_path, DAPO, "deep.mine.x=2", files=files).warnings if "deep" in each]


def test_a_file_that_is_no_text_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/a.yaml").write_bytes(b"\xff\xfe")
    (tmp_path / "conf/b.yaml").write_text("")
    (tmp_path / "main.py").write_text(MAIN.format(name="a"))
    files = own_files(("python3", "main.py"), scan(tmp_path))
    assert (files.program, dict(files.yaml)) == (("config", "a", True, ""), {"conf/b.yaml": ""})


def test_of_very_many_files_those_near_the_program_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloudrl.jobs.program_files._MAX_FILES", 3)
    for name in ("data/1.yaml", "data/2.yaml", "data/3.yaml", "recipe/dapo/config/a.yaml", "recipe/b.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x: 1\n")
    (tmp_path / "recipe/dapo/main.py").write_text(MAIN.format(name="a"))
    files = own_files(("python3", "-m", "recipe.dapo.main"), scan(tmp_path))
    assert {*files.yaml} >= {"recipe/dapo/config/a.yaml", "recipe/b.yaml"}
    assert len(files.unread) == 2
    command = read_command(("python3", "-m", "recipe.dapo.main"))
    assert program_config(command, RELEASE.verl, files, None).name == "a"
    with pytest.raises(UnknownConfig, match="data has more YAML files than cloudrl reads"):
        program_config(command, RELEASE.verl, files, ["file://data"])


@pytest.mark.parametrize("release", sorted(path.name for path in SHIPPED.iterdir() if path.is_dir()))
def test_each_release_has_the_yaml_of_its_programs(release: str) -> None:
    source = source_of(release)
    assert source is not None
    assert source.programs["verl.trainer.main_ppo"] == "trainer/config/ppo_trainer"
    assert source.programs["verl.model_merger"] == ""
    for config in filter(None, source.programs.values()):
        assert (SHIPPED / release / f"{config.removeprefix('trainer/config/')}.yaml").is_file()
