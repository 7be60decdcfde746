"""Output of the command line before any command runs."""

import subprocess
import sys

import pytest

from megatron_sspo import __version__
from megatron_sspo.__main__ import main
from megatron_sspo.cli.parser import COMMANDS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--set"], "argument --set: expected one argument"),
        (["train", "x.py", "--hepl"], "unrecognized arguments: --hepl"),
        (["trian"], "invalid choice: 'trian'"),
        (["convert", "a", ""], "the path is empty: write . for the working folder"),
        (["train", "x.py", "--resume="], "the path is empty: write . for the working folder"),
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


@pytest.mark.parametrize(
    ("module", "extra"), [("megatron", "megatron-sspo[train]"), ("datasets", "megatron-sspo[hub]")]
)
def test_a_module_that_is_not_installed_is_named(monkeypatch, capsys, module, extra) -> None:
    def missing() -> None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr("megatron_sspo.cli.command_line.prepare_process", missing)
    assert main(["new", "folder"]) == 2
    expected = f"megatron-sspo: this command needs {module}, which is not installed: pip install '{extra}'\n"
    assert capsys.readouterr().err == expected


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
