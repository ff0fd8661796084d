"""What Dynamo says when it cannot capture a function, in words that a user understands."""

import re

__all__ = ["understandable"]

_DATA = "it decides something by a value that only the data tells; use torch.where or torch.cond"
_LENGTH = (
    "it loops over something, or makes something, of a length that only the data tells; loop over range(number of "
    "experts), or trace with strict=False"
)
# The first pattern that is found in Dynamo's text gives the sentence; groups are put in.
_SENTENCES = (
    (r"^Data-dependent branching", _DATA),
    (r"Could not extract specialized integer", _LENGTH),
    (r"[Dd]ata-dependent expression", _DATA),
    (r"Missing `as_proxy\(\)`", "it passes an object to an operation that no graph can hold, such as a generator"),
    (r"builtin operator `(\w+)`", "it calls {0}, which no graph can replay: leave it out of forward"),
    (r"wrapped with `torch\.compiler\.disable`", "it calls a function under torch.compiler.disable: take that off"),
    (r"does not know how to trace the (?:Python )?builtin `(.+?)\.?`", "it calls {0}, which no graph can replay"),
    (
        r"function `checkpoint_sequential`",
        "it calls checkpoint_sequential, which Dynamo does not read: call torch.utils.checkpoint.checkpoint per part",
    ),
    (r"marked that the function `(.+?)`", "it calls {0}, which no graph can replay"),
    (r"Failed to find name `(.+?)`", "the name {0} is not defined"),
    (r"(auxiliary losses are seen .+ strict=False)", "{0}"),
    (r"raised exception NameError\(.*name '(\w+)' is not defined", "the name {0} is not defined"),  # PyTorch 2.15
    (r"raised exception (\w+)\(\[ConstantVariable\(str: (.+?)\)\]\)", "it raises {0}({1})"),  # PyTorch 2.11
    (r"raised exception (?:ObservedException\()?(.+)", "it raises {0}"),
    (r"got \w+\((['\"])(.+?)\1\)", "{1}"),
    (r"Explanation: (.+)", "{0}"),
    (r"(.+)", "{0}"),
)


def understandable(error: BaseException) -> str:
    r"""One sentence.

    >>> understandable(RuntimeError("Data-dependent branching\n  Explanation: ..."))
    'it decides something by a value that only the data tells; use torch.where or torch.cond'
    """
    text = str(error)
    for pattern, sentence in _SENTENCES:
        if found := re.search(pattern, text):
            return sentence.format(*found.groups())
    return type(error).__name__
