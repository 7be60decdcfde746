"""The files of a run's folder besides its checkpoints: metrics, evaluations, the lock."""
