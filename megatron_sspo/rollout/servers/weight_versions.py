"""The names of weight versions, by which a run knows the weights that it has sent from those of another trainer."""


def version_name(run: str, version: int) -> str:
    """Returns the name of a policy version's weights on the servers.

    Args:
        run: an identifier of the engine that sends the weights, different in every process.
        version: the policy version.
    """
    return f"{run}-{version}"


def version_number(run: str, name: str) -> int:
    """Reverses `version_name`.

    Raises:
        ValueError: the weights are not those of this run.
    """
    sender, _, number = name.rpartition("-")
    if sender != run or not number.isdecimal():
        raise ValueError(
            f"these are weights of the version {name!r}, which this run has not sent: the server was restarted, or "
            "another trainer uses it, too"
        )
    return int(number)
