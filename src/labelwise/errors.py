"""The exception tree: every error a user can cause is a LabelwiseError with one clear sentence."""


class LabelwiseError(Exception):
    """An error with a message fit for a user: the rule, the value, the way out."""


class DataError(LabelwiseError):
    """A table, split or dataset that cannot be used as it is."""


class QuestionError(DataError):
    """Data that can be read in several ways; its message has a line for each of them."""


class ImageError(DataError):
    """One image that cannot be read."""


class SettingsError(LabelwiseError):
    """A setting, name or option that does not exist or does not fit."""


class CheckpointError(LabelwiseError):
    """A saved model or run that is missing, unreadable or belongs to something else."""


class TrainingError(LabelwiseError):
    """A run that cannot go on, such as a loss that is no longer a number."""


def require(holds: object, message: str) -> None:
    """Raise a ValueError that says the rule and the value, unless the rule holds."""
    if not holds:
        raise ValueError(message)
