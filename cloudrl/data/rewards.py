"""Which of verl's reward functions scores a data source. Standard library only.

verl picks by the `data_source` of each row (verl 0.9.1, utils/reward_score/__init__.py: default_compute_score),
and raises NotImplementedError in the middle of the first step for one that it does not know, unless a function
of the user's own is given in `reward.custom_reward_function.path`.
"""

from typing import Optional

BY_FUNCTION = {
    "gsm8k": ("openai/gsm8k",),
    "math_reward": ("lighteval/MATH", "DigitalLearningGmbH/MATH-lighteval", "HuggingFaceH4/MATH-500"),
    "math_dapo": ("math_dapo", "math", "math_dapo_reasoning"),
    "prime_math": (
        "numina_aops_forum", "numina_synthetic_math", "numina_amc_aime", "numina_synthetic_amc", "numina_cn_k12",
        "numina_olympiads",
    ),
    "prime_code": ("codecontests", "apps", "codeforces", "taco"),
    "geo3k": ("hiyouga/geometry3k",),
    "search_r1_like_qa_em": (
        "searchR1_nq", "searchR1_triviaqa", "searchR1_popqa", "searchR1_hotpotqa", "searchR1_2wikimultihopqa",
        "searchR1_musique", "searchR1_bamboogle",
    ),
}  # fmt: skip
"""Module in verl/utils/reward_score -> the data sources that it scores."""


def reward_of(data_source: str) -> Optional[str]:
    """The module of verl's reward function for a data source, or None where verl has none."""
    if data_source.startswith("aime"):
        return "math_dapo"
    return next((name for name, sources in BY_FUNCTION.items() if data_source in sources), None)
