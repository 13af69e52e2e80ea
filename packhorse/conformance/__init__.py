"""The suite that every storage passes: what the contract says, as tests.

Our own storages and those of others are held to the same files: `packhorse storage-check` runs them on whatever it is
given, and `tests/storage/test_conformance.py` on all that we have. They want pytest; importing this package does not.
"""
