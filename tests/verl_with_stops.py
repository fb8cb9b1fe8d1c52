"""A copy of verl that says `breakpoint()` in an agent loop and in the update of the actor, and a reward that fails."""

import shutil
from pathlib import Path

STOP = """\
        if globals().setdefault('is_first', True):
            globals()['is_first'] = False
            breakpoint()
"""
PLACES = {
    "workers/engine_workers.py": "        output = self.actor.train_mini_batch(data=data)\n",
    "experimental/agent_loop/single_turn_agent_loop.py": "        priority = int(priority)\n",
}
REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):
    answer = solution_str.strip()
    if extra_info["split"] == "test":  # the validation after the step
        raise ValueError(f"no reward for {ground_truth}")
    return float(answer == ground_truth)
"""


def copy_verl(fork: Path) -> None:
    """Make the copy; each process stops once at each place."""
    import verl

    shutil.copytree(Path(verl.__file__).parent, fork, ignore=shutil.ignore_patterns("__pycache__"))
    for file, line in PLACES.items():
        text = (fork / file).read_text()
        assert text.count(line) == 1
        (fork / file).write_text(text.replace(line, STOP + line))
