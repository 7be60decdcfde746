"""The HTTP server that answers the requests of agents."""

import asyncio
import functools
import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from aiohttp import web

from sspo_agents import anthropic_messages, chat_completions
from sspo_agents.chat import ChatRequest, Form
from sspo_agents.errors import AgentError, Refusal, describe_error
from sspo_agents.session import Session

_MAX_BYTES = 64 << 20  # of the body of a request

_FORMS = (chat_completions.FORM, anthropic_messages.FORM)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class EndpointServer:
    """Answers `POST <base_url>/chat/completions` and `POST <base_url>/messages`, in the event loop of `listen`.

    The key of an episode is in the path of its `base_url`; `/v1` takes it as a bearer token and as `x-api-key`.

    Args:
        address: the address to listen on.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._sessions: dict[str, Session] = {}
        self._runner: web.AppRunner | None = None
        self._port = 0

    async def listen(self) -> None:
        """Begins to listen on a free port, once. Raises AgentError if the address is not one of this machine."""
        if self._runner is not None:
            return
        app = web.Application(client_max_size=_MAX_BYTES, middlewares=[self._as_json])
        for prefix in ("/v1", "/{key}/v1"):
            for form in _FORMS:
                app.router.add_post(prefix + form.path, functools.partial(self._answer, form))
            app.router.add_get(f"{prefix}/models", self._models)
        runner = self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, self._address, 0).start()
        except OSError as error:
            raise AgentError(
                f"agents cannot be answered at the endpoint's address {self._address!r} ({error.strerror}): name an "
                "address of this machine"
            ) from error
        self._port = runner.addresses[0][1]

    async def close(self) -> None:
        """Ends all connections."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    def add(self, session: Session) -> str:
        """Adds an episode and returns its `base_url`."""
        self._sessions[session.key] = session
        host = f"[{self._address}]" if ":" in self._address else self._address
        return f"http://{host}:{self._port}/{session.key}/v1"

    async def remove(self, session: Session) -> None:
        """Ends an episode: cancels its requests, and refuses further ones."""
        self._sessions.pop(session.key, None)
        await cancel(session.in_progress)

    def _session(self, request: web.Request) -> Session:
        headers = request.headers
        scheme, _, bearer = headers.get("Authorization", "").partition(" ")
        bearer = bearer.strip() if scheme.lower() == "bearer" else ""
        found = self._sessions.get(request.match_info.get("key", headers.get("x-api-key", bearer)))
        if found is None:
            raise Refusal("no episode with this key is in progress", status=401, code="invalid_api_key")
        return found

    async def _answer(self, form: Form, request: web.Request) -> web.StreamResponse:
        session = self._session(request)
        task = asyncio.current_task()
        assert task is not None
        session.in_progress.add(task)
        try:
            session.admit()
            asked = await _read(request, form)
            completion = await session.answer(asked)
        except Refusal as error:
            session.num_refused += 1
            session.refusal = error
            raise
        finally:
            session.in_progress.discard(task)
        if not asked.stream:
            return web.json_response(form.to_json(asked, completion))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        await response.prepare(request)
        for event in form.to_events(asked, completion):
            await response.write(event)
        return response

    async def _models(self, request: web.Request) -> web.StreamResponse:
        self._session(request)
        model = {"id": "policy", "object": "model", "created": 0, "owned_by": "user"}
        return web.json_response({"object": "list", "data": [model]})

    @web.middleware
    async def _as_json(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Turns errors into JSON that clients read."""
        error_json = next((form for form in _FORMS if request.path.endswith(form.path)), _FORMS[0]).error_json
        try:
            return await handler(request)
        except Refusal as error:
            return web.json_response(error_json(error), status=error.status)
        except web.HTTPException as error:
            text = error.text or error.reason
            if error.status == 404:
                text = f"{text}: of the paths {', '.join(form.path for form in _FORMS)} and /models, none is this"
            refusal = Refusal(text, code=error.reason.lower().replace(" ", "_"))
            return web.json_response(error_json(refusal), status=error.status)


async def _read(request: web.Request, form: Form) -> ChatRequest:
    """Reads the body of a request. Raises Refusal if it is malformed."""
    try:
        return form.parse_request(json.loads(await request.read()))
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise Refusal(f"the body is malformed: {describe_error(error)}") from error


async def cancel(tasks: Iterable["asyncio.Task[Any]"]) -> None:
    """Cancels tasks and waits for their end; their errors are ignored."""
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)
