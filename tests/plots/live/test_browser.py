"""The live page in a real browser, Chromium without a window."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from matplotlib import image

from megatron_sspo.plots.labels import COLOURS
from tests.plots.live.runs import HOSTILE, append, metrics, serving, write_run

pytestmark = pytest.mark.browser

_OPTIONS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --window-size=1400,1400"
)


def browse(address: str, profile: Path, *options: str, seconds: int = 10) -> str:
    """Opens a page in a new browser and returns what it prints; `seconds` pass in the page, and fewer outside of it."""
    browser = shutil.which("chromium")
    if browser is None:
        pytest.fail("chromium is missing: make install-browser", pytrace=False)
    command = [browser, *_OPTIONS.split(), f"--user-data-dir={profile}", f"--virtual-time-budget={1000 * seconds}"]
    done = subprocess.run(
        [*command, *options, address], capture_output=True, text=True, timeout=300, check=True, encoding="utf-8"
    )
    return done.stdout


def dom(address: str, profile: Path, **options: Any) -> str:
    return browse(address, profile, "--dump-dom", **options)


def curves(dom: str, colour: str) -> list[str]:
    """Returns the paths of the panels that have the colour, in their order."""
    (panels,) = re.findall(r'<section id="panels".*?</section>', dom, re.DOTALL)
    return [path for path in re.findall(r"<path [^>]*>", panels) if f'stroke="{colour}"' in path]


def test_curves_of_two_runs_and_their_rollouts(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / "one", 30), write_run(tmp_path / "two", 20, text="1+1=3")]
    with serving(folders) as address:
        found = dom(address, tmp_path / "profile")
    for colour in COLOURS[:2]:
        # 8 numbers of metrics, each thin and thick, and the evaluations; the other panels have no values
        assert len(curves(found, colour)) == 2 * 8 + 1
    lengths = [len(re.findall(r"[ML]", re.findall(r' d="([^"]*)"', curves(found, c)[0])[0])) for c in COLOURS[:2]]
    assert lengths == [30, 20]
    assert "one (AtanLog)" in found and "two (AtanLog)" in found
    assert "update 30 of 100" in found and "update 20 of 100" in found
    assert found.count("no values yet") == 4 and found.count("no values of off-policy updates") == 1
    assert found.count(">update</text>") == 7
    for text, weight in (("before ", 1), ("1+1=2", 0.25), ("1+1=3", 0.25)):
        assert re.search(rf'<span title="weight {weight}"[^>]*>{re.escape(text)}</span>', found), text
    assert '<span class="none"> after</span>' in found
    assert "reward 1.5 = 1+1=2 1 + format 0.5 · advantage 0.75 · sequence weight 0.98 · 3 tokens · stop" in found


def panel_of(dom: str, title: str) -> str:
    """Returns the panel with this title: its caption, its curves and its axes."""
    (found,) = re.findall(rf"<figure><figcaption>{re.escape(title)}<span.*?</figure>", dom, re.DOTALL)
    return found


def test_a_set_has_the_same_line_in_all_runs(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name, 1) for name in ("one", "two")]
    for update in (0, 1):
        append(folders[0], {"update": update, "aime24/pass@1": 0.5, "a/pass@1": 0.5}, name="evaluations.jsonl")
        append(folders[1], {"update": update, "a/pass@1": 0.25}, name="evaluations.jsonl")
    with serving(folders) as address:
        panel = panel_of(dom(address, tmp_path / "profile"), "held-out pass@1, greedy")
    assert ">solid: gsm8k, dashed: aime24, short dashes: a<" in panel
    lines = [re.findall(rf'stroke="{colour}"[^>]* stroke-dasharray="([^"]*)"', panel) for colour in COLOURS[:2]]
    assert lines == [["", "7 3", "3 3"], ["", "3 3"]]


def test_runs_of_one_colour_differ_by_their_width(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / str(number), 2) for number in range(len(COLOURS) + 1)]
    with serving(folders) as address:
        found = dom(address, tmp_path / "profile")
    lines = re.findall(
        rf'stroke="{COLOURS[0]}" stroke-width="([^"]*)"[^>]*stroke-dasharray="([^"]*)"',
        panel_of(found, "tokens of low weight *"),
    )
    assert [dashes for _, dashes in lines] == ["", "7 3"] * 2
    assert lines[0][0] == lines[1][0] < lines[2][0] == lines[3][0]
    (legend,) = re.findall(r'<div id="legend">.*?</header>', found, re.DOTALL)
    widths = re.findall(rf'stroke="{COLOURS[0]}" stroke-width="([^"]*)"', legend)
    assert widths == [lines[0][0], lines[2][0]]


def test_one_large_value_changes_its_own_window_alone(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 0)
    append(run, *(metrics(n, **{"policy/grad_norm": 1e20 if n == 10 else 1.5}) for n in range(1, 101)))
    with serving([run]) as address:
        panel = panel_of(dom(address, tmp_path / "profile"), "gradient norm")
    raw, mean = (re.findall(r"[ML][\d.]+ ([\d.]+)", path) for path in re.findall(r' stroke=[^>]* d="([^"]*)"', panel))
    assert len(raw) == len(mean) == 100
    assert raw[:5] + raw[14:] == mean[:5] + mean[14:] and len(set(raw)) == 2


def test_values_that_differ_by_their_rounding_alone_are_a_line(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 0)
    append(run, *(metrics(n, **{"reward/mean": 1.0 - n % 2 * 2**-53}) for n in range(1, 9)))
    with serving([run]) as address:
        found = dom(address, tmp_path / "profile")
    assert len(re.findall(r"[ML]", re.findall(r' d="([^"]*)"', curves(found, COLOURS[0])[0])[0])) == 8


def test_a_response_that_is_left_out_is_named(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 1)
    append(run, {"prompt": "x" * 5_000_000}, name="rollouts.jsonl")
    with serving([run]) as address:
        found = dom(address, tmp_path / "profile")
    assert "1+1=2</span>" in found and ">a response of more than 4,194,304 bytes is left out<" in found


def test_what_a_model_wrote_is_text(tmp_path: Path) -> None:
    run = write_run(tmp_path / "<b>run", 3, text=HOSTILE)
    with serving([run]) as address:
        found = dom(address, tmp_path / "profile")
    assert "&lt;script&gt;document.title='owned'&lt;/script&gt;&lt;/textarea&gt;&lt;img src=x" in found
    assert "<title>&lt;b&gt;run (AtanLog) – megatron-sspo</title>" in found
    assert "<img" not in found and "<b>" not in found and found.count("<script") == 1


def test_the_page_grows_while_the_run_goes_on(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 1)
    (run / "evaluations.jsonl").unlink()
    asked: list[str] = []

    @web.middleware
    async def train(request: web.Request, handler: Any) -> web.StreamResponse:
        response = await handler(request)
        if request.path == "/metrics":
            asked.append(request.query["cursor"])
            append(run, metrics(len(asked) + 1))
        return response

    with serving([run], train) as address:
        found = dom(address, tmp_path / "profile")
    assert len(asked) >= 3 and len(set(asked)) == len(asked), "each request asks for the rows after the last"
    (update,) = re.findall(r"update (\d+) of 100", found)
    assert len(asked) - 1 <= int(update) <= len(asked)
    assert len(re.findall(r"[ML]", re.findall(r' d="([^"]*)"', curves(found, COLOURS[0])[0])[0])) == int(update)


def test_a_run_that_has_only_begun(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    with serving([tmp_path / "run"]) as address:
        found = dom(address, tmp_path / "profile")
    assert found.count("no values yet") == 12 and "no update yet" in found and "no rollouts yet" in found


def test_a_problem_is_shown(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 2)
    append(run, {"no": "update"})
    with serving([run]) as address:
        found = dom(address, tmp_path / "profile")
    assert re.search(r'<p id="problem"[^>]*>run \(AtanLog\): 1 lines cannot be read</p>', found)
    assert "update 2 of 100" in found


def test_a_server_that_is_gone(tmp_path: Path) -> None:
    @web.middleware
    async def end(request: web.Request, handler: Any) -> web.StreamResponse:
        if request.path == "/metrics" and request.transport is not None:
            request.transport.close()
        return await handler(request)

    with serving([write_run(tmp_path / "run", 2)], end) as address:
        found = dom(address, tmp_path / "profile")
    assert "the server does not answer: start it again with the same command" in found


@pytest.mark.parametrize(
    ("title", "name", "first", "step"),
    [
        ("reward", "reward/mean", 0.99999, 1e-7),
        ("reward", "reward/mean", 1e-4, 4e-6),
        ("reward", "reward/mean", 5.61e-4, 1e-6),
        ("reward", "reward/mean", 1e6, 1e3),
        ("gradient norm", "policy/grad_norm", 1e-3, 1e3),  # on a logarithmic axis
    ],
)
def test_marks_of_an_axis_differ(tmp_path: Path, title: str, name: str, first: float, step: float) -> None:
    run = write_run(tmp_path / "run", 0)
    append(run, *(metrics(1 + place, **{name: first + place * step}) for place in range(30)))
    with serving([run]) as address:
        panel = panel_of(dom(address, tmp_path / "profile"), title)
    marks = [float(text) for text in re.findall(r'text-anchor="end">([^<]*)<', panel)]
    assert len(marks) >= 2 and len(set(marks)) == len(marks) and 0.0 not in marks


def test_small_numbers_have_three_digits(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 2)
    rollouts = run / "rollouts.jsonl"
    rollouts.write_text(rollouts.read_text().replace("0.75", "0.00012345").replace("0.98", "0.0002"))
    with serving([run]) as address:
        found = dom(address, tmp_path / "profile")
    assert "advantage 1.23e-4 · sequence weight 2e-4 ·" in found


def test_both_runs_are_seen(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / "one", 30), write_run(tmp_path / "two", 20)]
    with serving(folders) as address:
        browse(address, tmp_path / "profile", f"--screenshot={tmp_path / 'page.png'}")
    pixels = (image.imread(tmp_path / "page.png")[..., :3] * 255).round().astype(int)
    for colour in COLOURS[:2]:
        same = (pixels == [int(colour[i : i + 2], 16) for i in (1, 3, 5)]).all(axis=-1)
        assert same.sum() > 300, colour


@pytest.mark.parametrize("num_updates", [100_000])
def test_a_long_run_stays_light(tmp_path: Path, num_updates: int) -> None:
    run = write_run(tmp_path / "run", num_updates)
    with serving([run]) as address:
        found = dom(address, tmp_path / "profile", seconds=120)
    assert f"update {num_updates} of 100" in found
    assert len(found) < 1_000_000
