"""`python -m packhorse` is the program `packhorse`."""

from __future__ import annotations

from packhorse.cli.main import main

if __name__ == "__main__":
    main()
