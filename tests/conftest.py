"""Settings of all tests."""

from hypothesis import settings

# The machine that runs the tests runs other things too: a test that is slow for once has not failed.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
