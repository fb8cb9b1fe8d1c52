"""The `nq_search_tool` data set: Natural Questions for a model that calls a search function, in rows for today's verl.

The questions and answers are those of `nq_search`. Its prompt asks for `<search>` tags, which only Search-R1's fork
reads; here the model's chat template says how a function is called, and verl's parser of that format executes it
(verl 0.9.1, experimental/agent_loop/tool_parser.py). verl scores the data source by exact match of the text in the
last `<answer>` (utils/reward_score/search_r1_like_qa_em.py). Standard library only at import time, as `nq_search`.
"""

from functools import partial

from cloudrl.data.nq_search import HUB_ID, make_row
from cloudrl.data.rows import prepare_from_hub

DATA_SOURCE = "searchR1_nq"

_INSTRUCTION = (
    "Answer the given question. "
    "You must conduct reasoning inside <think> and </think> first every time you get new information. "
    "After reasoning, if you find you lack some knowledge, you can call the function search with a query, "
    "and it will return the top searched results. "
    "You can search as many times as you want. "
    "If you find no further external knowledge needed, you can directly provide the answer inside <answer> and "
    "</answer>, without detailed illustrations. For example, <answer> Beijing </answer>. Question: "
)

prepare = partial(prepare_from_hub, "nq_search_tool", HUB_ID, "nq", partial(make_row, DATA_SOURCE, _INSTRUCTION))
