"""Output of the command line before any command runs."""

import errno
import subprocess
import sys

import pytest

from megatron_sspo import __version__
from megatron_sspo.__main__ import main
from megatron_sspo.cli.parser import COMMANDS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--hepl"], "megatron-sspo train: error: there is no option --hepl: did you mean --help?"),
        (["train", "--rseume=x"], "there is no option --rseume: did you mean --resume?"),
        (["train", "--set"], "argument --set: expected one argument"),
        (["train", "--set", "a=1"], "the following arguments are required: recipe"),
        (["train", "-x"], "there is no option -x"),
        (["train", "x.py", "--hepl"], "unrecognized arguments: --hepl"),
        (["launch", "--chekc"], "there is no option --chekc: did you mean --check?"),
        (["serve", "x.py", "--flder", "y"], "there is no option --flder: did you mean --folder?"),
        (["trian"], "invalid choice: 'trian'"),
        ([], "the following arguments are required: COMMAND"),
        (["--hepl"], "there is no option --hepl: did you mean --help?"),
        (["sweep", "x.py", "--output=--"], "argument --output: '--' is not a value"),
        *(
            (arguments, "the path is empty: write . for the working folder")
            for arguments in (
                ["new", ""],
                ["convert", "a", ""],
                ["verify", "", "a"],
                ["plot", "a", ""],
                ["table", ""],
                ["sweep", "x.py", "--output="],
                ["train", "x.py", "--resume="],
                ["evaluate", "a", "--config="],
            )
        ),
    ],
)
def test_a_slip_is_named(capsys, arguments, message) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_the_version(capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"megatron-sspo {__version__}\n"


@pytest.mark.parametrize("again", ["", "atexit.register(os.kill, os.getpid(), signal.SIGINT)"])
def test_ctrl_c_while_the_modules_are_being_imported_and_at_the_end(again: str) -> None:
    program = f"""
import atexit, os, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it in background jobs

class Interrupt:
    def find_spec(self, name, *_):
        if name == "megatron_sspo.errors":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
{again}
from megatron_sspo.__main__ import main
sys.argv[1:] = ["--help"]
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("kind", [KeyboardInterrupt, ModuleNotFoundError, RuntimeError])
def test_an_interrupt_that_an_import_turned_into_another_error(monkeypatch, capsys, kind) -> None:
    def interrupted() -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise kind("could not import a module") from error

    monkeypatch.setattr("megatron_sspo.cli.command_line.prepare_process", interrupted)
    assert main(["new", "folder"]) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("can't start new thread"),
        RuntimeError("Resource temporarily unavailable"),  # of gloo
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory: you"),
        BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"),  # of a fork
        OSError(errno.ENOMEM, "Cannot allocate memory"),
    ],
)
def test_a_machine_that_refuses_memory_a_thread_or_a_process(monkeypatch, capsys, error) -> None:
    def refuse() -> None:
        raise error

    monkeypatch.setattr("megatron_sspo.cli.command_line.prepare_process", refuse)
    assert main(["new", "folder"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(
        "megatron-sspo: the machine has refused memory, a thread or a process in command_line.py, line"
    )
    assert said.count("\n") == 1 and "ulimit -u" in said


def test_another_error_keeps_its_traceback(monkeypatch) -> None:
    def fail() -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("megatron_sspo.cli.command_line.prepare_process", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        main(["new", "folder"])


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_those_with_set_say_where_fields_are_listed(capsys, command) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"usage: megatron-sspo {command}" in out
    assert ("--set FIELD=VALUE" in out) == ("are in" in out and "run.py" in out)


def test_help_imports_none_of_the_heavy_packages() -> None:
    program = (
        "import sys; from megatron_sspo.cli.parser import parser; parser();"
        "print(*sorted({name.split('.')[0] for name in sys.modules} & {'torch', 'megatron', 'numpy', 'transformers',"
        " 'pydantic', 'matplotlib', 'pyarrow', 'aiohttp'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "\n"
