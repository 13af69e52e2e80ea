"""`packhorse web` serves the web pages; `packhorse up` also runs jobs."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from packhorse.cli.commands.work import (
    app_and_settings,
    log_format_option,
    log_to_stderr,
    make_foreman,
    report_start,
    worker_options,
)
from packhorse.cli.context import CommandContext
from packhorse.cli.errors import ExitCode
from packhorse.cli.options import Function, command, with_options
from packhorse.cli.output import say
from packhorse.cli.target import open_for_writing
from packhorse.client.app import Packhorse
from packhorse.client.app_loader import find_target
from packhorse.core.settings import Settings, read_setting
from packhorse.foreman.signals import Signals

if TYPE_CHECKING:
    from packhorse.web.security.access import Access


log = logging.getLogger("packhorse")

_RESTART_AFTER = 2.0  # seconds before a web server that exited is started again

PORT_OPTION = click.option(
    "--port", type=click.IntRange(0, 65_535), metavar="N", help="The port (5040); 0 is a free one."
)
"""The option of every command that serves the web."""


def _read_words(ctx: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    return None if value is None else read_setting("redact", value, "--redact")


def _read_proxies(ctx: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    found: tuple[str, ...] = read_setting("trusted_proxies", value, "--trusted-proxy")
    return found


redact_option = click.option(
    "--redact", metavar="A,B", callback=_read_words, help="Also hide values whose name has one of these words."
)


def web_options(function: Function) -> Function:
    """The options that `web` and `up` share."""
    options = [
        click.option("--host", metavar="ADDRESS", help="The address to listen on (127.0.0.1). Others need a token."),
        PORT_OPTION,
        click.option("--token-file", metavar="FILE", help="Who has access: lines of name, role, token [queues]."),
        click.option("--allow-host", "hosts", multiple=True, metavar="NAME", help="Also answer to this host name."),
        click.option(
            "--trusted-proxy",
            "proxies",
            multiple=True,
            metavar="ADDRESS",
            callback=_read_proxies,
            help="Trust the client address and scheme that this proxy, or network, reports.",
        ),
        click.option("--read-only", is_flag=True, help="Allow no changes."),
        click.option("--hide-args", is_flag=True, help="Show no arguments and no results."),
        redact_option,
    ]
    return with_options(function, options)


WEB_OPTIONS: dict[str, Any] = {
    **dict.fromkeys(("host", "port", "token_file", "redact")),
    "hosts": (),
    "proxies": (),
    "read_only": False,
    "hide_args": False,
}
"""The defaults of these options."""


@command(
    "web",
    "packhorse web",
    "packhorse web --port 8080 --read-only",
    "packhorse web --host 0.0.0.0 --token-file tokens.txt",
)
@web_options
@click.option(
    "--log-level",
    default="warning",
    show_default=True,
    help="info: a line for each request; debug: also requests and answers, without secrets.",
)
@log_format_option
@click.option("--open", "opens", is_flag=True, help="Open it in a browser.")
@click.option("--until-eof", is_flag=True, help="Exit when stdin ends, with the parent process.")
def web(context: CommandContext, opens: bool, until_eof: bool, **options: Any) -> None:
    """Serve the web pages and the JSON API. Only this machine can reach them unless --host says otherwise; then a token
    is needed. PACKHORSE_WEB_TOKEN is that of an admin. --token-file has more, each with a role (view, operate, work,
    admin) and, if limited, its queues."""
    from packhorse.web.server import WebServer  # slow to import

    log_to_stderr(options["log_level"], options["log_format"])
    server = _server(context, options, WebServer)
    if options["log_format"] != "text":
        log.info("Packhorse serves its pages", extra={"address": server.url, "url": context.settings.shown("url")})
    elif not context.quiet:
        say(f"Packhorse is at {server.url}   {context.settings.shown('url')}   Ctrl-C stops it", err=True)
    if until_eof:
        server.stop_at_end_of()
    if opens:
        click.launch(server.url)
    with contextlib.suppress(KeyboardInterrupt):
        server.run()


def _server(context: CommandContext, options: dict[str, Any], make: Callable[..., Any]) -> Any:
    from packhorse.web.application import make_application
    from packhorse.web.security.redaction import Redaction

    settings = context.settings
    host, port = _address(settings, options)
    access = _access(settings, options)
    app = Packhorse(storage=context.closing(open_for_writing(settings)))
    redaction = Redaction(hide_args=options["hide_args"], words=_words(settings, options))
    return make(make_application(app, access, redaction=redaction), host, port)


def _address(settings: Settings, options: dict[str, Any]) -> tuple[str, int]:
    host = options["host"] if options["host"] is not None else settings.web_host
    return host, options["port"] if options["port"] is not None else settings.web_port


def _words(settings: Settings, options: dict[str, Any]) -> tuple[str, ...]:
    """The words of the settings and of the option: one cannot show what the other hides."""
    return tuple(dict.fromkeys((*settings.redact, *(options["redact"] or ()))))


def _access(settings: Settings, options: dict[str, Any]) -> Access:
    from packhorse.web.security.access import decide_access
    from packhorse.web.security.tokens import load_tokens

    tokens = load_tokens(settings.web_token, options["token_file"] or settings.web_token_file)
    host, _ = _address(settings, options)
    return decide_access(
        host,
        tokens,
        allowed_hosts=options["hosts"],
        read_only=options["read_only"],
        trusted_proxies=options["proxies"] or settings.trusted_proxies,
    )


@command("up", "packhorse up", "packhorse up shop.jobs:app --min 2 --port 8080")
@click.argument("target", required=False)
@worker_options
@web_options
def up(context: CommandContext, target: str | None, **options: Any) -> int:
    """Run jobs and serve the web pages: `work` and `web` in one. TARGET is `module:app` or `file.py`; else the app in
    app.py, jobs.py or tasks.py here."""
    with Signals() as signals:
        target = target or context.settings.app or find_target()
        app, settings = app_and_settings(context, target, options)
        check_web(context.settings, options, "packhorse up")
        foreman = make_foreman(app, settings, target, options, signals)
        if not context.quiet:
            report_start(app, settings, target, options["log_format"], options.get("queues"))
        with web_beside(settings, options, quiet=context.quiet or options["log_format"] != "text"):
            return foreman.run()


def check_web(settings: Settings, options: dict[str, Any], command: str) -> None:
    """Raise the error that the web would exit with, before any worker starts."""
    from packhorse.web.bind import listening_socket

    _access(settings, options)
    listening_socket(*_address(settings, options), command).close()


@contextlib.contextmanager
def web_beside(settings: Settings, options: dict[str, Any], *, quiet: bool) -> Iterator[None]:
    """Serve the web in a process of its own, so that no page can slow a heartbeat. Restart it if it exits."""
    words, environment = web_command(settings, options, quiet=quiet)
    over = threading.Event()
    running: list[subprocess.Popen[bytes]] = []

    def keep() -> None:
        while not over.is_set():
            # In a session of its own: Ctrl-C is for the foreman, which stops the web after its jobs.
            process = subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True, env=environment)
            running[:] = [process]
            code = process.wait()
            if code in (ExitCode.REFUSED, ExitCode.USAGE):  # a restart would not help
                return
            over.wait(_RESTART_AFTER)

    thread = threading.Thread(target=keep, name="packhorse-web", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        for process in running:
            process.terminate()
        thread.join(10)


def web_command(settings: Settings, options: dict[str, Any], *, quiet: bool) -> tuple[list[str], dict[str, str]]:
    """The command line that starts the web beside a foreman, and its environment. The URL is in the environment: it may
    have a password, and everyone on the machine can read command lines."""
    words = [sys.executable, "-m", "packhorse", "web", "--until-eof", *_web_words(settings, options)]
    words += ["--quiet"] if quiet else []
    if options.get("log_level") == "debug":  # else the log is about jobs, not about requests
        words += ["--log-level", "debug", "--log-format", options["log_format"]]
    return words, {**os.environ, "PACKHORSE_URL": settings.url}


def _web_words(settings: Settings, options: dict[str, Any]) -> list[str]:
    given = {"--host": options["host"], "--port": options["port"], "--token-file": options["token_file"]}
    given["--redact"] = (
        ",".join(_words(settings, options)) or None
    )  # an app may have set it, and the web does not load the app
    words = [word for name, value in given.items() if value is not None for word in (name, str(value))]
    words += [word for host in options["hosts"] for word in ("--allow-host", host)]
    words += [word for proxy in options["proxies"] for word in ("--trusted-proxy", proxy)]
    return words + [f"--{name.replace('_', '-')}" for name in ("read_only", "hide_args") if options[name]]
