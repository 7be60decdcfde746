"""A judge with OpenAI's chat completions in a thread, which reads what it is sent as an attentive model would."""

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, Any] | str
"""A status with what is sent, or the text of a completion."""


class Judge:
    """The server. `answer` gets a response, and the number of times that it was asked about before."""

    def __init__(self, answer: Callable[[str, int], Answer]) -> None:
        self.asked: Counter[str] = Counter()
        self.requests: list[dict[str, Any]] = []
        self.keys: set[str] = set()
        lock, judge = threading.Lock(), self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                response = read_response(request)
                with lock:
                    judge.requests.append(request)
                    judge.keys.add(self.headers.get("Authorization", ""))
                    judge.asked[response] += 1
                    before = judge.asked[response] - 1
                given = answer(response, before)
                status, content = (200, completion(given)) if isinstance(given, str) else given
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(content).encode())

            def log_message(self, *arguments: Any) -> None: ...

        class Server(ThreadingHTTPServer):
            request_queue_size = 128

            def handle_error(self, *arguments: Any) -> None: ...

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def kill(self) -> None:
        """Ends the server; later requests find nobody."""
        self.server.shutdown()
        self.server.server_close()


@contextmanager
def judge(answer: Callable[[str, int], Answer]) -> Iterator[Judge]:
    found = Judge(answer)
    try:
        yield found
    finally:
        found.kill()


def completion(text: str, finish_reason: str = "stop") -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return {"choices": [{"index": 0, "message": message, "finish_reason": finish_reason}]}


def read_response(request: dict[str, Any]) -> str:
    """Returns the response that a request quotes, by the mark that its instructions name."""
    task, user = (message["content"] for message in request["messages"])
    (mark,) = re.findall(r"between two lines `([0-9a-f]{32})`", task)
    *_, title, response, rest = re.split(rf"^{mark}$", user, flags=re.MULTILINE)
    assert title.strip() == "Response:" and not rest
    return response[1:-1]


def late(seconds: float) -> str:
    time.sleep(seconds)
    return "SCORE: 10"
