"""How pages and forms are answered: routes, signing in and out, static files, and errors as pages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from msgspec.structs import replace
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from packhorse.core.clock import SECOND
from packhorse.core.job import State
from packhorse.web.api.endpoint import in_time, read_body
from packhorse.web.api.problem import Problem
from packhorse.web.pages import DEEDS, PAGES
from packhorse.web.pages.assets import asset_response
from packhorse.web.pages.frame import Drawn, asked_of, render, render_login, render_problem
from packhorse.web.pages.page import Asked, Deed, Elsewhere, Page, Shown, address, parse_form
from packhorse.web.security.gate import safe_path
from packhorse.web.security.sessions import COOKIE, LENGTH
from packhorse.web.site import Call, Site

Answer = Callable[[Request], Awaitable[Response]]
QUICK = "quick"
LIVE = ("live", QUICK)
"""What a page's script says of itself (`X-Packhorse`) when it asks again: for all of it, or not for what is slow."""

_AGAIN = 10  # seconds after which a page that could not be shown asks again


def page_routes(site: Site, guard: Callable[[Answer], Answer]) -> list[BaseRoute]:
    """Every page, every form, the login page and the static files; `guard` goes around each answer."""
    routes: list[BaseRoute] = [
        Route("/static/{version}/{name}", guard(static)),
        Route("/login", guard(_login(site)), methods=["GET", "POST"]),
        Route("/logout", guard(_logout(site)), methods=["POST"]),
    ]
    routes += [
        Route(page.path, guard(_page(site, page)), methods=["GET"]) for page in PAGES if not _has_deed(page.path)
    ]
    for deed in DEEDS:
        page = next((page for page in PAGES if page.path == deed.path), None)
        routes.append(Route(deed.path, guard(_either(site, page, deed)), methods=["POST", *(["GET"] if page else [])]))
    return sorted(
        routes, key=lambda route: "{" in getattr(route, "path", "")
    )  # what has a name goes before what has any


def _has_deed(path: str) -> bool:
    return any(deed.path == path for deed in DEEDS)


async def static(request: Request) -> Response:
    """A static file."""
    found = asset_response(request.path_params["version"], request.path_params["name"])
    if found is None:
        raise HTTPException(404)
    return found


# --- pages and deeds --------------------------------------------------------------------------------------------------


def _page(site: Site, page: Page) -> Answer:
    async def answer(request: Request) -> Response:
        call, asked, why = site.call(request.state.operator), asked_of(request), request.headers.get("x-packhorse")
        if why not in LIVE:
            return await _answered(call, page.make, asked, request.path_params, page.place)
        since, asked = request.headers.get("last-event-id", "")[:40], replace(asked, is_quick=why == QUICK)
        return await _answered_live(call, page, asked, request.path_params, since)

    return answer


def _either(site: Site, page: Page | None, deed: Deed) -> Answer:
    async def answer(request: Request) -> Response:
        call = site.call(request.state.operator)
        if request.method in ("GET", "HEAD") and page is not None:
            return await _answered(call, page.make, asked_of(request), request.path_params, page.place)
        call.operator.require(deed.role)
        before = asked_of(request)
        asked = Asked(before.path, before.query, before.root, parse_form(await read_body(request)), True)
        return await _answered(call, deed.do, asked, request.path_params, deed.place)

    return answer


async def _answered(call: Call, make: Callable[..., Any], asked: Asked, params: dict[str, Any], place: str) -> Response:
    return _response(asked, await in_time(_draw, call, make, asked, params, place))


def _draw(call: Call, make: Callable[..., Any], asked: Asked, params: dict[str, Any], place: str) -> Drawn | Elsewhere:
    made: Shown | Elsewhere = make(call, asked, **params)
    return made if isinstance(made, Elsewhere) else render(call, asked, made, place)


def _response(asked: Asked, drawn: Drawn | Elsewhere) -> Response:
    if isinstance(drawn, Elsewhere):
        return RedirectResponse(asked.root + drawn.path, 303)
    return HTMLResponse(drawn.text, drawn.status)


# --- pages that browsers ask for by themselves ------------------------------------------------------------------------


