"""The server of the live page: what it answers, and whom."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer

from megatron_sspo.__main__ import main
from megatron_sspo.plots.live.server import make_app
from tests.plots.live.runs import HOSTILE, append, metrics, write_run

ANSWER_OF_400_DIGITS, ANSWER_OF_AN_INFINITE_SUM = (
    json.dumps(
        dict.fromkeys(("id", "set", "prompt", "gold"), "")
        | {"answers": [{"text": "", "tokens": 1, "finish_reason": "stop", "reward": reward}]}
    )
    + "\n"
    for reward in ({"a": 10**400, "b": 0.5}, {"a": 1e308, "b": 1e308})
)


@contextlib.asynccontextmanager
async def client_of(*folders: Path) -> AsyncIterator[TestClient]:
    async with TestClient(TestServer(make_app(folders))) as client:
        yield client


async def get(client: TestClient, path: str, **query: Any) -> Any:
    async with client.get(path, params=query) as response:
        assert response.status == 200, await response.text()
        return await response.json()


def ask(path: str, *folders: Path, method: str = "GET", **options: Any) -> tuple[ClientResponse, str]:
    """Returns the answer to one request, and its text."""

    async def send() -> tuple[ClientResponse, str]:
        async with client_of(*folders) as client, client.request(method, path, **options) as response:
            return response, await response.text()

    return asyncio.run(send())


def test_rows_and_then_only_new_rows(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 3)

    async def follow() -> None:
        async with client_of(run) as client:
            first = await get(client, "/metrics", run=0, cursor="")
            assert [row[0] for row in first["rows"]] == [1, 2, 3]
            assert [row[1] for row in first["rows"]] == [0.1, 0.2, 0.3]
            append(run, metrics(4))
            with (run / "metrics.jsonl").open("a") as file:
                file.write('{"update": 5, "rew')
            second = await get(client, "/metrics", run=0, cursor=first["cursor"])
            assert [row[0] for row in second["rows"]] == [4]
            third = await get(client, "/metrics", run=0, cursor=second["cursor"])
            assert third == {**second, "rows": []}
            assert (third["restarted"], third["more"], third["skipped"]) == (False, False, 0)

    asyncio.run(follow())


def test_several_runs(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / "x" / "run", 2), write_run(tmp_path / "y" / "run", 5), tmp_path / "z"]
    folders[2].mkdir()
    (folders[2] / "config.json").write_text("{}")

    async def look() -> None:
        async with client_of(*folders) as client:
            runs = (await get(client, "/runs"))["runs"]
            assert [run["name"] for run in runs] == [f"{f} (AtanLog)" for f in folders[:2]] + ["z"]
            assert [run["num_updates"] for run in runs] == [100, 100, None]
            assert len({run["colour"] for run in runs}) == 3
            rows = [(await get(client, "/metrics", run=number))["rows"] for number in range(3)]
            assert list(map(len, rows)) == [2, 5, 0]

    asyncio.run(look())


def test_evaluations(tmp_path: Path) -> None:
    _, text = ask("/evaluations?run=0", write_run(tmp_path / "run", 1))
    assert json.loads(text)["rows"] == [{"update": 0, "sets": {"gsm8k": [0.5, 0.4, 0.6]}}]


def test_rollouts_come_once_per_version(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 3)

    async def follow() -> None:
        async with client_of(run) as client:
            first = await get(client, "/rollouts", run=0)
            assert first["rows"][0]["pieces"] == [["before ", 1.0], ["1+1=2", 0.25], [" after", None]]
            same = await get(client, "/rollouts", run=0, seen=first["version"])
            assert same == {"version": first["version"], "rows": None}
            append(run, {**first["rows"][0], "update": 4}, name="rollouts.jsonl")
            assert len((await get(client, "/rollouts", run=0, seen=first["version"]))["rows"]) == 2
            (run / "rollouts.jsonl").unlink()
            assert await get(client, "/rollouts", run=0, seen="x") == {"version": "", "rows": []}

    asyncio.run(follow())


def test_answers_of_the_last_evaluation(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 1, text="x" * 10_000)
    (row,) = json.loads(ask("/answers?run=0", run)[1])["rows"]
    assert (row["reward"], row["set"], row["tokens"]) == (1.0, "gsm8k", 3)
    ((text, weight),) = row["pieces"]
    assert text == "x" * 4_000 + "\n[2,000 characters are left out]\n" + "x" * 4_000 and weight is None


def test_answers_are_few_of_many(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 1)
    path = run / "evaluation_responses.jsonl"
    path.write_text(path.read_text() * 50_000)
    assert len(json.loads(ask("/answers?run=0", run)[1])["rows"]) == 16


@pytest.mark.parametrize(("name", "path"), [("evaluation_responses", "/answers"), ("rollouts", "/rollouts")])
def test_long_responses_are_shown_and_those_beyond_the_limit_named(tmp_path: Path, name: str, path: str) -> None:
    run = write_run(tmp_path / "run", 1)
    row = json.loads((run / f"{name}.jsonl").read_text())
    for size in (2_000_000, 10_000_000, 2_000_000):
        append(run, row | {"prompt": "x" * size}, name=f"{name}.jsonl")
    rows = json.loads(ask(f"{path}?run=0", run)[1])["rows"]
    assert [len(row.get("prompt", "")) for row in rows] == [5, 2_000_000, 0, 2_000_000]
    assert rows[2] == {"note": "a response of more than 4,194,304 bytes is left out"}


@pytest.mark.parametrize(
    "content",
    ['{"set": "a"}\n', '{"set": 1, "answers": [1]}\n', ANSWER_OF_400_DIGITS, ANSWER_OF_AN_INFINITE_SUM],
)
@pytest.mark.parametrize(("name", "path"), [("evaluation_responses", "/answers"), ("rollouts", "/rollouts")])
def test_responses_of_another_program(tmp_path: Path, name: str, path: str, content: str) -> None:
    run = write_run(tmp_path / "run", 1)
    (run / f"{name}.jsonl").write_text(content)
    response, text = ask(f"{path}?run=0", run)
    assert response.status == 500 and "was it written by another program?" in json.loads(text)["error"]


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "9" * 400])
@pytest.mark.parametrize(("name", "path"), [("evaluation_responses", "/answers"), ("rollouts", "/rollouts")])
def test_numbers_beyond_all_are_json(tmp_path: Path, name: str, path: str, number: str) -> None:
    run = write_run(tmp_path / "run", 1)
    file = run / f"{name}.jsonl"
    file.write_text(file.read_text().replace("1.0", f"{number}").replace("0.75", number))
    assert number in file.read_text()
    _, text = ask(f"{path}?run=0", run)
    json.loads(text, parse_constant=pytest.fail)


def test_what_a_model_wrote_is_json_and_never_html(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 1, text=HOSTILE)
    for path in ("/rollouts?run=0", "/answers?run=0"):
        response, text = ask(path, run)
        assert HOSTILE in json.dumps(json.loads(text), ensure_ascii=False).replace('\\"', '"')
        assert response.content_type == "application/json"
        assert response.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    ("path", "kind"), [("/", "text/html"), ("/live.js", "text/javascript"), ("/live.css", "text/css")]
)
def test_the_page_needs_no_other_server(tmp_path: Path, path: str, kind: str) -> None:
    response, text = ask(path, write_run(tmp_path / "run", 1))
    assert response.status == 200 and response.content_type == kind
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    policy = response.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "script-src 'self';" in policy and "unsafe" not in policy


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST:9999", "127.0.0.1:8060"])
def test_the_names_of_this_machine(tmp_path: Path, host: str) -> None:
    assert ask("/runs", write_run(tmp_path / "run", 1), headers={"Host": host})[0].status == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8060", "127.0.0.1.evil.example", "localhost.evil", "", "[::1]", "evil@127.0.0.1"],
)
@pytest.mark.parametrize("path", ["/", "/runs", "/rollouts?run=0", "/nothing"])
def test_another_name_is_refused(tmp_path: Path, host: str, path: str) -> None:
    response, text = ask(path, write_run(tmp_path / "run", 1), headers={"Host": host})
    assert response.status in (400, 403) and "rows" not in text
    if host:
        assert response.status == 403 and response.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize("path", ["/", "/runs", "/metrics"])
def test_it_only_reads(tmp_path: Path, method: str, path: str) -> None:
    assert ask(path, write_run(tmp_path / "run", 1), method=method)[0].status == 405


@pytest.mark.parametrize("run", ["", "1", "-1", "x", "../x", "9" * 5000, "²"])
def test_no_such_run(tmp_path: Path, run: str) -> None:
    assert ask("/metrics", write_run(tmp_path / "run", 1), params={"run": run})[0].status == 404


@pytest.mark.parametrize("path", ["/page/live.js", "/../server.py", "/%2e%2e/server.py", "/live.js/../../server.py"])
def test_no_other_file(tmp_path: Path, path: str) -> None:
    from yarl import URL

    response, _ = ask(URL(path, encoded=True), write_run(tmp_path / "run", 1))  # type: ignore[arg-type]
    assert response.status == 404


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 1)
    (run / "metrics.jsonl").unlink()
    os.mkfifo(run / "metrics.jsonl")
    response, text = ask("/metrics?run=0", run)
    error = f"cannot read {run / 'metrics.jsonl'}: it is a pipe, not a regular file"
    assert (response.status, json.loads(text)) == (500, {"error": error})


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Returns the error of `plot`, which is one sentence."""
    assert main(["plot", *map(str, arguments)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("megatron-sspo: ") and said.count("\n") == 1, said
    return said


def test_folders_that_are_no_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"there is no folder {tmp_path / 'x'}: name" in refusal(capsys, tmp_path / "x", "--serve")
    assert "has neither config.json nor metrics.jsonl" in refusal(capsys, tmp_path, "--serve")
    run = write_run(tmp_path / "run", 1)
    assert "there is no folder" in refusal(capsys, run, tmp_path / "x", "--serve", "--port", 0)


def test_a_port_that_cannot_be_had(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", 1)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        said = refusal(capsys, run, "--serve", "--port", port)
        assert f"port {port} of 127.0.0.1 is not free (Address already in use): choose another with --port" in said
    for number in (-1, 65536, 10**9):
        assert f"--port is {number}: choose a number" in refusal(capsys, run, "--serve", f"--port={number}")


def test_options_that_do_not_go_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", 1)
    assert "add --serve" in refusal(capsys, run, "--port", 1)
    assert "--output is for a picture" in refusal(capsys, run, "--serve", "--output", "x.png")
    assert "are for the folder of a sweep" in refusal(capsys, run, "--serve", "--measure", "reward")


def restore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("ended_by", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_until_it_is_ended(tmp_path: Path, ended_by: signal.Signals) -> None:
    import urllib.request

    run = write_run(tmp_path / "run", 2)
    before = sorted(path.name for path in run.iterdir())
    command = [sys.executable, "-m", "megatron_sspo", "plot", str(run), "--serve", "--port", "0"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # a test in the background may have been started with SIGINT ignored, which a program inherits
    with subprocess.Popen(command, **pipes, preexec_fn=restore_interrupts) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            address = process.stdout.readline().split()[0]
            with urllib.request.urlopen(f"{address}/metrics?run=0", timeout=60) as response:
                assert len(json.load(response)["rows"]) == 2
            port = int(address.rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(b"GET * HTTP/1.1\r\n\r\n")
                assert client.recv(100).startswith(b"HTTP/1.0 400 Bad Request")
            listening = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
            assert f"0100007F:{port:04X} 00000000:0000 0A" in listening, "it listens on 127.0.0.1"
            assert f"00000000:{port:04X} 00000000:0000 0A" not in listening, "and on no other address"
        finally:
            process.send_signal(ended_by)
        assert process.wait(60) == (130 if ended_by == signal.SIGINT else -signal.SIGTERM)
        assert process.stderr.read() == ""
    assert sorted(path.name for path in run.iterdir()) == before


def test_the_server_starts_without_the_heavy_neighbours() -> None:
    program = (
        "import sys; import megatron_sspo.plots.live.server;"
        "print(*sorted({name.split('.')[0] for name in sys.modules} & {'torch', 'megatron', 'numpy', 'transformers',"
        " 'pydantic', 'matplotlib', 'pyarrow'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "\n"
