"""Tests that the probe passes an intact sandbox, and finds each hole that is made in one."""

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Callable

import pytest

from megatron_sspo.errors import UserError
from megatron_sspo.sandbox import attacks, box, probe
from megatron_sspo.sandbox.sandbox import Sandbox
from megatron_sspo.sandbox.types import Limits, Verdict
from tests.sandbox.conftest import LIMITS

pytestmark = pytest.mark.slow  # each probe runs a dozen programs

command, limits_inside = box._bubblewrap_command, box._resource_limits


def without(*names: str) -> Callable[..., list[str]]:
    """Returns a function for bubblewrap's command without these options and their values."""

    def weakened(*arguments, **keywords) -> list[str]:
        whole = list(command(*arguments, **keywords))
        for name in names:
            place = whole.index(name)
            del whole[place : place + (2 if name == "--seccomp" else 1)]
        return whole

    return weakened


def with_options(*options: str) -> Callable[..., list[str]]:
    def weakened(*arguments, **keywords) -> list[str]:
        whole = list(command(*arguments, **keywords))
        return [*whole[:-1], *options, "--"]

    return weakened


def test_an_intact_sandbox_passes(sandbox: Sandbox) -> None:
    probe.probe(sandbox)


@pytest.mark.parametrize(
    ("weakened", "found"),
    [
        (without("--unshare-net"), ["the network (127.0.0.1, port ", "the network (UDP)", "a socket of the host"]),
        (without("--seccomp"), ["unfiltered system calls", "memory files outside of the limits"]),
        (
            with_options(
                *("--ro-bind", "/usr", "/usr", "--ro-bind", "/etc", "/etc"),
                *("--bind", "/tmp", "/tmp", "--setenv", "TOKEN", "secret"),
            ),
            [
                *("reading /usr/bin/python3", "reading /etc/hostname", "files of the host"),
                *("reading /tmp/megatron-sspo-probe-", "writing /tmp/megatron-sspo-probe-", "the environment"),
            ],
        ),
        (with_options("--size", str(1 << 30), "--tmpfs", "/tmp"), ["a full disk"]),
    ],
    ids=["network", "system calls", "files", "disk"],
)
def test_a_hole_is_found(monkeypatch, weakened, found: list[str]) -> None:
    monkeypatch.setattr(box, "_bubblewrap_command", weakened)
    with pytest.raises(UserError, match="the sandbox is not secure") as caught:
        probe.open_sandbox({"processes": LIMITS.processes, "disk_bytes": LIMITS.disk_bytes})
    assert all(part in str(caught.value) for part in found), str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("limit", "found"),
    [("RLIMIT_NPROC", "a fork bomb"), ("RLIMIT_AS", "memory above the limit")],
)
def test_a_limit_that_does_not_hold_is_found(monkeypatch, limit: str, found: str) -> None:
    def weakened(*arguments) -> dict[str, int]:
        return {name: value for name, value in limits_inside(*arguments).items() if name != limit}

    monkeypatch.setattr(box, "_resource_limits", weakened)
    made = Sandbox(LIMITS)
    made._cgroups._parents, made._cgroups.can_limit_memory = [], False  # otherwise the cgroup would hold
    try:
        with pytest.raises(UserError, match=found):
            probe.probe(made)
    finally:
        made.close()


def test_a_memory_limit_that_holds_for_one_process_only_is_found() -> None:
    made = Sandbox(LIMITS)
    made._cgroups._parents = []  # it can limit the memory of all together, and does not
    refused = pytest.raises(UserError, match="memory above the limit, in several processes")
    with contextlib.closing(made), refused:
        probe.probe(made)


def test_processes_that_get_their_memory_one_after_the_other_are_within_the_limit(sandbox: Sandbox) -> None:
    started = "    children.append(child)\n"
    one_by_one = attacks.MEMORY.replace(started, f"{started}    __import__('time').sleep(0.5)\n")
    assert one_by_one != attacks.MEMORY
    result = sandbox.run(one_by_one, f"{LIMITS.memory_bytes * 2 // 3} 3", seconds=60.0)
    assert int(result.stdout) <= 2, "the kernel killed each process for the next one, and all three were counted"


EACH_KIND = pytest.mark.parametrize(
    "late",
    ["print(6 * 7)", attacks.REACH, attacks.MEMORY, attacks.FLOOD, next(iter(attacks.FORGED_VERDICTS.values()))],
    ids=["works", "reach", "memory", "output", "verdict"],
)