async def _answered_live(call: Call, page: Page, asked: Asked, params: dict[str, Any], since: str) -> Response:
    """The browser asks because it heard the event `since` of the stream, as many others may just now; so one page will
    do for all who heard it. One that was drawn before the event may lack what it told of."""
    glance, drawing = call.site.glance, call.site.drawing
    key = (call.operator, asked.root, asked.path, frozenset(asked.query.items()), asked.is_quick, since)
    drawn = glance.drawn(key)
    if drawn is None:
        here = (asyncio.get_running_loop(), key)
        if here not in drawing:
            drawing[here] = asyncio.ensure_future(
                in_time(glance.page, key, lambda: _draw(call, page.make, asked, params, page.place))
            )
            drawing[here].add_done_callback(lambda _: drawing.pop(here, None))
        drawn = await asyncio.shield(drawing[here])
    return _response(asked, drawn)


# --- signing in and out -----------------------------------------------------------------------------------------------


def _login(site: Site) -> Answer:
    async def answer(request: Request) -> Response:
        asked = asked_of(request)
        if request.method != "POST":
            return render_login(site, asked, wrong=False, onward=safe_path(asked.query.get("onward", "/")))
        form = dict(parse_form(await read_body(request)))
        operator = site.access.tokens.find(form.get("token", "").strip())
        onward = safe_path(form.get("onward", "/"))
        if operator is None:  # a right token comes in, whoever else tries wrong ones from behind the same proxy
            peer = request.client.host if request.client else ""
            site.access.tries.check(peer)
            site.access.tries.note_wrong(peer)
            return render_login(site, asked, wrong=True, onward=onward, status=401)
        response = RedirectResponse(asked.root + onward, 303)
        response.set_cookie(
            COOKIE,
            site.access.sessions.begin(operator),
            max_age=LENGTH,
            path=asked.root or "/",
            secure=_is_by_https(request),
            httponly=True,
            samesite="strict",
        )
        return response

    return answer


def _is_by_https(request: Request) -> bool:
    """Does the browser speak https, be it to a proxy? It says so itself when it sends a form."""
    return request.url.scheme == "https" or request.headers.get("origin", "").lower().startswith("https://")


def _logout(site: Site) -> Answer:
    async def answer(request: Request) -> Response:
        session = getattr(request.state, "session", None)
        if session is not None:
            await in_time(site.signed_out.end, session)
        root = asked_of(request).root
        response = RedirectResponse(f"{root}/login", 303)
        response.delete_cookie(COOKIE, path=root or "/", httponly=True, samesite="strict")
        return response

    return answer


# --- errors -----------------------------------------------------------------------------------------------------------


def wants_page(request: Request) -> bool:
    """Does a person wait for this answer, at a browser?"""
    path = request.url.path.removeprefix(request.state.root)
    is_ours = not path.startswith(("/api/", "/metrics", "/healthz", "/readyz", "/static/"))
    return is_ours and "text/html" in request.headers.get("accept", "")


def refuse_page(site: Site, request: Request, problem: Problem) -> Response:
    """What went wrong, as a page; whoever is not signed in goes to the login page."""
    asked = asked_of(request)
    is_look = request.method in ("GET", "HEAD")
    if problem.status == 401 and is_look:
        onward = asked.path if not request.url.query else f"{asked.path}?{request.url.query}"
        return RedirectResponse(asked.root + address("/login", onward=onward if onward != "/" else None), 303)
    again_in = _AGAIN if is_look and problem.status == 503 else None
    known = _last_known(site, request) if problem.status == 503 else None
    return render_problem(site, asked, problem, again_in, None if is_look else _came_from(request), known)


def _last_known(site: Site, request: Request) -> tuple[int, dict[State, int]] | None:
    """How many jobs there were in each state that this operator sees, and how long ago that was."""
    operator, known = getattr(request.state, "operator", None), site.glance.last_queues()
    if operator is None or known is None:
        return None
    seconds, queues = known
    seen = [queue.counts for queue in queues if operator.sees(queue.name)]
    return round(seconds * SECOND), {state: sum(counts.get(state, 0) for counts in seen) for state in State}


def _came_from(request: Request) -> str | None:
    """The page of ours on which a form was filled in, as the browser tells it."""
    came = urlsplit(request.headers.get("referer", ""))
    if came.netloc != request.url.netloc:
        return None
    path = safe_path(came.path)
    return f"{path}?{came.query}" if came.query else path
