"""The keys that servers are locked with."""

from megatron_sspo.errors import UserError


def check_key(key: str, of: str, variable: str) -> None:
    """Raises UserError if a key cannot be sent in an HTTP header.

    Args:
        of: the owner of the key, for the message: "the sandbox's".
        variable: the environment variable that holds the key.
    """
    if not (key.isascii() and key.isprintable()):
        raise UserError(f"{of} key has characters that an HTTP header cannot hold: change {variable}")
