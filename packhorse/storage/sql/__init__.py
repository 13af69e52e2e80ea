"""What the SQL storages share: the engine's transaction, the queries, lists, and moving to another storage.

The statements of a database are in the `.sql` files of the directory with its name.
"""
