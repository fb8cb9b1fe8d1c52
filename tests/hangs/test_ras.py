"""NCCL's monitor: which ranks lag behind in a collective, from both of its formats."""

import pytest
from ras_server import DOCUMENTED, TEXT, as_json

from cloudrl.hangs.blame import Process
from cloudrl.hangs.ras import Mismatch, Peer, Standstill, blame, parse
from cloudrl.hangs.remedies import remedy


def test_the_documented_answer_has_no_mismatch():
    assert parse(DOCUMENTED) == ()


def test_a_comma_that_nccl_has_forgotten():
    damaged = DOCUMENTED.replace('"nvml_dev": 1,\n', '"nvml_dev": 1\n').replace('"AllReduce": 0\n', '"AllReduce": 0\n')
    ranks = as_json({0: {"AllReduce": 7}, 1: {"AllReduce": 6}})
    assert parse(damaged) == ()
    assert parse(ranks.replace('"nvml_dev": 0,', '"nvml_dev": 0')) == parse(ranks) != ()


def test_ranks_that_differ_in_an_operation():
    [mismatch] = parse(as_json({0: {"AllReduce": 7, "Reduce": 1}, 1: {"AllReduce": 6, "Reduce": 1}, 2: {"Reduce": 1}}))
    assert (mismatch.communicator, mismatch.operation) == ("0xa/0xb:0xc", "AllReduce")
    assert [count for count, _ in mismatch.counts] == [0, 6, 7]
    assert mismatch.lagging == (Peer(2, 102, "10.0.0.1"),)


def test_a_communicator_that_ends_is_left_out():
    assert parse(as_json({0: {"AllReduce": 7}, 1: {"AllReduce": 6}}, ending=True)) == ()


def test_the_text_of_older_releases():
    reduced, sent = parse(TEXT)
    assert reduced == Mismatch(
        "27a079b828ff1a75",
        "AllReduce",
        (
            (0, (Peer(9, 483075, "172.16.64.211"),)),
            (6649, (Peer(2, 483074, "172.16.64.210"),)),
            (6650, ()),
        ),
    )
    assert (sent.operation, sent.counts) == (
        "Broadcast",
        ((6, (Peer(0, 483072, "172.16.64.210"), Peer(3))), (7, ())),
    )


def test_before_2_26_operations_are_counted_together():
    text = TEXT.replace("different AllReduce operation", "different collective operation")
    assert parse(text)[0].operation == "collective"


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "{",
        "[]",
        "{}",
        "#0-0 (a) X",
        "[" * 100_000,
        '{"communicators": 7}',
        '{"communicators": [7, {"ranks": [3, {"status": 1}]}]}',
        '{"communicators": [{"ranks": [{"collective_counts": {"A": "x"}}, {"collective_counts": 3}]}]}',
    ],
)
def test_any_answer_is_read(answer: str):
    assert parse(answer) == ()


def test_only_counts_that_do_not_change_are_a_standstill():
    first, second = (parse(as_json({0: {"AllReduce": 7}, 1: {"AllReduce": count}})) for count in (5, 6))
    still = Standstill()
    assert still.add(first, 0.0) == ((first[0], 0.0),)
    assert still.add(second, 30.0) == ((second[0], 0.0),)
    assert still.add(second, 60.0) == ((second[0], 30.0),)
    assert still.add((), 90.0) == ()
    assert still.add(second, 120.0) == ((second[0], 0.0),)


def test_the_process_of_the_rank_that_lags():
    mismatches = parse(as_json({0: {"AllReduce": 7}, 1: {"AllReduce": 6}}))
    here = Process(1, 101, "ray::WorkerDict.actor_rollout_update_actor", host="10.0.0.1")
    elsewhere = Process(0, 101, "ray::WorkerDict.actor_rollout_update_actor", host="10.0.0.9")
    [found] = blame(mismatches, [elsewhere, here])
    assert (found.rank, found.pid, found.host) == (1, 101, "10.0.0.1")
    assert found.reason == "lags behind: NCCL has launched 6 times AllReduce on it, 7 times on others"
    assert "collective" in remedy("update_actor", [found])


def test_nccl_may_name_a_node_by_another_address():
    mismatches = parse(as_json({0: {"AllReduce": 7}, 1: {"AllReduce": 6}}, host="192.168.0.7"))
    one = Process(1, 101, "ray::WorkerDict", host="10.0.0.1")
    assert [found.pid for found in blame(mismatches, [one])] == [101]
    assert blame(mismatches, [one, Process(0, 101, "ray::WorkerDict", host="10.0.0.9")]) == ()


def test_the_id_alone_does_not_name_a_process_of_another_node():
    mismatches = parse(as_json({0: {"AllReduce": 7}, 1: {"AllReduce": 6}}, host="10.0.0.1"))
    other = Process(0, 101, "ray::WorkerDict", host="10.0.0.9")  # rank 1 has not answered
    assert blame(mismatches, [other], ["10.0.0.9", "10.0.0.1"]) == ()


def test_processes_of_one_id_on_two_nodes_lag_both():
    given = as_json({0: {"AllReduce": 6}, 1: {"AllReduce": 6}, 2: {"AllReduce": 7}}, host="10.0.0.1")
    mismatches = parse(given.replace("101", "100").replace('"host": "10.0.0.1"', '"host": "10.0.0.2"', 1))
    ranks = [Process(rank, 100, "ray::WorkerDict", host=f"10.0.0.{2 - rank}") for rank in (0, 1)]
    assert {found.rank for found in blame(mismatches, ranks)} == {0, 1}


def test_communicators_of_other_programs_are_not_the_jobs():
    assert blame(parse(TEXT), [Process(0, 7, "ray::WorkerDict")]) == ()
