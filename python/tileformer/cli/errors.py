"""Exit codes, and a bad request that the parser of options cannot see."""

STOPPED = 1
BAD_INPUT = 2
INTERRUPTED = 130  # 128 + SIGINT, what a shell reports for Ctrl-C


class UsageError(Exception):
    """The command cannot do what was asked; the message says why and what is allowed."""
