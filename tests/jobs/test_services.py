"""A job and the servers that it asks."""

import pytest
from planning import PLAIN, cluster, job, planned

from cloudrl.errors import InputError
from cloudrl.jobs.run_plan import cluster_for_job
from cloudrl.jobs.services import check_own_search, check_services, needed_services
from cloudrl.options.job import SubmitOptions
from cloudrl.recipes import load
from cloudrl.spec import Job

JOB = Job.load({"name": "mine", "needs": ["search:wiki-18", {"port": 8100, "command": "judge", "name": "judge"}]})


@pytest.mark.parametrize("services", [("search", "judge"), ("8000", "8100"), ("other", "judge", "8000")])
def test_a_cluster_that_has_them_by_name_or_at_their_port(services: tuple[str, ...]) -> None:
    check_services(JOB, {}, cluster(services=services))


def test_a_plain_ray_cluster_is_not_asked_for_its_services() -> None:
    check_services(JOB, {}, cluster(**PLAIN))


def test_a_cluster_without_them_is_refused_with_the_command_that_starts_one() -> None:
    with pytest.raises(
        InputError, match="recipe 'mine' needs the service 'search', and cluster 'lab' has judge"
    ) as one:
        check_services(JOB, {}, cluster(services=("judge",)))
    assert "cloudrl run mine" in str(one.value.hint)
    assert """--set 'services=["search:wiki-18"]'""" in str(one.value.hint)
    assert "--env CLOUDRL_SEARCH_URL=" in str(one.value.hint)
    with pytest.raises(InputError, match="needs the service 'judge', and cluster 'lab' has search") as one:
        check_services(JOB, {}, cluster(services=("search",)))
    assert """[{"port": 8100, "command": "judge", "name": "judge"}]""" in str(one.value.hint)


def test_one_that_is_elsewhere_is_not_needed() -> None:
    elsewhere = {"CLOUDRL_SEARCH_URL": "http://10.0.0.9/retrieve", "CLOUDRL_SERVICE_JUDGE": "10.0.0.9:80"}
    check_services(JOB, elsewhere, cluster(services=()))
    assert needed_services(JOB, elsewhere) == ()
    assert needed_services(JOB.replace(env=elsewhere), {}) == ()


@pytest.mark.parametrize("name", ["search-grpo", "search-ppo"])
def test_run_starts_the_search_server_of_a_recipe(name: str) -> None:
    fields = cluster_for_job(load(name), SubmitOptions())
    assert fields["services"] == ["search:wiki-18"]
    elsewhere = SubmitOptions(env={"CLOUDRL_SEARCH_URL": "http://10.0.0.9/retrieve"})
    assert "services" not in cluster_for_job(load(name), elsewhere)
    assert "services" not in cluster_for_job(load("grpo"), SubmitOptions())


def test_planning_looks() -> None:
    asks = job(needs=["search:wiki-18"])
    with pytest.raises(InputError, match="needs the service 'search', and cluster 'lab' has no services"):
        planned(asks, view=cluster(services=()))
    planned(asks, view=cluster(services=()), env={"CLOUDRL_SEARCH_URL": "http://10.0.0.9/retrieve"})


def test_search_r1s_fork_asks_a_server_of_its_node() -> None:
    asks = {"retriever.url": "http://127.0.0.1:8000/retrieve"}
    with pytest.raises(InputError, match=r"retriever\.url=http://127.* and cluster 'lab' has no services"):
        check_own_search(asks, cluster(services=()))
    with pytest.raises(InputError, match=r"and cluster 'lab' has no services"):
        planned(load("search-r1"), view=cluster(services=(), verl_version="0.1"))
    for there in (cluster(services=("8000",)), cluster(services=("search",)), cluster(**PLAIN)):
        check_own_search(asks, there)
    check_own_search({"retriever.url": "http://10.0.0.9:8000/retrieve"}, cluster(services=()))
