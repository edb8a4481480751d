"""Text from files and peers, made safe to print."""


def printable(value: object, keep: str = "") -> str:
    r"""Return a value as one line of text in which control characters are escaped as Python escapes them.

    A terminal obeys escape sequences, which can hide or rewrite earlier output, and a lone surrogate cannot be printed
    at all. The characters in `keep` stay unchanged, such as line ends if a text has several lines on purpose.

    >>> print(printable("layer\x1b[2J\n\ud800"))
    layer\x1b[2J\n\ud800
    """
    text = str(value)
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in keep else _escaped(one) for one in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
