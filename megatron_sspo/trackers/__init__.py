"""Trackers, which receive the metrics besides metrics.jsonl; each file of one is a plug-in."""
