"""Which reward function verl takes, against verl itself."""

import json

import pytest
from verl_forks import Script

from cloudrl.data.rewards import BY_FUNCTION, reward_of
from cloudrl.protocol.data_sets import BUILT_IN

ASK_VERL = r"""
import inspect, json, re, sys
from verl.utils import reward_score
called = []
# the functions themselves want packages and answers of many kinds; what counts is which one verl takes
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("verl.utils.reward_score."):
            called.append(name.rpartition(".")[2])
            raise RuntimeError("taken")
sys.meta_path.insert(0, Finder())
for name in [name for name in sys.modules if name.startswith("verl.utils.reward_score.")]:
    del sys.modules[name]
    vars(reward_score).pop(name.rpartition(".")[2], None)
def takes(source):
    called.clear()
    try:
        reward_score.default_compute_score(source, "", "")
    except NotImplementedError:
        return None
    except RuntimeError:
        return called[0]
written = re.findall(r'"([^"\n]+)"', inspect.getsource(reward_score.default_compute_score))
json.dump({source: takes(source) for source in {*json.load(sys.stdin), *written}}, sys.stdout)
"""


@pytest.mark.verl
def test_verl_takes_the_same_function() -> None:
    """For all sources that we know, and for all texts that stand in verl's own function."""
    others = ["aime", "aime_2024", "aime25", "mine", "owner/name", "openai/GSM8K", "cloudrl/addition", ""]
    asked = [*(source for sources in BY_FUNCTION.values() for source in sources), *others]
    verls = json.loads(Script(ASK_VERL, given=json.dumps(asked)).end()[-1])
    assert len(verls) > len(asked)
    assert {source: reward_of(source) for source in verls} == verls


def test_built_in_data_sets_from_the_hub_have_a_reward() -> None:
    for each in BUILT_IN.values():
        if each.name == "nq_search":  # Search-R1's fork scores it
            assert reward_of(each.load().DATA_SOURCE) is None
            continue
        assert (reward_of(each.load().DATA_SOURCE) is not None) == (each.hub_id is not None)
        assert each.hub_id in (None, each.load().DATA_SOURCE) or not each.owns_hub_id
