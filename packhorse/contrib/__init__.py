"""Integrations with other projects. Each module is imported only by those who use that project."""
