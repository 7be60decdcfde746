"""A trial of a model's tokenizer and chat template, which are programs that may not end."""

import contextlib
import os
import resource
import signal
from pathlib import Path
from typing import NoReturn

from megatron_sspo.errors import UserError
from megatron_sspo.processes.forks import fork, is_single_threaded

CPU_SECONDS = 120  # limits far above what any published tokenizer should need
_MEMORY_BYTES = 8 * 2**30
_MESSAGES = [{"role": "user", "content": "What is 1 + 1?"}]


def try_tokenizer(model_path: Path) -> None:
    """Loads the tokenizer in a fork, and writes a message with it, within limits of processor time and memory.

    Jinja's loops and the tokenizers' native code cannot be interrupted in this process. Errors are left to the caller,
    who does the same here. Where this process has several threads, it cannot be forked, and nothing is tried.

    Raises:
        UserError: a limit was exceeded.
    """
    if not is_single_threaded():
        return
    code = fork(lambda: _try(model_path), "tokenizer").wait()
    if code:
        how = f"{CPU_SECONDS} s of processor time" if code == -signal.SIGXCPU else "the memory that it may take"
        raise UserError(
            f"the tokenizer of {model_path} has not loaded and written one short message within {how}: replace its "
            "tokenizer files and chat template by those of the published model"
        )


def _try(model_path: Path) -> NoReturn:
    """Ends this fork with 1 if memory ran out, and with 0 after any other error: nothing may return from here."""
    code = 0
    try:
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        _limit(resource.RLIMIT_CORE, 0)
        _limit(resource.RLIMIT_CPU, CPU_SECONDS)
        _limit(resource.RLIMIT_AS, pages * resource.getpagesize() + _MEMORY_BYTES)
        _write_message(model_path)
    except MemoryError:
        code = 1
    except BaseException:  # a panic of the Rust library is not an Exception
        pass
    finally:
        os._exit(code)


def _limit(kind: int, value: int) -> None:
    """Lowers a limit of this process, as far as it is not lower already."""
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _write_message(model_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(model_path), local_files_only=True, trust_remote_code=False)
    text = _MESSAGES[0]["content"]
    with contextlib.suppress(ValueError):  # raised if there is no chat template
        text = str(tokenizer.apply_chat_template(_MESSAGES, tokenize=False, add_generation_prompt=True))
    tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"])
