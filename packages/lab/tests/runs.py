"""Makes folders of runs, and serves them in a thread."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from aiohttp import web

from packages.lab.tests.folders import append
from sspo_lab.live.server import make_app

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
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start() -> tuple[web.AppRunner, int]:
        app = make_app(folders)
        app.middlewares.extend(middlewares)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return runner, runner.addresses[0][1]

    try:
        runner, port = asyncio.run_coroutine_threadsafe(start(), loop).result(60)
        yield f"http://127.0.0.1:{port}/"
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
