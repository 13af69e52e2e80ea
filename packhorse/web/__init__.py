"""The web: a JSON API, live numbers and pages, on Starlette. It looks at jobs through the client and the storage only,
never asks a worker, never imports a user's code, and keeps no state of its own."""
