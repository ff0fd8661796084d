"""The rule by which a name means a region: its components come in a row in the region's path, "moe/experts"."""

__all__ = ["ends"]


def ends(path: str, name: str) -> list[int]:
    """How many components of a region's path go up to the end of the name, for each place where it is.

    >>> ends("block3/moe/experts/up", "moe/experts"), ends("a/b/a", "a"), ends("moe/experts", "exp"), ends("", "")
    ([3], [1, 3], [], [])
    """
    parts, own = path.split("/"), name.split("/")
    return [end for end in range(len(own), len(parts) + 1) if name and parts[end - len(own) : end] == own]
