"""The errors of this library."""


class AgentError(Exception):
    """An error in an agent, an environment of verifiers or their settings, in one sentence with the remedy."""


class Refusal(Exception):
    """A request that is not answered.

    Attributes:
        status: the status of the HTTP response. Clients send a request again after 408, 409, 429 and 5xx alone.
        code: the reason for programs.
    """

    def __init__(self, message: str, *, status: int = 400, code: str = "invalid_request") -> None:
        super().__init__(message)
        self.status, self.code = status, code


def describe_error(error: BaseException) -> str:
    """Returns the type and the text of an exception, on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
