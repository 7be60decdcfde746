"""The figure of the gates is written completely, and shows all gates."""

from megatron_sspo.plots.gates import plot_gates


def test_png_is_written_and_nothing_else(tmp_path):
    path = tmp_path / "gates.png"
    plot_gates(path)
    assert path.read_bytes().startswith(b"\x89PNG\r\n")
    assert path.stat().st_size > 50_000
    assert list(tmp_path.iterdir()) == [path]


def test_an_older_figure_is_replaced(tmp_path):
    path = tmp_path / "gates.png"
    path.write_text("old")
    plot_gates(path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_the_suffix_chooses_the_format(tmp_path):
    plot_gates(tmp_path / "gates.svg")
    text = (tmp_path / "gates.svg").read_text()
    assert "<svg" in text
