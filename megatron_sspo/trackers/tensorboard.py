"""TensorBoard: event files in the run's folder."""

from torch.utils.tensorboard import SummaryWriter

from megatron_sspo.trackers.open import About, Tracker


class _TensorBoard:
    def __init__(self, about: About) -> None:
        self._writer = SummaryWriter(str(about.folder / "tensorboard"), purge_step=about.first_step)

    def log(self, values: dict[str, float], *, step: int) -> None:
        for key, value in values.items():
            self._writer.add_scalar(key, value, step)
        self._writer.flush()

    def finish(self) -> None:
        self._writer.close()


def tracker(about: About) -> Tracker:
    """Opens event files in `tensorboard/`."""
    return _TensorBoard(about)
