"""What can go wrong, by whose hand: every message is one line that says what to do."""


class CoboError(Exception):
    """Base of all errors that cobo raises on purpose."""


class ConfigError(CoboError, ValueError):
    """A setting is wrong: the message names the field, the value and what is allowed."""


class DataError(CoboError, ValueError):
    """A client's data cannot be used: the message names the client."""


class CheckpointError(CoboError):
    """A run on disk cannot be read or gone on with."""


class RunError(CoboError):
    """A run failed while training; what was written so far stays."""


class RunWarning(UserWarning):
    """A run went on, but its result may not be what you want."""


class RankLost(CoboError):
    """Another process of this run has ended, or cannot be reached."""


class Interrupted(KeyboardInterrupt):
    """The user pressed Ctrl-C; a checkpoint was written if the run has a folder."""
