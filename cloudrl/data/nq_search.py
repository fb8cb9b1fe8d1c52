"""The `nq_search` data set: Natural Questions for Search-R1, in the rows that its own script makes.

Columns and prompt are those of PeterGriffinJin/Search-R1 at a14dc3a, scripts/data_process/nq_search.py, which keeps
the raw rows' other columns (`id`, `golden_answers`) and puts them first. The reward function for the data source
`nq` is part of that fork of verl (verl/trainer/main_ppo.py); verl itself has none. Standard library only at import
time: the download takes `datasets`, the files take pyarrow.
"""

from functools import partial
from typing import Any, Dict, Mapping

from cloudrl.data.rows import BadRow, prepare_from_hub, verl_row

DATA_SOURCE = "nq"
HUB_ID = "RUC-NLPIR/FlashRAG_datasets"

_INSTRUCTION = (
    "Answer the given question. "
    "You must conduct reasoning inside <think> and </think> first every time you get new information. "
    "After reasoning, if you find you lack some knowledge, you can call a search engine by <search> query </search> "
    "and it will return the top searched results between <information> and </information>. "
    "You can search as many times as your want. "
    "If you find no further external knowledge needed, you can directly provide the answer inside <answer> and "
    "</answer>, without detailed illustrations. For example, <answer> Beijing </answer>. Question: "
)


def make_row(source: str, instruction: str, split: str, index: int, raw: Mapping[str, Any]) -> Dict[str, object]:
    """Make verl's row of a question, which follows the instruction.

    Raises:
        BadRow: It has no question or no answers.
    """
    written, answers = raw.get("question"), raw.get("golden_answers")
    if not (isinstance(written, str) and isinstance(answers, list)):
        has = ", ".join(sorted(raw))
        raise BadRow(f"question should be a text and golden_answers a list; it has {has}")
    question = written.strip()
    if not question or not answers:
        raise BadRow("its question or its list of answers is empty")
    if not question.endswith("?"):
        question += "?"
    return {
        **raw,
        "question": question,
        **verl_row(
            data_source=source,
            prompt=[{"role": "user", "content": f"{instruction}{question}\n"}],
            ability="fact-reasoning",
            truth={"target": answers},
            extra={"split": split, "index": index},
        ),
    }


prepare = partial(prepare_from_hub, "nq_search", HUB_ID, "nq", partial(make_row, DATA_SOURCE, _INSTRUCTION))
