"""`megatron-sspo serve`: runs the servers of one machine, for a trainer on another one."""

import asyncio
import logging
import os
from dataclasses import replace
from pathlib import Path

from megatron_sspo.config.resolve import check_options
from megatron_sspo.data.tokenizer import load_tokenizer
from megatron_sspo.errors import UserError
from megatron_sspo.files.writing import write_atomically
from megatron_sspo.processes.console import Display
from megatron_sspo.processes.ports import check_address, check_free
from megatron_sspo.rollout.engines import sglang
from megatron_sspo.rollout.servers import server_program
from megatron_sspo.rollout.servers.build import build_servers
from megatron_sspo.rollout.servers.options import Options
from megatron_sspo.rollout.servers.pool import ServerPool
from megatron_sspo.rollout.servers.process import find_python
from megatron_sspo.run import Run

URLS = "urls"  # file in the given folder, written when all servers answer
_WATCH_SECONDS = 1.0

_log = logging.getLogger(__name__)


def serve(run: Run, *, address: str, first_port: int, folder: Path) -> None:
    """Starts the servers of a run's options on one machine, and restarts servers that end, until it is stopped.

    The servers start without weights; the trainer sends them. A restarted server keeps its URL; the trainer detects
    the restart and sends the weights again. The servers' API key is taken from the environment.

    Args:
        address: the address of this machine to listen on.
        first_port: the port of the first server; the others have the next ports.
        folder: folder for logs and for the file `urls`, with one URL per line, written when all servers answer.

    Raises:
        UserError: there is no key or no model, an address or port cannot be used, a server does not start, or a server
            ends more than `max_restarts` times.
    """
    key = os.environ.get(server_program.KEY, "")
    if not key:
        raise UserError(f"{server_program.KEY} is not set: set the same key for the servers and for the trainer")
    check_options(sglang.engine, run.rollouts.options, "the engine 'sglang'", num_given=1)
    given = Options(**run.rollouts.options)
    options = replace(
        given,
        address=address,
        run_folder=folder,
        urls=(),
        model_dtype=given.model_dtype or run.model.dtype,
        routes=given.routes or run.routing_replay == "R3",
        adapters=run.lora,
    )
    servers = build_servers(options, Path(run.model.path), find_python(options.python), key, first_port)
    for number in range(len(servers)):
        check_free(address, first_port + number, "choose others with --address and --port")
    check_address(address, "name one with --address")
    # a folder without a model gives a clear error here, before servers start
    load_tokenizer(Path(run.model.path))
    (folder / URLS).unlink(missing_ok=True)
    Display(silent=False)  # shows the pool's log
    processes = [server.process for server in servers if server.process is not None]
    try:
        pool = ServerPool(
            servers,
            key=key,
            min_servers=len(servers),
            max_restarts=options.max_restarts,
            health_seconds=options.health_seconds,
        )
        pool.start()
        asyncio.run(_watch(pool, folder / URLS))
    finally:
        for process in processes:
            process.stop()


async def _watch(pool: ServerPool, urls: Path) -> None:
    try:
        await pool.await_all()
        write_atomically(urls, "".join(f"{server.client.url}\n" for server in pool.servers))
        _log.info("%s", ", ".join(server.client.url for server in pool.servers))
        while True:
            await pool.check(generate_token=False)
            for client in pool.restart_failed():
                await client.close()
            await asyncio.sleep(_WATCH_SECONDS)
    finally:
        for server in pool.servers:
            await server.client.close()
