"""How the Hub says no."""


class HubError(Exception):
    """An answer other than success.

    Args:
        status: Of the HTTP answer.
        message: What the client shows to its user.
        code: By which the clients tell errors apart, for example `"EntryNotFound"`; they do not read the body for it.
        commit: Where a file was looked for. Without it the clients do not remember that it is missing.
    """

    def __init__(self, status: int, message: str, code: str | None = None, commit: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = " ".join(message.split())  # it travels in a header
        self.code = code
        self.commit = commit


def entry_not_found(path: str, commit: str) -> HubError:
    """Return the answer to a request for a file or folder that the commit does not hold."""
    return HubError(404, f"{path} is not in this revision.", "EntryNotFound", commit)


def revision_not_found(revision: str) -> HubError:
    """Return the answer to a request for a branch, tag, pull request or commit that does not exist."""
    return HubError(404, f"There is no revision {revision}.", "RevisionNotFound")