def slow_sandbox(monkeypatch, late: str, tries: float) -> Sandbox:
    """Returns a sandbox in which one program is not over in time in its first tries."""
    made = Sandbox(LIMITS)
    run, check = made.run, made.check
    tried = itertools.count(1)

    def run_slowly(program, stdin="", files=None, *, seconds=None):
        if program == late and next(tried) <= tries:
            return run("while True: pass", seconds=0.1)
        return run(program, stdin, files, seconds=seconds)

    def check_slowly(program, tests):
        is_late = program == late and next(tried) <= tries
        return Verdict(passed=False, reason="time") if is_late else check(program, tests)

    monkeypatch.setattr(made, "run", run_slowly)
    monkeypatch.setattr(made, "check", check_slowly)
    return made


@EACH_KIND
def test_an_attack_that_is_never_over_in_time_is_not_refused(monkeypatch, late: str) -> None:
    monkeypatch.setattr(probe, "_PROBE_SECONDS", 1.0)
    refused = pytest.raises(UserError, match="not known whether the sandbox is secure: start again when")
    with contextlib.closing(slow_sandbox(monkeypatch, late, math.inf)) as made, refused:
        probe.probe(made)


@EACH_KIND
def test_an_attack_that_is_not_over_in_time_is_tried_again(monkeypatch, caplog, late: str) -> None:
    with contextlib.closing(slow_sandbox(monkeypatch, late, 6)) as made:
        probe.probe(made)
    assert caplog.text.count("it is tried again for 60 s") == 1


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("bwrap: No permissions to create new namespace", "sysctl user.max_user_namespaces"),
        ("bwrap: setting up uid map: Permission denied", "kernel.apparmor_restrict_unprivileged_userns=0"),
        ("bwrap: Can't mount proc on /newroot/proc: Operation not permitted", "systempaths=unconfined"),
        ("bwrap: cannot open /proc/sys/user/max_user_namespaces: Read-only file system", "a writable /proc/sys"),
    ],
)
def test_an_error_of_bubblewrap_has_a_remedy(monkeypatch, public_path, said: str, remedy: str) -> None:
    fake = public_path / "bwrap"
    fake.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo bubblewrap 0.9.0 && exit\necho "{said}" >&2\nexit 1\n')
    fake.chmod(0o755)
    monkeypatch.setattr("megatron_sspo.sandbox.sandbox.find_bubblewrap", lambda: str(fake))
    with pytest.raises(UserError) as caught:
        probe.open_sandbox()
    assert said in str(caught.value) and remedy in str(caught.value), str(caught.value)


@pytest.mark.parametrize(
    ("limit", "value", "message"),
    [
        ("processes", 1, r"does not run Python .*: 'BlockingIOError.*: raise the limit processes$"),
        ("open_files", 1, r"does not run Python .*Too many open files.*: raise the limit open_files$"),
        ("memory_bytes", 1, r"does not run Python \(it ended as 'memory'.*: raise the limit memory_bytes$"),
        ("output_bytes", 1, r"does not run Python \(it ended as 'output'.*: raise the limit output_bytes$"),
        ("open_files", 10**9, r"could not be made: the limit RLIMIT_NOFILE of 1000000000 is above .*: lower"),
    ],
)
def test_a_limit_under_which_nothing_runs_is_named(sandbox, monkeypatch, limit: str, value: int, message: str) -> None:
    monkeypatch.setattr(sandbox, "limits", dataclasses.replace(LIMITS, **{limit: value}))
    monkeypatch.setattr(probe, "_ATTACKS", ())
    with pytest.raises(UserError, match=message):
        probe.probe(sandbox)


def test_limits_beside_a_url_are_refused() -> None:
    with pytest.raises(UserError, match="set on the server"):
        probe.open_sandbox({"processes": 5}, url="http://127.0.0.1:1")


def test_an_unknown_limit_lists_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"no option cpus: its options are wall_seconds, "):
        probe.open_sandbox({"cpus": 5})


def test_open_sandbox_uses_the_given_limits() -> None:
    made = probe.open_sandbox({"wall_seconds": 20.0})
    try:
        assert made.limits == Limits(wall_seconds=20.0)
    finally:
        made.close()
