"""The engines that generate responses, one file for each: `engine` is what `Rollouts.engine` names."""
