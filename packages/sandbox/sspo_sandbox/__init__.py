"""Runs programs that a model wrote in isolation, and judges them by tests."""

from sspo_sandbox.pool import SandboxPool
from sspo_sandbox.probe import open_sandbox
from sspo_sandbox.remote import Runner, Session
from sspo_sandbox.sandbox import Sandbox
from sspo_sandbox.types import Case, Limits, SandboxBroken, SandboxError, SandboxResult, Verdict

__all__ = [
    "Case",
    "Limits",
    "Runner",
    "Sandbox",
    "SandboxBroken",
    "SandboxError",
    "SandboxPool",
    "SandboxResult",
    "Session",
    "Verdict",
    "open_sandbox",
]
