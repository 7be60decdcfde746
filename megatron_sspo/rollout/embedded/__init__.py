"""Generation inside the trainer, with plain PyTorch."""
