"""How one database words the few things that are put together at run time; all else lies in its `.sql` files."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Dialect(NamedTuple):
    """The words of one database. Pieces of SQL mark each value with `?`, in order; `say` turns them into its own."""

    prefix: str  # of every table
    job: str  # the columns of a job, in the order of its fields
    args: str  # a job's arguments, wherever they lie
    texts: str  # the texts of a JSON list, as a subquery
    numbers: str  # the numbers of a JSON list, as a subquery
    like: str  # `{column}` LIKE a value, folding the letters A to Z and no others
    escape: str = " ESCAPE '\\'"  # behind a LIKE whose value has backslashes before what it means literally
    true: str = "1"
    of_rank: str = "rank = ?"  # said so that the index of the line is used; the rank is bound to each mark
    unordered_seq: str = "seq"  # said so that no index on it is used
    say: Callable[[str], str] = str
    name: Callable[[str], str] = str  # a column's name, which some database may take for a word of its own
