"""Attacks a sandbox before it is used, to find out whether it holds."""

import contextlib
import json
import logging
import os
import secrets
import socket
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sspo_sandbox import attacks
from sspo_sandbox.box import ENVIRONMENT
from sspo_sandbox.image import modules_of
from sspo_sandbox.remote import RemoteSandbox, Runner, check_url
from sspo_sandbox.sandbox import Sandbox
from sspo_sandbox.types import MEBIBYTE, Limits, SandboxBroken, SandboxError, SandboxResult, Verdict

_log = logging.getLogger(__name__)

# Paths that a program must not be able to read, on any machine.
_HOST_PATHS = ("/etc/shadow", "/etc/hostname", "/root", "/home", "/sys/kernel", "/bin/sh", "/usr/bin/python3")

_ATTACK_SECONDS = 30.0  # for an attack, also where programs have less; a server takes its own limit
_PROBE_SECONDS = 60.0  # in which an attack that is not over in time is tried again: a busy machine becomes idle

# Parts of bubblewrap's error messages, and the remedy for each.
_REMEDIES = {
    "Unknown option": "install bubblewrap 0.8 or newer",
    "No permissions to create": "allow unprivileged user namespaces (sysctl user.max_user_namespaces=15000; Debian: "
    "kernel.unprivileged_userns_clone=1; Ubuntu: kernel.apparmor_restrict_unprivileged_userns=0)",
    "Creating new namespace failed": "raise sysctl user.max_user_namespaces, or run the container with user namespaces",
    "setting up uid map": "allow unprivileged user namespaces (Ubuntu: kernel.apparmor_restrict_unprivileged_userns=0)",
    "mount proc": "run the container with an unmasked /proc (docker: --security-opt systempaths=unconfined)",
    "max_user_namespaces": "give the container a writable /proc/sys (docker: --security-opt systempaths=unconfined)",
    "execvp": "name a folder for the sandbox's Python that allows execution: TMPDIR",
    "prctl(PR_SET_SECCOMP)": "use a kernel with seccomp filters",
    "hard limit": "lower the sandbox's limit of that kind, or raise the machine's",
    "(it ended as 'memory'": "raise the limit memory_bytes",
    "(it ended as 'output'": "raise the limit output_bytes",
    "Too many open files": "raise the limit open_files",
    "BlockingIOError": "raise the limit processes",
}


def open_sandbox(
    limits: Mapping[str, Any] | None = None,
    *,
    url: str = "",
    python: str = "",
    packages: Sequence[str] = (),
    cgroup: str = "",
) -> Runner:
    """Returns a sandbox that has passed the probe: one on this machine, or the remote one at `url`.

    Args:
        limits: fields of `Limits`. A remote sandbox has its own.
        url: the address of a `sspo_sandbox.serve`; its key is in MEGATRON_SSPO_SANDBOX_KEY.
        python, packages, cgroup: see `Sandbox`.

    Raises:
        SandboxError: the sandbox cannot be made or reached, an attack succeeds, or a package cannot be imported. There
            is no fallback.
    """
    own = check_options(limits=limits, url=url, python=python, packages=packages, cgroup=cgroup)
    runner: Runner = RemoteSandbox(url) if url else Sandbox(own, python=python, packages=packages, cgroup=cgroup)
    try:
        probe(runner)
        _until_in_time(lambda runner: _import_packages(runner, packages), runner)
    except BaseException:
        runner.close()
        raise
    if not runner.has_total_memory_limit:
        _log.warning(
            "the sandbox can use no cgroup: its memory limit applies to each process, so a program may use %d times "
            "%d MiB; see docs/sandbox.md",
            runner.limits.processes,
            runner.limits.memory_bytes // MEBIBYTE,
        )
    return runner


def check_options(*, url: str = "", limits: Mapping[str, Any] | None = None, **others: Any) -> Limits:
    """Checks the options of `open_sandbox` that can be checked without a sandbox, and returns the limits.

    Raises SandboxError if a limit or the url is invalid, or a remote sandbox is given options of a local one.
    """
    if url and (limits or any(others.values())):
        raise SandboxError(
            "the sandbox has a url, so its limits, python, packages and cgroup are set on the server: give them to "
            "sspo_sandbox.serve"
        )
    if url:
        check_url(url)
    return Limits.from_options(limits or {})


def probe(runner: Runner) -> None:
    """Attacks the sandbox for real: network, files, processes, memory, output, time, privileges, verdicts.

    Raises SandboxError if the sandbox does not work, or with the name of an attack that succeeded.
    """
    try:
        _until_in_time(_check_it_works, runner)
        with ThreadPoolExecutor(4, thread_name_prefix="sandbox-probe") as threads:
            succeeded = [
                what for found in threads.map(lambda attack: _until_in_time(attack, runner), _ATTACKS) for what in found
            ]
    except SandboxBroken as error:
        raise SandboxError(_with_remedy(str(error))) from error
    if succeeded:
        raise SandboxError(
            f"the sandbox is not secure, because these attacks succeeded: {', '.join(succeeded)}. No code is executed "
            "in it. See docs/sandbox.md for what the machine or the container needs, or name a remote sandbox by its "
            "url"
        )


def _with_remedy(message: str) -> str:
    remedy = next((remedy for sign, remedy in _REMEDIES.items() if sign in message), "see docs/sandbox.md")
    return f"{message}: {remedy}"


