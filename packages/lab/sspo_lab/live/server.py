"""Serves the live page of runs on this machine alone. It only reads, and it keeps nothing between two requests."""

import asyncio
import json
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from aiohttp import web

from sspo_lab.folder import EVALUATIONS, METRICS
from sspo_lab.live.rows import first_lines, read_part
from sspo_lab.trainer import LabError

ADDRESS = "127.0.0.1"
_PAGE = Path(__file__).with_name("page")
_PAGES = {
    "/": ("index.html", "text/html"),
    "/live.js": ("live.js", "text/javascript"),
    "/live.css": ("live.css", "text/css"),
}
# The files of a run: those that grow, of which the page gets what is new, and those that are replaced.
_GROWING = {"metrics": METRICS, "evaluations": EVALUATIONS}
_REPLACED = {"rollouts": "rollouts.jsonl", "answers": "evaluation_responses.jsonl"}
# A page of another site can make its own name lead to this machine (DNS rebinding); the browser still sends that name.
_HOSTS = ("127.0.0.1", "localhost")
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def serve(folders: Sequence[Path], port: int) -> None:
    """Serves the page of these runs until Ctrl-C.

    Args:
        folders: the folders of the runs.
        port: the port of 127.0.0.1; 0 takes a free one.

    Raises:
        LabError: a folder is not the folder of a run, or the port is not free.
        KeyboardInterrupt: Ctrl-C.
    """
    for folder in folders:
        if not any((folder / name).exists() for name in ("config.json", METRICS)):
            raise LabError(
                f"{folder} has neither config.json nor {METRICS}: name the folder of a run that has begun, or for a "
                "sweep the folders of its runs"
            )
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # closed connections may be in TIME_WAIT
        try:
            listener.bind((ADDRESS, port))
            listener.listen()
        except (OSError, OverflowError) as error:
            raise LabError(
                f"port {port} of {ADDRESS} is not free ({error}): choose another with --port, or 0 for a free one"
            ) from error
        asyncio.run(_serve(folders, listener))


def make_app(folders: Sequence[Path]) -> web.Application:
    """Returns the application: the three files of the page, and the lines of the runs' files."""

    async def runs(_: web.Request) -> web.StreamResponse:
        return web.json_response(await asyncio.to_thread(_describe, folders))

    async def lines(request: web.Request) -> web.StreamResponse:
        number = request.query.get("run", "")
        if not number.isdecimal() or len(number) > 6 or int(number) >= len(folders):
            raise web.HTTPNotFound(text=f"there is no run {number!r}")
        name, known = request.path.removeprefix("/"), request.query.get("known", "")
        try:  # in a thread, because a file system of a cluster may take its time
            body, about = await asyncio.to_thread(_lines, folders[int(number)], name, known)
        except (LabError, OSError) as error:
            raise web.HTTPInternalServerError(text=str(error)) from error
        return web.Response(body=body, content_type="text/plain", charset="utf-8", headers=about)

    async def page(request: web.Request) -> web.StreamResponse:
        name, kind = _PAGES[request.path]
        return web.Response(text=(_PAGE / name).read_text(encoding="utf-8"), content_type=kind, charset="utf-8")

    app = web.Application(middlewares=[_check_host])
    app.on_response_prepare.append(_add_headers)
    for path in _PAGES:
        app.router.add_get(path, page)
    app.router.add_get("/runs", runs)
    for name in (*_GROWING, *_REPLACED):
        app.router.add_get(f"/{name}", lines)
    return app


async def _serve(folders: Sequence[Path], listener: socket.socket) -> None:
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # no traceback of what is not HTTP
    runner = web.AppRunner(make_app(folders), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.SockSite(runner, listener).start()
        print(f"http://{ADDRESS}:{listener.getsockname()[1]}   (Ctrl-C ends the server)", flush=True)
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


@web.middleware
async def _check_host(request: web.Request, handler: Handler) -> web.StreamResponse:
    # The port is not compared, because a tunnel may begin at another port.
    if request.headers.get("Host", "").partition(":")[0].lower() not in _HOSTS:
        raise web.HTTPForbidden(text="this page is served under the names 127.0.0.1 and localhost only")
    return await handler(request)


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)


def _lines(folder: Path, name: str, known: str) -> tuple[bytes, dict[str, str]]:
    """Returns the lines of a run's file that the page does not know, and headers that say what they are.

    `known` is the header X-Known of the last answer; "" at first.
    """
    if name in _GROWING:
        part = read_part(folder / _GROWING[name], known)
        is_new, has_more = part.is_restarted, part.has_more
        return part.lines, {"X-Known": part.cursor, "X-New": str(int(is_new)), "X-More": str(int(has_more))}
    path = folder / _REPLACED[name]
    if not path.exists():
        return b"", {"X-Known": "none", "X-New": str(int(known != "none"))}
    status = path.stat()
    version = f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}"
    return b"" if version == known else first_lines(path), {"X-Known": version, "X-New": str(int(version != known))}


def _describe(folders: Sequence[Path]) -> list[dict[str, Any]]:
    names = [os.path.basename(os.path.realpath(folder)) for folder in folders]
    return [
        {"name": name if names.count(name) == 1 else str(folder), "num_updates": _num_updates(folder)}
        for folder, name in zip(folders, names, strict=True)
    ]


def _num_updates(folder: Path) -> int | None:
    try:
        return json.loads((folder / "config.json").read_text(encoding="utf-8"))["num_updates"]
    except (OSError, ValueError, LookupError, TypeError):  # a run that another program has written
        return None
