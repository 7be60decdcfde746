"""The one exception whose message is meant for the user."""


class UserError(Exception):
    """Something that the user can mend.

    The message is one sentence: the thing, the place, the remedy. The command line prints it without a traceback.
    """
