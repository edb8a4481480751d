"""What goes wrong with data. One tree with the codec's errors, so that a command catches one base class."""

from klms.codec.errors import KLMSError


class DataError(KLMSError):
    """A data set cannot be had, or a file of it is damaged; the message names the file or source and the remedy."""


class UnsafePickle(DataError):
    """A pickle asks for something other than the arrays, lists and strings that a data file is made of."""
