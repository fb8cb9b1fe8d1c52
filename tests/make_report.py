"""Reports for tests and benchmarks, with the keys that verl has."""

import math
import random
from typing import Any

from cloudrl.protocol.report import GpuUsage, Usage
from cloudrl.report import Report, RunReport, Sample, StepAnswers, Table
from cloudrl.report.usage import NodeUsage
from cloudrl.verl.metrics import Step

PARTS = ("gen", "reward", "old_log_prob", "ref", "adv", "update_actor", "update_weights")
OTHERS = ("critic/advantages/mean", "critic/returns/mean", "actor/lr", "global_seqlen/mean", "perf/mfu/actor")


def make_steps(count: int, *, keys: int = 50, seed: int = 0) -> tuple[Step, ...]:
    """A run that learns; `keys` metrics a step, a validation every tenth."""
    rng = random.Random(seed)
    return tuple(_step(number, count, keys, rng) for number in range(1, count + 1))


def _step(number: int, count: int, keys: int, rng: random.Random) -> Step:
    reward = 1 / (1 + math.exp(4 - 8 * number / count)) + rng.gauss(0, 0.04)
    parts = {f"timing_s/{name}": 1 + rng.random() * (3 if name == "gen" else 1) for name in PARTS}
    length = 300 + 200 * reward + rng.gauss(0, 20)
    metrics = {
        "critic/score/mean": reward, "critic/score/min": 0.0, "critic/score/max": 1.0,
        "actor/ppo_kl": abs(rng.gauss(0, 1e-3)), "actor/kl_loss": 1e-3 * number / count, "actor/entropy": 2 - reward,
        "response_length/mean": length, "response_length/min": length / 3, "response_length/max": 1024.0,
        "response_length/clip_ratio": rng.random() / 20, "actor/pg_clipfrac": rng.random() / 100,
        "actor/grad_norm": 1 + rng.random(), "perf/throughput": 1800 + rng.gauss(0, 60),
        **parts, "timing_s/step": sum(parts.values()) + 0.4, **dict.fromkeys(OTHERS, rng.random()),
    }  # fmt: skip
    if number % 10 == 0:
        metrics |= {"val-core/gsm8k/acc/mean@1": reward, "timing_s/testing": 6.0}
    more = (f"training/measure_{place}" for place in range(max(0, keys - len(metrics))))
    return Step(number, {**metrics, **{key: rng.random() * 1e4 for key in more}})


def make_run(name: str = "grpo-1", *, steps: int = 200, keys: int = 50, seed: int = 0, **fields: Any) -> RunReport:
    """One run with all that a page shows."""
    shown = {
        "name": name, "job": f"ray://lab/{name}", "status": "SUCCEEDED", "total_steps": steps,
        "steps": make_steps(steps, keys=keys, seed=seed),
        "config": {"actor_rollout_ref.actor.optim.lr": f"{1 + seed}e-6", "trainer.nnodes": "2"},
        "tables": (
            Table("Nodes", ("rank", "address", "phase"), (("0", "10.0.0.1", "ready"), ("1", "10.0.0.2", "ready"))),
            Table("Checkpoints", ("step", "role", "state", "size"), (("20", "actor", "complete", "15 GB"),)),
        ),
        "about": {
            "Command": f"cloudrl submit grpo --name {name} --steps={steps}", "Overrides of mine": f"--steps={steps}",
            "Versions": "verl 0.9.1, Ray 2.56.0, Python 3.12.3", "Git commit": "1a2b3c4 with changes",
            "Started": "2026-11-26 08:19:40", "Duration": "5 min 20 s",
        },
        "log": ("(TaskRunnerV1 pid=7) all initialize finished, ready to fit", "step:1 - critic/score/mean:0.1"),
        "usage": tuple(make_usage(rank) for rank in range(2)),
        "samples": tuple(_sample(step, place) for step in (10, 20) for place in range(30)),
        "answers": tuple(StepAnswers(step, 100, 100, 1, 30, 30) for step in (10, 20)),
        "answer_steps": 2,
    }  # fmt: skip
    return RunReport(**{**shown, **fields})


def make_usage(rank: int, minutes: int = 120) -> NodeUsage:
    """A node with eight GPUs, by the minute."""
    rng, samples = random.Random(rank), []
    for minute in range(minutes):
        gpus = tuple(GpuUsage(each, "", 60 + 35 * rng.random(), 60_000, 81_559, 600.0) for each in range(8))
        share = 0.2 + 0.6 * minute / minutes
        samples.append(
            Usage(
                1.7e9 + 60 * minute,
                20 + 10 * rng.random(),
                2 << 38,
                1 << 40,
                int(share * 3e12),
                3 * 10**12,
                5e6,
                1e9,
                gpus,
            )
        )
    return NodeUsage(rank, tuple(samples))


def _sample(step: int, place: int) -> Sample:
    truth, prompt = str(2 * place + 1), f"What is {place} + {place + 1}?"
    answer = truth if (place + step) % 3 else "7"
    score = float(answer == truth)
    return Sample(step, prompt, f"It is {answer}.", score, truth, {"acc": str(score == 1)}, prompt)


def make_report(*names: str, **options: Any) -> Report:
    """Runs of these names."""
    return Report(tuple(make_run(name, seed=seed, **options) for seed, name in enumerate(names or ("grpo-1",))))


def make_group(*names: str, steps: int = 60, **fields: Any) -> tuple[RunReport, ...]:
    """Runs of these names whose configurations differ in nothing but the seed."""
    return tuple(
        make_run(name, seed=seed, steps=steps, **{"config": {"trainer.nnodes": "2", "data.seed": str(seed)}, **fields})
        for seed, name in enumerate(names)
    )
