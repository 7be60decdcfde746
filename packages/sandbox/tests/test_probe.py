"""Tests that the probe passes an intact sandbox, and finds each hole that is made in one."""

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Callable

import pytest

from packages.sandbox.tests.conftest import LIMITS
from sspo_sandbox import Limits, Sandbox, SandboxError, Verdict, attacks, box, probe

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
    return lambda *arguments, **keywords: [*command(*arguments, **keywords)[:-1], *options, "--"]


def test_an_intact_sandbox_passes() -> None:
    with contextlib.closing(probe.open_sandbox({"wall_seconds": 20.0})) as made:
        assert made.limits == Limits(wall_seconds=20.0)


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
                *("reading /tmp/sspo-sandbox-probe-", "writing /tmp/sspo-sandbox-probe-", "the environment"),
            ],
        ),
        (with_options("--size", str(1 << 30), "--tmpfs", "/tmp"), ["a full disk"]),
    ],
    ids=["network", "system calls", "files", "disk"],
)
def test_a_hole_is_found(monkeypatch, weakened, found: list[str]) -> None:
    monkeypatch.setattr(box, "_bubblewrap_command", weakened)
    with pytest.raises(SandboxError, match="the sandbox is not secure") as caught:
        probe.open_sandbox({"processes": LIMITS.processes, "disk_bytes": LIMITS.disk_bytes})
    assert all(part in str(caught.value) for part in found), str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("limit", "can_limit", "found"),
    [
        ("RLIMIT_NPROC", False, "a fork bomb"),
        ("RLIMIT_AS", False, "memory above the limit"),
        ("", True, "memory above the limit, in several processes"),
    ],
)
def test_a_limit_that_does_not_hold_is_found(monkeypatch, limit: str, can_limit: bool, found: str) -> None:
    def weakened(*arguments) -> dict[str, int]:
        return {name: value for name, value in limits_inside(*arguments).items() if name != limit}

    monkeypatch.setattr(box, "_resource_limits", weakened)
    made = Sandbox(LIMITS)
    made._cgroups._parents, made.has_total_memory_limit = [], can_limit  # otherwise the cgroup would hold
    with contextlib.closing(made), pytest.raises(SandboxError, match=found):
        probe.probe(made)


def test_processes_that_get_their_memory_one_after_the_other_are_within_the_limit(sandbox: Sandbox) -> None:
    started = "    children.append(child)\n"
    one_by_one = attacks.MEMORY.replace(started, f"{started}    __import__('time').sleep(0.5)\n")
    assert one_by_one != attacks.MEMORY
    result = sandbox.run(one_by_one, f"{LIMITS.memory_bytes * 2 // 3} 3", seconds=60.0)
    assert int(result.stdout) <= 2, "the kernel killed each process for the next one, and all three were counted"


@pytest.mark.parametrize("late", [attacks.REACH, attacks.FLOOD, next(iter(attacks.FORGED_VERDICTS.values()))])
@pytest.mark.parametrize("tries", [4, math.inf])
def test_an_attack_that_is_not_over_in_time_is_tried_again(monkeypatch, late: str, tries: float) -> None:
    """If it never is, it is not known whether it succeeds, so the sandbox is refused."""
    made = Sandbox(LIMITS)
    run, check = made.run, made.check
    tried = itertools.count(1)

    def run_slowly(program, stdin="", *, seconds=None):
        if program == late and next(tried) <= tries:
            return run("while True: pass", seconds=0.1)
        return run(program, stdin, seconds=seconds)

    def check_slowly(program, tests):
        is_late = program == late and next(tried) <= tries
        return Verdict(passed=False, reason="time") if is_late else check(program, tests)

    monkeypatch.setattr(made, "run", run_slowly)
    monkeypatch.setattr(made, "check", check_slowly)
    with contextlib.closing(made):
        if tries == 4:
            probe.probe(made)
            return
        monkeypatch.setattr(probe, "_PROBE_SECONDS", 1.0)
        with pytest.raises(SandboxError, match="not known whether the sandbox is secure: start again when"):
            probe.probe(made)


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("bwrap: No permissions to create new namespace", "sysctl user.max_user_namespaces"),
        ("bwrap: Unknown option --disable-userns", "install bubblewrap 0.8 or newer"),
        ("bwrap: Can't mount proc on /newroot/proc: Operation not permitted", "systempaths=unconfined"),
    ],
)
def test_an_error_of_bubblewrap_has_a_remedy(monkeypatch, public_path, said: str, remedy: str) -> None:
    fake = public_path / "bwrap"
    fake.write_text(f'#!/bin/sh\necho "{said}" >&2\nexit 1\n')
    fake.chmod(0o755)
    monkeypatch.setattr("sspo_sandbox.sandbox.find_bubblewrap", lambda: str(fake))
    with pytest.raises(SandboxError) as caught:
        probe.open_sandbox()
    assert said in str(caught.value) and remedy in str(caught.value), str(caught.value)


@pytest.mark.parametrize(
    ("limit", "value", "message"),
    [
        ("processes", 1, r"does not run Python .*: 'BlockingIOError.*: raise the limit processes$"),
        ("memory_bytes", 1, r"does not run Python \(it ended as 'memory'.*: raise the limit memory_bytes$"),
        ("open_files", 10**9, r"could not be made: the limit RLIMIT_NOFILE of 1000000000 is above .*: lower"),
    ],
)
def test_a_limit_under_which_nothing_runs_is_named(sandbox, monkeypatch, limit: str, value: int, message: str) -> None:
    monkeypatch.setattr(sandbox, "limits", dataclasses.replace(LIMITS, **{limit: value}))
    with pytest.raises(SandboxError, match=message):
        probe.probe(sandbox)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limits": {"processes": 5}, "url": "http://127.0.0.1:1"}, "set on the server"),
        ({"limits": {"cpus": 5}}, r"no option cpus: its options are wall_seconds, "),
        ({"limits": {"wall_seconds": 0}}, "wall_seconds"),
        ({"limits": {"processes": 1.5}}, "processes is 1.5: it must be an integer"),
        ({"limits": {"open_files": "9"}}, "open_files"),
        ({"packages": ["no-such-thing"]}, "'no-such-thing' is not installed here: pip install"),
        ({"python": "/no/such/python"}, "/no/such/python does not run"),
        ({"python": "/bin/true"}, "/bin/true does not run"),
        ({"cgroup": "/tmp"}, "no group with a memory limit can be made in /tmp"),
        ({"url": "ftp://host/"}, "it must be like http://"),
        ({"url": "127.0.0.1:80"}, "it must be like http://"),
    ],
)
def test_an_unusable_option_is_named(options, message: str) -> None:
    with pytest.raises(SandboxError, match=message) as caught:
        probe.open_sandbox(**options)
    assert "\n" not in str(caught.value)