def _check_it_works(runner: Runner) -> None:
    result = _run(runner, "print(6 * 7)")
    if result.stdout != "42\n" or result.end_reason != "ok":
        error = result.stderr.strip().rpartition("\n")[2][:500]
        raise SandboxError(
            _with_remedy(f"the sandbox does not run Python (it ended as {result.end_reason!r}: {error!r})")
        )
    verdict = _check(runner, "def f(x): return x + 1\n")
    if not verdict.passed:
        raise SandboxError(
            _with_remedy(f"the sandbox's judge does not work: a correct program failed its test ({verdict.detail})")
        )


def _import_packages(runner: Runner, packages: Sequence[str]) -> None:
    """Raises SandboxError if programs cannot import a package, because of its dependencies or of the limits."""
    for package, module in [(name, module) for name in packages for module in modules_of(name)]:
        result = _run(runner, f"import {module}\n")
        if result.end_reason != "ok":
            reason = result.stderr.strip().rpartition("\n")[2][:500] or result.end_reason
            raise SandboxError(
                f"programs in the sandbox cannot import {module} of the package {package!r} ({reason}): add the "
                "packages that it needs to the option packages, or raise the limits"
            )


def _reach_host(runner: Runner) -> list[str]:
    """Attacks network, files and privileges."""
    abstract = f"\0sspo-sandbox-probe-{secrets.token_hex(8)}"
    with (
        tempfile.TemporaryDirectory(prefix="sspo-sandbox-probe-") as folder,
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as local,
    ):
        local.bind(abstract)
        local.listen()
        secret, target = Path(folder, "secret"), Path(folder, "written")
        secret.write_text("a secret of the host", encoding="utf-8")
        os.chmod(folder, 0o777)  # so that only the sandbox denies access
        remote_port = [urlsplit(runner.url).port or 443] if isinstance(runner, RemoteSandbox) else []
        job = {
            "environment": [*ENVIRONMENT, "PWD", "LC_CTYPE"],
            "targets": [["127.0.0.1", port] for port in (listener.getsockname()[1], *remote_port)],
            "abstract_socket": abstract,
            "read": [*_HOST_PATHS, str(secret)],
            "write": [str(target), "/python/x"],
        }
        result = _run(runner, attacks.REACH, json.dumps(job))
        try:
            found = [str(what) for what in json.loads(result.stdout)]
        except ValueError:
            stderr = result.stderr.strip()[-300:]
            raise SandboxError(
                f"the sandbox's probe ended as {result.end_reason!r}, stderr: {stderr!r}; see docs/sandbox.md"
            ) from None
        return [*found, *(["writing a file of the host"] if target.exists() else [])]


class _Late(Exception):
    """Raised if an attack was not over in time."""


def _until_in_time(attack: Callable[[Runner], Any], runner: Runner) -> Any:
    """Runs an attack, again while it times out as on a busy machine, and returns its findings.

    Raises SandboxError if no try was over in time, so it is not known whether the attack succeeds.
    """
    give_up_at = time.monotonic() + _PROBE_SECONDS
    while True:
        with contextlib.suppress(_Late):
            return attack(runner)
        if time.monotonic() > give_up_at:
            raise SandboxError(
                "the sandbox's probe was not over in time, so it is not known whether the sandbox is secure: start "
                "again when the machine is less busy, or raise the option wall_seconds"
            )


def _run(runner: Runner, program: str, stdin: str = "", *, seconds: float = _ATTACK_SECONDS) -> SandboxResult:
    """Returns how a program ended; it has `seconds`, or the sandbox's own limit if that is longer."""
    result = runner.run(program, stdin, seconds=max(seconds, runner.limits.wall_seconds))
    has_succeeded = len(result.stdout) > runner.limits.output_bytes  # also if it was late
    if result.end_reason == "time" and not has_succeeded:
        raise _Late
    return result


def _check(runner: Runner, program: str) -> Verdict:
    """Returns the verdict of a test of x + 1."""
    verdict = runner.check(program, ["assert f(1) == 2"])
    if verdict.reason == "time":
        raise _Late
    return verdict


def _exceed_limits(runner: Runner) -> list[str]:
    """Attacks the limits of processes, memory and disk: each program prints how much of something it got."""
    limits = runner.limits
    tries = [
        ("a fork bomb", attacks.FORK, f"{limits.processes + 16}", limits.processes),
        ("memory above the limit", attacks.MEMORY, f"{limits.memory_bytes + 64 * MEBIBYTE} 1", 0),
        ("a full disk", attacks.DISK, f"{limits.disk_bytes + 16 * MEBIBYTE}", limits.disk_bytes),
    ]
    if runner.has_total_memory_limit:
        stdin = f"{limits.memory_bytes * 2 // 3} 3"
        tries.append(("memory above the limit, in several processes", attacks.MEMORY, stdin, 2))
    printed = [_run(runner, program, stdin).stdout.strip() for _, program, stdin, _ in tries]
    numbers = [int(text) if text.isdigit() else 0 for text in printed]  # none if a limit has killed it
    return [what for (what, _, _, most), number in zip(tries, numbers, strict=True) if number > most]


def _exceed_output(runner: Runner) -> list[str]:
    result = _run(runner, attacks.FLOOD, seconds=0.0)  # no longer: without a limit it would fill the memory
    return (
        [] if result.end_reason == "output" and len(result.stdout) <= runner.limits.output_bytes else ["endless output"]
    )


def _exceed_time(runner: Runner) -> list[str]:
    return [] if runner.run(attacks.ENDLESS, seconds=0.3).end_reason == "time" else ["an endless loop"]


def _forge_verdicts(runner: Runner) -> list[str]:
    return [
        f"a forged verdict ({how})"
        for how, program in attacks.FORGED_VERDICTS.items()
        if _check(runner, program).passed
    ]


_ATTACKS = (_reach_host, _exceed_limits, _exceed_output, _exceed_time, _forge_verdicts)
