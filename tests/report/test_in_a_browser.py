"""The page in a real Chromium: it draws, says nothing on its console, and runs nothing that a run has said."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import browser
import pytest
from browser import Browser
from make_report import make_group, make_report, make_run

from cloudrl.logs.causes import Cause, Sighting
from cloudrl.report import Report, Sample, Table
from cloudrl.report.page import page
from cloudrl.report.server import ReportServer
from cloudrl.verl.metrics import Step

pytestmark = [
    pytest.mark.io,
    pytest.mark.skipif(
        browser.program() is None,
        reason=f"the page is not looked at: there is no {browser.PACKAGE}; apt-get install it",
    ),
]
HOSTILE = (
    "<script>window.ran = 1</script>", "</script><script>window.ran = 2</script>",
    "<img src=x onerror='window.ran = 3'>", "<!--<script>", "]]>", "javascript:window.ran=4", "\u2028window.ran = 5",
    "'\"><svg onload=window.ran=6>", "__proto__",
)  # fmt: skip
SAMPLES = "#section-samples .pages .controls"
DRAWN = "[...document.querySelectorAll('#page canvas')].length"


@pytest.fixture
def chromium(tmp_path: Path) -> Iterator[Browser]:
    with Browser(tmp_path / "profile") as opened:
        yield opened


def write(folder: Path, report: Report) -> str:
    path = folder / "report.html"
    path.write_text(page(report), encoding="utf-8")
    return path.as_uri()


def inked(card: str) -> str:
    """Whether something is painted on the canvas of the first card whose heading begins so."""
    return f"""(() => {{
      const cards = [...document.querySelectorAll("figure")];
      const found = cards.find((each) => each.textContent.startsWith({json.dumps(card)}));
      const canvas = found?.querySelector("canvas");
      if (!canvas) return false;
      return canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.some(Boolean);
    }})()"""


def test_it_draws_offline_and_says_nothing(chromium: Browser, tmp_path: Path) -> None:
    url = write(tmp_path, make_report("first", "second", steps=60))
    chromium.open(url)
    assert [chromium.evaluate(inked(card)) for card in ("Reward", "Validation", "KL", "Entropy")] == [True] * 4
    chromium.evaluate("document.querySelector('.tall').scrollIntoView()")
    chromium.wait(inked("Seconds a step, first"))
    cards = "[...document.querySelectorAll('figure')]"
    chromium.evaluate("document.querySelector('#usage-0').open = true")
    for card in ("GPU busy", "Disk of the checkpoints"):
        found = f"{cards}.find((each) => each.textContent.startsWith('{card}'))"
        chromium.evaluate(f"{found}.scrollIntoView()")
        chromium.wait(inked(card))
    text = chromium.evaluate("document.body.innerText")
    for said in ("60 of 60", "What differs between the runs", "1e-6", "2e-6", "10.0.0.2", "What is 3 + 4?"):
        assert said in text
    assert chromium.evaluate(r"/\d+ min \d\d s/.test(document.querySelector('.runs tbody tr').innerText)")
    assert chromium.errors == []
    assert [each for each in chromium.requests if each != url] == []


def test_what_is_chosen_changes_the_curves(chromium: Browser, tmp_path: Path) -> None:
    chromium.open(write(tmp_path, make_report("first", "second", steps=60)))
    legend = "document.querySelector('figure .legend').textContent"
    assert "second" in chromium.evaluate(legend)
    chromium.evaluate("document.querySelectorAll('.runs input')[1].click()")
    chromium.wait(f"!{legend}.includes('second')")
    chromium.evaluate("document.querySelector('.sticky input[type=checkbox]').click()")
    chromium.evaluate("{const axis = document.querySelector('.sticky select'); axis.value = 'time';"
                      " axis.dispatchEvent(new Event('change'))}")  # fmt: skip
    chromium.evaluate("document.querySelector('details[id^=group]').open = true")
    chromium.wait("document.querySelector('details[id^=group] figure')")
    chromium.evaluate("document.querySelector('details[id^=group] figure').scrollIntoView()")
    chromium.wait("document.querySelector('details[id^=group] canvas')")
    assert chromium.errors == []


def test_a_run_of_ten_thousand_steps(chromium: Browser, tmp_path: Path) -> None:
    chromium.open(write(tmp_path, make_report(steps=10_000)))
    assert chromium.evaluate(inked("Reward"))
    chromium.evaluate("scrollTo(0, document.body.scrollHeight)")
    assert chromium.evaluate("scrollY") > 1000
    assert chromium.errors == []


@pytest.mark.parametrize("name", ["group-{}/x", "one/{}", "{}"])
def test_a_step_with_fifty_thousand_metrics(chromium: Browser, tmp_path: Path, name: str) -> None:
    step = Step(1, {"critic/score/mean": 0.5, **{name.format(place): 1.0 for place in range(50_000)}})
    config = {name.format(place): "x" for place in range(50_000)}
    chromium.open(write(tmp_path, Report((replace(make_run(steps=1), steps=(step,), config=config),))))
    assert chromium.evaluate("document.body.innerText.includes('All metrics')")
    assert chromium.evaluate(inked("Reward"))
    assert chromium.errors == []


def test_the_overview_is_of_all_steps(chromium: Browser, tmp_path: Path) -> None:
    def step(number: int) -> Step:
        reward = 0.9 if number == 7 else 0.1 + number / 1e5
        return Step(number, {"critic/score/mean": reward, "timing_s/step": 70.0 if number % 10 == 0 else 10.0})

    run = replace(make_run(steps=1), steps=tuple(map(step, range(1, 10_001))))
    chromium.open(write(tmp_path, Report((run,))))
    cells = chromium.evaluate("[...document.querySelectorAll('.runs td')].map((cell) => cell.textContent)")
    assert (cells[2], cells[4]) == ("0.2 (best 0.9)", "10 s")


def test_runs_of_one_group_are_a_mean_with_its_spread(chromium: Browser, tmp_path: Path) -> None:
    single = make_run("baseline", seed=9, steps=60)
    chromium.open(write(tmp_path, Report((*make_group("seed-1", "seed-2", "seed-3"), single))))
    assert chromium.evaluate("document.querySelector('figure .legend').innerText").startswith(
        "seed, 3 runs: mean, band ± standard deviation"
    )
    rows = chromium.evaluate("[...document.querySelectorAll('.runs tbody tr')].map((row) => row.innerText)")
    assert [row.split()[0] for row in rows] == ["seed", "seed-1", "seed-2", "seed-3", "baseline"]
    assert [" ± " in row for row in rows] == [True, False, False, False, False]
    assert chromium.evaluate(inked("Reward"))
    chromium.evaluate("{const kind = document.getElementById('spread'); kind.value = 'range';"
                      " kind.dispatchEvent(new Event('change'))}")  # fmt: skip
    chromium.wait("document.querySelector('figure .legend').innerText.includes('band from min to max')")
    assert " to " in chromium.evaluate("document.querySelector('.runs tbody tr').innerText")
    chromium.evaluate("document.getElementById('show-group-0').click()")
    chromium.wait("document.querySelector('figure .legend').innerText.trim().startsWith('baseline')")
    assert chromium.errors == []


def test_a_part_of_a_step_has_one_colour_in_all_runs(chromium: Browser, tmp_path: Path) -> None:
    parts = ({"gen": 5.0, "update_actor": 1.0, "step": 6.0}, {"gen": 1.0, "update_actor": 5.0, "step": 6.0})
    steps = [(Step(1, {f"timing_s/{part}": value for part, value in each.items()}),) for each in parts]
    runs = tuple(replace(make_run(str(place)), steps=each) for place, each in enumerate(steps))
    chromium.open(write(tmp_path, Report(runs)))
    chromium.evaluate("document.querySelector('.tall').scrollIntoView()")
    chromium.wait("document.querySelectorAll('.tall canvas').length === 2")
    colours = chromium.evaluate("""[...document.querySelectorAll("figure:has(.tall) .legend")].map((legend) =>
      Object.fromEntries([...legend.children].map((part) =>
        [part.children[1].textContent, part.children[0].style.background])))""")
    assert colours[0] == colours[1]
    assert len(set(colours[0].values())) == len(colours[0]) == 2


@pytest.mark.parametrize("slow", [{1}, {1, 11}, set()])
def test_a_first_step_that_loads_does_not_hide_the_others(chromium: Browser, tmp_path: Path, slow: set[int]) -> None:
    steps = [
        Step(number, {"timing_s/gen": 2.0, "timing_s/step": 80.0 if number in slow else 2.5}) for number in range(1, 21)
    ]
    chromium.open(write(tmp_path, Report((replace(make_run(), steps=tuple(steps)),))))
    chromium.evaluate("document.querySelector('.tall').scrollIntoView()")
    chromium.wait("document.querySelector('.tall canvas')")
    said = "".join(f"; cut off: step {number}, 80 s" for number in sorted(slow))
    assert (
        chromium.evaluate("document.querySelector('figure:has(.tall) figcaption').textContent")
        == f"Seconds a step{said}"
    )
    top = chromium.evaluate("cards.find((card) => card.title.startsWith('Seconds')).chart.scales.y.max")
    assert 2.5 < top < 4


def test_the_log_of_a_failed_run_is_open_at_its_end(chromium: Browser, tmp_path: Path) -> None:
    lines = tuple(f"line {number}" for number in range(200))
    chromium.open(write(tmp_path, Report((make_run(steps=3, status="FAILED", log=lines),))))
    chromium.wait("document.querySelector('#log-0').open && document.querySelector('#log-0 pre').scrollTop > 0")
    chromium.open(write(tmp_path, make_report(steps=3)))
    assert not chromium.evaluate("document.querySelector('#log-0').open")


PAIRS = "[...document.querySelectorAll('.pair')].map((each) => each.innerText)"


def side_by_side(chromium: Browser) -> None:
    chromium.evaluate("{const view = document.getElementById('samples-view'); view.value = 'pairs';"
                      " view.dispatchEvent(new Event('input'))}")  # fmt: skip


def test_two_steps_side_by_side(chromium: Browser, tmp_path: Path) -> None:
    chromium.open(write(tmp_path, make_report(steps=20)))
    side_by_side(chromium)
    shown = chromium.evaluate(PAIRS)
    assert "30 of 30 prompts on both sides, page 1 of 3" in chromium.evaluate("document.body.innerText")
    assert "steps 10, 20: 1 answer each of 100 prompts; 30 of them" in chromium.evaluate("document.body.innerText")
    assert all("step 10" in each and "step 20" in each and "score " in each for each in shown)
    order = "document.querySelector('.pages select[aria-label=Order]')"
    chromium.evaluate(f"{order}.value = 'gain'; {order}.dispatchEvent(new Event('input'))")
    assert "score 0 → 1" in chromium.evaluate(PAIRS)[0]
    chromium.evaluate(f"{order}.value = 'loss'; {order}.dispatchEvent(new Event('input'))")
    assert "score 1 → 0" in chromium.evaluate(PAIRS)[0]


def test_pairs_by_keyboard(chromium: Browser, tmp_path: Path) -> None:
    chromium.open(write(tmp_path, make_report(steps=20)))
    side_by_side(chromium)
    focused = "[...document.querySelectorAll('.pair')].indexOf(document.activeElement)"
    chromium.evaluate("document.querySelector('.pair').focus()")
    places = []
    for key in ("ArrowDown", "ArrowDown", "ArrowUp", "ArrowRight", "ArrowUp", "ArrowDown", "ArrowLeft"):
        for kind in ("rawKeyDown", "keyUp"):
            chromium.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)
        page = chromium.evaluate("document.querySelector('.pages [role=status]').innerText.split('page ')[1]")
        places.append((chromium.evaluate(focused), page))
    first, second = "1 of 3", "2 of 3"
    assert places == [(1, first), (2, first), (1, first), (0, second), (0, second), (1, second), (0, first)]


def test_two_runs_side_by_side(chromium: Browser, tmp_path: Path) -> None:
    def answer(step: int, prompt: str, text: str, score: float) -> Sample:
        return Sample(step, prompt, text, score, "", {}, prompt)

    one = (answer(5, "a?", "old", 0.0), answer(10, "a?", "left", 0.25), answer(10, "a?", "left, too", 0.75))
    other = (answer(10, "a?", "right", 1.0), answer(10, "b?", "alone", 1.0), answer(15, "a?", "newer", 1.0))
    runs = tuple(make_run(name, steps=15, samples=each) for name, each in (("one", one), ("other", other)))
    chromium.open(write(tmp_path, Report(runs)))
    side_by_side(chromium)
    [pair] = chromium.evaluate(PAIRS)
    for said in ("score 0.5 → 1", "one, step 10", "2 answers, mean score 0.5", "left, too", "other, step 10", "right"):
        assert said in pair
    assert "alone" not in pair
    assert "1 of 1 prompts on both sides, 1 only on the right" in chromium.evaluate("document.body.innerText")


def test_samples_are_searched_and_sorted(chromium: Browser, tmp_path: Path) -> None:
    chromium.open(write(tmp_path, make_report(steps=20)))

    def set_to(place: int, value: str) -> list[str]:
        chromium.evaluate(
            f"{{const box = document.querySelectorAll('{SAMPLES} :is(input, select)')[{place}];"
            f" box.value = {json.dumps(value)}; box.dispatchEvent(new Event('input'))}}"
        )
        shown: list[str] = chromium.evaluate("[...document.querySelectorAll('.sample')].map((each) => each.innerText)")
        return shown

    worst, best = set_to(1, "low")[0], set_to(1, "high")[0]
    assert "score 0" in worst
    assert "score 1" in best
    found = set_to(0, "is 3 + 4?")
    assert len(found) == 2
    assert all("What is 3 + 4?" in each for each in found)
    assert len(set_to(2, "20")) == 1


def test_what_a_run_says_is_text(chromium: Browser, tmp_path: Path) -> None:
    samples = tuple(Sample(1, text, text, 1.0, text, {text: text}) for text in HOSTILE)
    runs = tuple(
        make_run(
            text, steps=3, samples=samples, status=text, job=text, config={text: str(place)}, notes=(text,),
            cause=Cause(text, None, 1, text, text, text, text, (text,), (Sighting(text, None, 0, text),)),
            tables=(Table(text, (text,), ((text,),)),),
        )
        for place, text in enumerate(HOSTILE)
    )  # fmt: skip
    steps = runs[0].steps
    renamed = [type(step)(step.step, {**step.metrics, **dict.fromkeys(HOSTILE, 1.0)}) for step in steps]
    hostile = (type(runs[0])(**{**vars(runs[0]), "steps": tuple(renamed)}), *runs[1:])
    chromium.open(write(tmp_path, Report(hostile)))
    chromium.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    chromium.evaluate("document.querySelector('figure').scrollIntoView()")
    chromium.wait(f"{DRAWN} > 0")
    assert chromium.evaluate("window.ran === undefined")
    assert chromium.evaluate("document.querySelectorAll('#page script, #page img, #page svg').length") == 0
    assert all(text.strip() in chromium.evaluate("document.body.textContent") for text in HOSTILE)
    assert chromium.errors == []


def test_its_policy_stops_a_script_that_is_not_its_own(chromium: Browser, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(page(make_report(steps=3)).replace("<main", "<script>window.ran = 1</script><main"))
    chromium.open(path.as_uri())
    assert chromium.evaluate("window.ran === undefined")
    assert any("Content Security Policy" in each for each in chromium.errors)


@pytest.fixture
def reports(chromium: Browser) -> Iterator[list[Report]]:
    """What a server has to show, the last of it, once Chromium has opened its page."""
    shown = [make_report(steps=30)]
    with ReportServer(lambda: shown[-1]) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        chromium.open(server.url)
        yield shown
        server.shutdown()
    assert chromium.errors == []


def refresh(chromium: Browser, reports: list[Report], steps: int) -> None:
    reports.append(make_report(steps=steps))
    chromium.evaluate("refresh(1e9)")
    chromium.wait(f"document.body.innerText.includes('{steps} of {steps}')")


def test_a_served_page_goes_on_after_a_click(chromium: Browser, reports: list[Report]) -> None:
    assert "30 of 30" in chromium.evaluate("document.body.innerText")
    for steps, control in enumerate(("smoothing", "axis", "log", "show-0"), 31):
        chromium.evaluate(
            f"{{const box = document.getElementById('{control}'); box.focus(); box.click();"
            " box.dispatchEvent(new Event('change', { bubbles: true }))}"
        )
        refresh(chromium, reports, steps)
        focused = chromium.evaluate("document.activeElement.id")
        assert focused == ("" if control == "axis" else control)


def test_a_served_page_waits_for_somebody_who_types(chromium: Browser, reports: list[Report]) -> None:
    chromium.evaluate("document.querySelector('input[aria-label=\"Filter metrics\"]').focus()")
    reports.append(make_report(steps=31))
    chromium.evaluate("refresh(1e9)")
    assert "30 of 30" in chromium.evaluate("document.body.innerText")


def test_a_served_page_keeps_what_was_chosen(chromium: Browser, reports: list[Report]) -> None:
    chromium.evaluate(
        """{
      const type = (box, text) => { box.value = text; box.dispatchEvent(new Event("input")); };
      const [search, order] = document.querySelectorAll("SAMPLES :is(input, select)");
      type(search, "what");
      type(order, "low");
      document.querySelectorAll(".controls button")[1].click();
      document.querySelector("#group-actor").open = true;
      const configuration = document.querySelector("#configuration-0");
      configuration.open = true;
      type(configuration.querySelector("input"), "nnodes");
      scrollTo(0, 0);
      cards[0].chart.setScale("x", { min: 5, max: 9 });
    }""".replace("SAMPLES", SAMPLES)
    )
    chromium.wait("document.querySelector('#group-actor figure')")
    chromium.evaluate("scrollTo(0, document.body.scrollHeight)")
    looked = """[
      ...[...document.querySelectorAll("SAMPLES :is(input, select)")].map((box) => box.value),
      document.querySelector("[role=status]").textContent,
      ...[...document.querySelectorAll("details")].map((each) => each.open),
      document.querySelector("#configuration-0 table").innerText,
      document.querySelectorAll("#group-actor figure").length,
    ]""".replace("SAMPLES", SAMPLES)
    before, scrolled = chromium.evaluate(looked), chromium.evaluate("scrollY")
    assert "60 of 60 answers, page 2 of 5" in before
    refresh(chromium, reports, 31)
    assert chromium.evaluate(looked) == before
    assert abs(chromium.evaluate("scrollY") - scrolled) < 50
    chromium.evaluate("scrollTo(0, 0)")
    chromium.wait("cards[0].chart && cards[0].chart.scales.x.min === 5 && cards[0].chart.scales.x.max === 9")


def test_a_served_page_is_not_rebuilt_for_the_same_answer(chromium: Browser, reports: list[Report]) -> None:
    chromium.evaluate("window.shown = document.querySelector('figure'); 0")
    chromium.evaluate("refresh(1e9)")
    assert chromium.evaluate("window.shown.isConnected")
    refresh(chromium, reports, 31)
    assert not chromium.evaluate("window.shown.isConnected")
