"""What can go wrong, each with a name for programs and words for people."""


class BadInput(Exception):
    """What was given cannot be used, or the machine has no more room: nothing more can be made."""

    def __init__(self, name, text):
        super().__init__(text)
        self.name = name


class Refused(Exception):
    """A recipe does not suit this model, or what came of it is not good enough. The others go on."""
