"""What decoding refuses."""


class ModelRefusedError(ValueError):
    """The model cannot be served exactly; the message says why."""


class NoPlaceError(LookupError):
    """All places for sessions are taken."""
