"""Rewards: functions that score responses."""
