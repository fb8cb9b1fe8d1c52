"""Time, quota and pages of what the runner tells the server."""

import base64

from dstack_hosts.standin.journal import Clock, Journal, Quota


class _Time:
    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def test_no_two_timestamps_are_equal_and_time_never_goes_back():
    time = _Time(100.0)
    clock = Clock(time)
    first = [clock.next() for _ in range(3)]
    time.now = 101.2
    second = clock.next()
    time.now = 99.0
    assert [*first, second, clock.next()] == [100_001, 100_002, 100_003, 101_000, 101_001]


def test_more_than_a_thousand_events_in_a_second_repeat_the_last_number():
    clock = Clock(_Time(100.0))
    assert [clock.next() for _ in range(1001)][-3:] == [100_999, 100_999, 100_999]


def test_quota_counts_by_the_hour():
    time = _Time(0.0)
    quota = Quota(10, time)
    assert quota.take(10)
    assert not quota.take(1)
    time.now = 3600.0
    assert quota.take(10)


def test_without_a_quota_everything_passes():
    assert Quota(0, _Time(0.0)).take(1 << 40)


def test_a_page_has_what_is_newer_than_the_last_one():
    journal = Journal(Clock(_Time(100.0)))
    journal.state("running")
    page = journal.after(0)
    assert [event["state"] for event in page["job_states"]] == ["running"]
    journal.output(b"one\n")
    journal.state("done", exit_status=0)
    later = journal.after(page["last_updated"])
    assert [(event["state"], event["exit_status"]) for event in later["job_states"]] == [("done", 0)]
    assert [base64.b64decode(event["message"]) for event in later["job_logs"]] == [b"one\n"]
    assert journal.after(later["last_updated"])["job_logs"] == []


def test_colours_stay_in_the_stream_and_leave_the_log():
    journal = Journal(Clock(_Time(100.0)))
    journal.output(b"\x1b[1;31mred\x1b[0m \x1b]0;title\x07plain")
    assert journal.raw(0) == [b"\x1b[1;31mred\x1b[0m \x1b]0;title\x07plain"]
    assert base64.b64decode(journal.after(0)["job_logs"][0]["message"]) == b"red plain"


def test_output_over_the_quota_is_refused():
    journal = Journal(Clock(_Time(100.0)))
    journal.quota = Quota(5, _Time(0.0))
    assert journal.output(b"12345")
    assert not journal.output(b"6")


def test_a_stream_may_start_later():
    time = _Time(100.0)
    journal = Journal(Clock(time))
    journal.output(b"early")
    time.now = 200.0
    journal.output(b"late")
    assert journal.raw(journal.raw_position(150_000)) == [b"late"]
