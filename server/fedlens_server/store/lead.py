"""The lead: of all servers that have opened a database, the last one alone may write it.

The table `lead` holds one row with the term of that server. Each transaction that writes begins with `hold`, which
keeps the row as it is until the transaction ends; a server that comes later waits for that, and takes the next term.
"""

from sqlalchemy import Connection, bindparam, select, update

from fedlens_server.errors import Unavailable
from fedlens_server.store import schema

_term = schema.lead.c.term
_NEXT = update(schema.lead).values(term=_term + 1).returning(_term)
_HOLD = select(_term).where(_term == bindparam("mine")).with_for_update(read=True)


class LeadLost(Unavailable):
    """Another server has opened the database; this one must end."""


def take(connection: Connection) -> int:
    """Take the lead in a transaction; returns its term."""
    term: int = connection.execute(_NEXT).scalar_one()
    return term


def hold(connection: Connection, term: int) -> None:
    """Hold the lead until the transaction ends.

    Raises:
        LeadLost: Another server has it.
    """
    if connection.execute(_HOLD, {"mine": term}).first() is None:
        raise LeadLost("another server has taken this one's place; send the request again", 5000)
