"""What can be wrong with a model that the user named."""


class ModelError(Exception):
    """A model that cannot be found, converted or loaded; the message says which, why and what to do."""
