"""The data sets that have a name of their own: what a client may ask for by it, and what an agent can make."""

import importlib
from dataclasses import dataclass
from types import ModuleType
from typing import Dict, Optional


@dataclass(frozen=True)
class BuiltIn:
    """One data set.

    Attributes:
        name: As `--data` takes it.
        module: Where its rows are made; it has `prepare(folder, ...)` and `DATA_SOURCE`.
        hub_id: Where the raw rows are from; None when they are on no hub.
        rows: How many there are, by split: of the Hub's two as their data cards say.
        reward: The reward function of ours that scores it, for `reward.custom_reward_function.path`; None where
            verl, or the fork that it is for, has one.
        owns_hub_id: Whether it is all that its place on the Hub holds, so that the id alone means it, too.
        origin: What the rows are made from, where that is on no hub.
        for_cpu: Whether it is for the tiny models of clusters that train on CPUs, whose agents alone have its module.
    """

    name: str
    module: str
    hub_id: Optional[str]
    rows: Dict[str, int]
    reward: Optional[str] = None
    owns_hub_id: bool = True
    origin: str = "generated"
    for_cpu: bool = False

    def load(self) -> ModuleType:
        """Import its module."""
        return importlib.import_module(self.module)


_BUILT_IN = (
    BuiltIn(
        "addition",
        "cloudrl.data.addition",
        None,
        {"train": 2400, "test": 100},
        "pkg://cloudrl.verl_cpu.reward",
        for_cpu=True,
    ),
    BuiltIn(
        "capitals",
        "cloudrl.data.capitals",
        None,
        {"train": 48, "test": 16},
        "pkg://cloudrl.verl_cpu.search_reward",
        origin="CIA World Factbook",
        for_cpu=True,
    ),
    BuiltIn("gsm8k", "cloudrl.data.gsm8k", "openai/gsm8k", {"train": 7473, "test": 1319}),
    BuiltIn("math", "cloudrl.data.math", "DigitalLearningGmbH/MATH-lighteval", {"train": 7500, "test": 5000}),
    BuiltIn(  # scored by Search-R1's fork of verl itself
        "nq_search",
        "cloudrl.data.nq_search",
        "RUC-NLPIR/FlashRAG_datasets",
        {"train": 79168, "test": 3610},
        owns_hub_id=False,
    ),
    BuiltIn(
        "nq_search_tool",
        "cloudrl.data.nq_search_tool",
        "RUC-NLPIR/FlashRAG_datasets",
        {"train": 79168, "test": 3610},
        owns_hub_id=False,
    ),
)
BUILT_IN = {data_set.name: data_set for data_set in sorted(_BUILT_IN, key=lambda data_set: data_set.name)}
