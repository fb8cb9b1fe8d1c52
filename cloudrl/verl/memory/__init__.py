"""How much memory a job of verl needs, per phase of a step, and whether it fits: pure, from configuration and model.

`reading.py` makes a `Workload` of the composed configuration; `training.py`, `rollout.py` and `host.py` say what is in
memory in each phase; `verdict.py` compares that with the machine, and `remedies.py` finds overrides that make a job
fit. The formulas and how far they are off: docs/memory.md.
"""
