"""What a policy acts in, where a rollout has several turns."""
