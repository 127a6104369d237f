"""What the crash test finds."""


class Failure(Exception):
    """Something is lost, or counted twice, or in part."""
