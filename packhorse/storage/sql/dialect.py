"""How one database words the few things that are put together at run time; all else lies in its `.sql` files."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Dialect(NamedTuple):
    """The words of one database. Pieces of SQL mark each value with `?`, in order; `say` turns them into its own."""

    prefix: str  # of every table
    job: str  # the columns of a job, in the order of its fields
    args: str  # a job's arguments, wherever they lie
    one_of_texts: str  # is one of the texts of a JSON list
    one_of_numbers: str  # is one of the numbers of a JSON list
    like: str  # `{column}` LIKE a value, folding the letters A to Z and no others
    escape: str = " ESCAPE '\\'"  # behind a LIKE whose value has backslashes before what it means literally
    true: str = "1"
    of_rank: str = "rank = ?"  # said so that the index of the line is used; the rank is bound to each mark
    unordered_seq: str = "seq"  # said so that no index on it is used
    later_of_job: str = "later.job_id = {event}.job_id AND later.id > {event}.id"  # a later event of the same job
    say: Callable[[str], str] = str
    name: Callable[[str], str] = str  # a column's name, which some database may take for a word of its own
