"""The figure of the gates."""

from megatron_sspo.__main__ import main


def test_the_figure_replaces_an_older_one_in_the_format_of_its_suffix(tmp_path):
    for name, beginning in (("gates.png", b"\x89PNG\r\n"), ("gates.svg", b"<?xml")):
        (tmp_path / name).write_text("old")
        assert main(["plot", "gates", "--output", str(tmp_path / name)]) == 0
        assert (tmp_path / name).read_bytes().startswith(beginning) and (tmp_path / name).stat().st_size > 50_000
    assert len(list(tmp_path.iterdir())) == 2


def test_a_picture_that_cannot_be_written(tmp_path, capsys):
    assert main(["plot", "gates", "--output", str(tmp_path / "x.txt")]) == 2
    assert capsys.readouterr().err.endswith(": choose a suffix of .png, .svg, .pdf with --output\n")
