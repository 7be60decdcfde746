"""A run's checkpoints: Megatron's sharded tensors, the state of the loop, and a manifest with checksums."""
