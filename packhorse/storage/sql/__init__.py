"""What the SQL storages share: the groups of operations, said once, over statements that each database words itself.

A group finds jobs under a lock, decides with `changes.py`, and writes back in one transaction. What must be faster than
that is said in SQL by each storage for itself. The `.sql` files of a database lie in the directory of its name.
"""
