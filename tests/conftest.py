"""Settings of all tests."""

from hypothesis import settings

# The machine may be busy with other work, so a slow example is not a failure.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
