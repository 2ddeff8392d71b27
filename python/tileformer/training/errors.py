"""What can go wrong with a training run."""


class TrainingError(Exception):
    """The run cannot start as asked; the message says which option or file, why, and what is allowed."""


class TrainingStopped(TrainingError):
    """The run was under way and cannot go on (disk full, loss not finite); the last checkpoint is whole."""
