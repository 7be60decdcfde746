"""`megatron-sspo serve`: the servers of one machine, for a trainer elsewhere."""

import asyncio
import logging
import os
from dataclasses import replace
from pathlib import Path

from megatron_sspo.console import Display
from megatron_sspo.errors import UserError
from megatron_sspo.ports import check_free
from megatron_sspo.resolve import check_options
from megatron_sspo.rollout import serve as server_program
from megatron_sspo.rollout import sglang
from megatron_sspo.rollout.own_servers import own_servers
from megatron_sspo.rollout.server_pool import ServerPool
from megatron_sspo.rollout.servers import find_python
from megatron_sspo.rollout.sglang_options import Options
from megatron_sspo.run import Run
from megatron_sspo.state import write_atomically
from megatron_sspo.tokenizer import load_tokenizer

URLS = "urls"  # in the folder that is given; made when all servers answer
_WATCH_SECONDS = 1.0

_log = logging.getLogger(__name__)


def serve(run: Run, *, address: str, first_port: int, folder: Path) -> None:
    """Starts the servers that a run's options want on one machine, and starts again those that die, until it is ended.

    They hold no weights: the trainer sends them. A server that is started again keeps its URL, and the trainer, which
    has noticed, sends it the weights. The key that they ask for is that of the environment.

    Args:
        run: whose model and `rollouts.options` are used.
        address: of this machine, to listen on.
        first_port: of the first server, and the next for the next.
        folder: for their logs and for the file `urls`, one a line, which is made when all of them answer.

    Raises:
        UserError: there is no key or no model, or a server does not start, or has died more often than `max_restarts`.
    """
    key = os.environ.get(server_program.KEY, "")
    if not key:
        raise UserError(f"{server_program.KEY} is not set: give the servers a key, which the trainer has to know too")
    check_options(sglang.engine, run.rollouts.options, "the engine 'sglang'", num_given=1)
    given = Options(**run.rollouts.options)
    options = replace(
        given, address=address, run_folder=folder, urls=(), routes=given.routes or run.routing_replay == "R3"
    )
    servers = own_servers(options, Path(run.model.path), find_python(options.python), key, first_port)
    for number in range(len(servers)):
        check_free(address, first_port + number, "choose others with --address and --port")
    load_tokenizer(Path(run.model.path))  # a folder without a model is found sooner here, and named
    (folder / URLS).unlink(missing_ok=True)
    Display(silent=False)  # shows what the pool has to say
    processes = [server.process for server in servers if server.process is not None]
    try:
        pool = ServerPool(
            servers,
            key=key,
            fewest=len(servers),
            max_restarts=options.max_restarts,
            health_seconds=options.health_seconds,
        )
        pool.start()
        asyncio.run(_mind(pool, folder / URLS))
    finally:
        for process in processes:
            process.stop()


async def _mind(pool: ServerPool, urls: Path) -> None:
    try:
        await pool.await_all()
        write_atomically(urls, "".join(f"{server.client.url}\n" for server in pool.servers))
        _log.info("%s", ", ".join(server.client.url for server in pool.servers))
        while True:
            await pool.check(ask=False)
            for client in pool.restart_failed():
                await client.close()
            await asyncio.sleep(_WATCH_SECONDS)
    finally:
        for server in pool.servers:
            await server.client.close()
