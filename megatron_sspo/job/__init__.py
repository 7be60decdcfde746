"""The resources that a run holds open while it trains, and the warm start before the first rollout."""
