"""Folders of runs with chosen metrics, as a training run leaves them, and a server of their live page."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from aiohttp.test_utils import TestServer

from sspo_lab.folder import write_sweep
from sspo_lab.grid import Sweep
from sspo_lab.live.server import make_app
from sspo_lab.values import read_vary


def make_sweep(folder: Path, *vary: str, seeds: int = 1) -> Sweep:
    """Makes the folder of a sweep without runs."""
    sweep = Sweep(recipe="recipe.py", run={"class": "Run", "name": "run"}).extended(dict(map(read_vary, vary)), seeds)
    write_sweep(folder, sweep)
    return sweep


def make_run(
    folder: Path, values: Sequence[float], *, num_updates: int | None = None, has_model: bool = True, **more: float
) -> None:
    """Makes a run's folder with pass@1 of one set before each update and at the end; by default finished."""
    folder.mkdir(parents=True)
    updates = len(values) - 1
    evaluation = {"class": "Evaluation"}
    config = {"class": "Run", "num_updates": updates if num_updates is None else num_updates, "evaluation": evaluation}
    (folder / "config.json").write_text(json.dumps(config))
    rows = [{"update": update, "sums/pass@1": value, **more} for update, value in enumerate(values)]
    append(folder, *rows, name="evaluations.jsonl")
    append(folder, *({"update": update, "reward/mean": update / 10} for update in range(1, updates + 1)))
    if has_model:
        (folder / "model").mkdir()
        (folder / "model" / "config.json").write_text("{}")


def append(folder: Path, *rows: Any, name: str = "metrics.jsonl") -> None:
    """Appends rows as a run does."""
    with (folder / name).open("a") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))


HOSTILE = "<script>document.title='owned'</script></textarea><img src=x onerror=\"document.title='owned'\">"


def metrics(update: int, **changes: Any) -> dict[str, Any]:
    """Returns a row of metrics.jsonl; every second update is on-policy."""
    return {
        "update": update,
        "reward/mean": update / 10,
        "policy/entropy": 1.0 / update,
        "policy/kl_old": 0.0 if update % 2 else 1e-3,
        "policy/grad_norm": 1.5,
        "token_weight/below_half": 0.25,
        "token_weight/zero": 0.125,
        "seconds/rollout": 2.0,
        "seconds/update": 1.0,
    } | changes


def write_run(folder: Path, num_updates: int, *, text: str = "1+1=2") -> Path:
    """Makes the folder of a run; the text is in its rollouts, its prompts, its answers and the names of its parts."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"num_updates": 100}))
    append(folder, *map(metrics, range(1, num_updates + 1)))
    evaluation = {"gsm8k/pass@1": 0.5, "gsm8k/pass@1/low": 0.4, "gsm8k/pass@1/high": 0.6, "gsm8k/reward": 1.0}
    append(folder, {"update": 0, **evaluation}, name="evaluations.jsonl")
    rollout = {
        "update": num_updates,
        **dict.fromkeys(("id", "prompt", "gold"), text),
        "reward": 1.5,
        "parts": {text: 1.0, "format": 0.5},
        "advantage": 0.75,
        "sequence_weight": 0.98,
        "tokens": 3,
        "finish_reason": "stop",
        "pieces": [["before ", 1.0], [text, 0.25], [" after", None]],
    }
    append(folder, rollout, name="rollouts.jsonl")
    answer = {"text": text, "tokens": 3, "turns": 1, "finish_reason": "stop", "reward": {text: 1.0}}
    answers = {"set": "gsm8k", "id": "x:1", "prompt": text, "gold": text, "answers": [answer]}
    append(folder, answers, name="evaluation_responses.jsonl")
    return folder


@contextlib.contextmanager
def serving(folders: Sequence[Path], *middlewares: Any) -> Iterator[str]:
    """Serves the page of runs in a thread, and yields its address."""
    app = make_app(folders)
    app.middlewares.extend(middlewares)
    loop, server = asyncio.new_event_loop(), TestServer(app)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(server.start_server(), loop).result(60)
        yield str(server.make_url("/"))
        asyncio.run_coroutine_threadsafe(server.close(), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
