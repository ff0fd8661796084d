"""What the options of policies may be."""

from numbers import Real

__all__ = ["are_seconds", "is_whole"]


def is_whole(value: object) -> bool:
    """Whether it is a whole number, and not a truth value.

    >>> is_whole(3), is_whole(True), is_whole(3.0)
    (True, False, False)
    """
    return isinstance(value, int) and not isinstance(value, bool)


def are_seconds(value: object) -> bool:
    """Whether it is a time of more than nothing.

    >>> are_seconds(0.5), are_seconds(0), are_seconds("60"), are_seconds(float("nan"))
    (True, False, False, False)
    """
    return isinstance(value, Real) and not isinstance(value, bool) and value > 0
