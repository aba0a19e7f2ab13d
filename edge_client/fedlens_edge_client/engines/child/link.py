"""What client and child say to each other: requests of one size, and replies of one bit and a short text.

Nothing that the child sends has a shape or a type, and its only size is bounded, so that there is little to misread.
"""

import struct
from enum import IntEnum

REQUEST = struct.Struct("<BIQQ")
"""The kind, the number of a program, and two numbers whose meaning the kind says."""
REPLY = struct.Struct("<?H")
"""Whether the request succeeded, and the length of the text that follows."""
MAX_TEXT_BYTES = 2000


class Kind(IntEnum):
    """The kind of a request."""

    LOAD = 1
    """Load a program. Two files come with it: the message and the program, of these lengths; and one for tensors."""
    START = 2
    """Take the arguments as they stand in the shared memory."""
    RUN = 3
    """Run once, with the batch in this lane."""
    FETCH = 4
    """Put the inputs that outputs have replaced into the shared memory."""
