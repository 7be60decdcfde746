"""Serves the live page of runs on this machine alone. It only reads, and it keeps nothing between two requests."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from aiohttp import web

from megatron_sspo.errors import UserError
from megatron_sspo.files.reading import read_json
from megatron_sspo.plots.labels import COLOURS, run_label
from megatron_sspo.plots.live import panels, responses
from megatron_sspo.plots.live.following import Part, read_part
from megatron_sspo.processes.output import ignore_malformed_requests
from megatron_sspo.run_folder import metrics_files

ADDRESS, PORT = "127.0.0.1", 8060
_PAGE = Path(__file__).with_name("page")
_FILES = {
    "/": ("index.html", "text/html"),
    "/live.js": ("live.js", "text/javascript"),
    "/live.css": ("live.css", "text/css"),
}
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
Read = Callable[[Path, Mapping[str, str]], dict[str, Any]]


def serve(folders: Sequence[Path], port: int) -> None:
    """Serves the page of these runs until Ctrl-C.

    Args:
        folders: the folders of the runs.
        port: the port of 127.0.0.1; 0 takes a free one.

    Raises:
        UserError: a folder is not the folder of a run, or the port is not free.
        KeyboardInterrupt: Ctrl-C.
    """
    check_folders(folders)
    with _listen(port) as listener:
        asyncio.run(_serve(folders, listener))


def check_folders(folders: Sequence[Path]) -> None:
    """Checks that each folder is the folder of a run, which may have no metrics yet.

    Raises:
        UserError: a folder does not exist, or is not the folder of a run.
    """
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"there is no folder {folder}: name the folder of a run that has begun")
        if not any((folder / name).exists() for name in ("config.json", metrics_files.METRICS)):
            raise UserError(
                f"{folder} has neither config.json nor {metrics_files.METRICS}: name the folder of a run, or for a "
                "sweep the folders of its runs"
            )


def make_app(folders: Sequence[Path]) -> web.Application:
    """Returns the application: the three files of the page, and the runs' data as JSON."""

    def data(read: Read) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            number = request.query.get("run", "")
            if not number.isdecimal() or len(number) > 6 or int(number) >= len(folders):
                raise web.HTTPNotFound(text=f"there is no run {number!r}")
            try:  # in a thread, because a file system of a cluster may take its time
                content = await asyncio.to_thread(read, folders[int(number)], request.query)
            except UserError as error:
                return web.json_response({"error": str(error)}, status=500)
            return web.json_response(content)

        return answer

    async def runs(_: web.Request) -> web.StreamResponse:
        content = {"runs": await asyncio.to_thread(_describe, folders), "panels": panels.describe()}
        return web.json_response(content)

    async def page(request: web.Request) -> web.StreamResponse:
        name, kind = _FILES[request.path]
        return web.Response(text=(_PAGE / name).read_text(encoding="utf-8"), content_type=kind, charset="utf-8")

    app = web.Application(middlewares=[_check_host])
    app.on_response_prepare.append(_add_headers)
    for path in _FILES:
        app.router.add_get(path, page)
    app.router.add_get("/runs", runs)
    app.router.add_get("/metrics", data(_metrics))
    app.router.add_get("/evaluations", data(_evaluations))
    app.router.add_get("/rollouts", data(responses.read_rollouts))
    app.router.add_get("/answers", data(responses.read_answers))
    return app


async def _serve(folders: Sequence[Path], listener: socket.socket) -> None:
    ignore_malformed_requests()
    runner = web.AppRunner(make_app(folders), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.SockSite(runner, listener).start()
        print(f"http://{ADDRESS}:{listener.getsockname()[1]}   (Ctrl-C ends the server)", flush=True)
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


def _listen(port: int) -> socket.socket:
    """Returns a socket that listens on this machine alone.

    Raises:
        UserError: the port is out of range, is in use, or is reserved for the administrator.
    """
    if not 0 <= port < 1 << 16:
        raise UserError(f"--port is {port}: choose a number up to 65,535, or 0 for a free port")
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # closed connections may be in TIME_WAIT
    try:
        listener.bind((ADDRESS, port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise UserError(
            f"port {port} of {ADDRESS} is not free ({error.strerror}): choose another with --port, or 0 for a free one"
        ) from error
    return listener


@web.middleware
async def _check_host(request: web.Request, handler: Handler) -> web.StreamResponse:
    # The port is not compared, because a tunnel may begin at another port.
    if request.headers.get("Host", "").partition(":")[0].lower() not in _HOSTS:
        raise web.HTTPForbidden(text="this page is served under the names 127.0.0.1 and localhost only")
    return await handler(request)


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)


def _describe(folders: Sequence[Path]) -> list[dict[str, Any]]:
    return [
        {
            "name": run_label(folder, folders),
            "colour": COLOURS[number % len(COLOURS)],
            "round": number // len(COLOURS),  # of the colours
            "num_updates": _num_updates(folder / "config.json"),
        }
        for number, folder in enumerate(folders)
    ]


def _num_updates(config: Path) -> int | None:
    try:
        found = read_json(config).get("num_updates")
    except UserError:  # a run that another program has written, or whose folder is gone
        return None
    return found if isinstance(found, int) else None


def _metrics(folder: Path, query: Mapping[str, str]) -> dict[str, Any]:
    part = read_part(folder / metrics_files.METRICS, query.get("cursor", ""))
    return _answer(part, [panels.values(row) for row in part.rows])


def _evaluations(folder: Path, query: Mapping[str, str]) -> dict[str, Any]:
    part = read_part(folder / metrics_files.EVALUATIONS, query.get("cursor", ""))
    return _answer(part, [{"update": row["update"], "sets": panels.passes(row)} for row in part.rows])


def _answer(part: Part, rows: Sequence[Any]) -> dict[str, Any]:
    return {
        "rows": rows,
        "cursor": part.cursor,
        "restarted": part.is_restarted,
        "more": part.has_more,
        "skipped": part.skipped,
    }
