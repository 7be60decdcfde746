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


def test_values_that_differ_by_their_rounding_alone_are_a_line(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 0)
    append(run, *(metrics(n, **{"reward/mean": 1.0 - n % 2 * 2**-53}) for n in range(1, 9)))
    with serving([run]) as address:
        found = dom(address, tmp_path / "profile")
    assert len(re.findall(r"[ML]", re.findall(r' d="([^"]*)"', curves(found, COLOURS[0])[0])[0])) == 8


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


def test_marks_of_an_axis_differ(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 0)
    append(run, *(metrics(update, **{"reward/mean": 0.99999 + update / 1e7}) for update in range(1, 30)))
    with serving([run]) as address:
        found = dom(address, tmp_path / "profile")
    (panel,) = re.findall(r'<svg [^>]*aria-label="reward".*?</svg>', found, re.DOTALL)
    marks = re.findall(r'text-anchor="end">([^<]*)<', panel)
    assert len(marks) >= 3 and len(set(marks)) == len(marks)


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
