"""The live page in a real browser, Chromium without a window."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from packages.lab.tests.folders import append
from packages.lab.tests.runs import HOSTILE, metrics, serving, write_run

pytestmark = pytest.mark.browser

COLOURS = ("#0072B2", "#D55E00")

_OPTIONS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --window-size=1400,1400 --virtual-time-budget=20000 --dump-dom"
)


def dom(address: str, profile: Path) -> str:
    """Opens a page in a new browser, and returns what it shows after some time."""
    browser = shutil.which("chromium")
    if browser is None:
        pytest.fail("chromium is missing: make install-browser", pytrace=False)
    command = [browser, *_OPTIONS.split(), f"--user-data-dir={profile}", address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True, encoding="utf-8")
    return done.stdout


def curves(dom: str, colour: str) -> list[str]:
    """Returns the paths of the panels that have the colour, in their order."""
    (panels,) = re.findall(r'<section id="panels".*?</section>', dom, re.DOTALL)
    return [path for path in re.findall(r"<path [^>]*>", panels) if f'stroke="{colour}"' in path]


def num_points(path: str) -> int:
    return len(re.findall(r"[ML]", re.findall(r' d="([^"]*)"', path)[0]))


def test_curves_and_responses_of_two_runs(tmp_path: Path) -> None:
    """One of them grows meanwhile, and has a line that is no row, numbers that are none, and a response of attacks."""
    folders = [write_run(tmp_path / "<b>one", 30, text=HOSTILE), write_run(tmp_path / "two", 1)]
    append(folders[0], {"no": "update"})
    rollouts = folders[1] / "rollouts.jsonl"
    rollouts.write_text(rollouts.read_text().replace("0.75", "NaN").replace("1+1=2", "NaN is text"))
    append(folders[1], {"prompt": "x" * 5_000_000}, {"prompt": 1}, name="rollouts.jsonl")
    asked: list[str] = []

    @web.middleware
    async def train(request: web.Request, handler: Any) -> web.StreamResponse:
        response = await handler(request)
        if request.path == "/metrics" and request.query["run"] == "1":
            asked.append(request.query["known"])
            append(folders[1], metrics(len(asked) + 1, **{"reward/mean": float("inf")}))
        return response

    with serving(folders, train) as address:
        found = dom(address, tmp_path / "profile")
    # 8 numbers of metrics, each thin and thick, and the evaluations; the other panels have no values
    assert len(curves(found, COLOURS[0])) == 2 * 8 + 1
    assert num_points(curves(found, COLOURS[0])[0]) == 30 and "update 30 of 100" in found
    assert len(asked) >= 3 and len(set(asked)) == len(asked), "each request asks for the rows after the last"
    (update,) = re.findall(r"update (\d+) of 100", found)[1:]
    assert len(asked) - 1 <= int(update) <= len(asked)
    assert num_points(curves(found, COLOURS[1])[0]) == 1, "an infinity is not drawn"
    assert found.count("no values yet") == 4 and ">&lt;b&gt;one: 1 lines cannot be read<" in found
    assert '<span title="weight 0.25"' in found and '<span class="none"> after</span>' in found
    assert "&lt;script&gt;document.title='owned'&lt;/script&gt;&lt;/textarea&gt;&lt;img src=x" in found
    assert "<title>&lt;b&gt;one, two – megatron-sspo</title>" in found
    assert "<img" not in found and "<b>" not in found and found.count("<script") == 1
    facts = "reward 1.5 = NaN is text 1 + format 0.5 · advantage none · sequence weight 0.98 · 3 tokens · stop"
    assert facts in found and "NaN is text</span>" in found
    assert ">a response of more than 4,194,304 bytes is left out<" in found
    assert "a response that cannot be read: was it written by another program?" in found
