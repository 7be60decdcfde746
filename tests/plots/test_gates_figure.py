"""The figure of the gates is written completely, and shows all gates."""

from megatron_sspo.plots.gates import plot_gates


def test_the_figure_replaces_an_older_one_in_the_format_of_its_suffix(tmp_path):
    for name, beginning in (("gates.png", b"\x89PNG\r\n"), ("gates.svg", b"<?xml")):
        (tmp_path / name).write_text("old")
        plot_gates(tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(beginning) and (tmp_path / name).stat().st_size > 50_000
    assert len(list(tmp_path.iterdir())) == 2
