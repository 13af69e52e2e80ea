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
from packhorse.web.context import Call, WebContext
from packhorse.web.pages import FORM_ACTIONS, PAGES
from packhorse.web.pages.assets import asset_response
from packhorse.web.pages.layout import RenderedPage, page_request_of, render, render_login, render_problem
from packhorse.web.pages.page import FormAction, Page, PageRequest, PageResponse, Redirect, address, parse_form
from packhorse.web.security.middleware import safe_path
from packhorse.web.security.sessions import COOKIE, LENGTH

Answer = Callable[[Request], Awaitable[Response]]
QUICK = "quick"
LIVE = ("live", QUICK)
"""What a page's script says of itself (`X-Packhorse`) when it asks again: for all of it, or not for what is slow."""

_AGAIN = 10  # seconds after which a page that could not be shown asks again


def page_routes(web: WebContext, guard: Callable[[Answer], Answer]) -> list[BaseRoute]:
    """Every page, every form, the login page and the static files; `guard` goes around each answer."""
    routes: list[BaseRoute] = [
        Route("/static/{version}/{name}", guard(static)),
        Route("/login", guard(_login(web)), methods=["GET", "POST"]),
        Route("/logout", guard(_logout(web)), methods=["POST"]),
    ]
    routes += [
        Route(page.path, guard(_page(web, page)), methods=["GET"]) for page in PAGES if not _has_form_action(page.path)
    ]
    for form_action in FORM_ACTIONS:
        page = next((page for page in PAGES if page.path == form_action.path), None)
        routes.append(
            Route(
                form_action.path, guard(_either(web, page, form_action)), methods=["POST", *(["GET"] if page else [])]
            )
        )
    return sorted(
        routes, key=lambda route: "{" in getattr(route, "path", "")
    )  # what has a name goes before what has any


def _has_form_action(path: str) -> bool:
    return any(form_action.path == path for form_action in FORM_ACTIONS)


async def static(request: Request) -> Response:
    """A static file."""
    found = asset_response(request.path_params["version"], request.path_params["name"])
    if found is None:
        raise HTTPException(404)
    return found


# --- pages and actions -----------------------------------------------------------------------------------------------


def _page(web: WebContext, page: Page) -> Answer:
    async def answer(request: Request) -> Response:
        call, page_request, why = (
            web.call(request.state.operator),
            page_request_of(request),
            request.headers.get("x-packhorse"),
        )
        if why not in LIVE:
            return await _answered(call, page.make, page_request, request.path_params, page.place)
        since, page_request = (
            request.headers.get("last-event-id", "")[:40],
            replace(page_request, is_quick=why == QUICK),
        )
        return await _answered_live(call, page, page_request, request.path_params, since)

    return answer


def _either(web: WebContext, page: Page | None, form_action: FormAction) -> Answer:
    async def answer(request: Request) -> Response:
        call = web.call(request.state.operator)
        if request.method in ("GET", "HEAD") and page is not None:
            return await _answered(call, page.make, page_request_of(request), request.path_params, page.place)
        call.operator.require(form_action.role)
        before = page_request_of(request)
        page_request = PageRequest(before.path, before.query, before.root, parse_form(await read_body(request)), True)
        return await _answered(call, form_action.do, page_request, request.path_params, form_action.place)

    return answer


async def _answered(
    call: Call, make: Callable[..., Any], page_request: PageRequest, params: dict[str, Any], place: str
) -> Response:
    return _response(page_request, await in_time(_render, call, make, page_request, params, place))


def _render(
    call: Call, make: Callable[..., Any], page_request: PageRequest, params: dict[str, Any], place: str
) -> RenderedPage | Redirect:
    made: PageResponse | Redirect = make(call, page_request, **params)
    return made if isinstance(made, Redirect) else render(call, page_request, made, place)


def _response(page_request: PageRequest, fresh_page: RenderedPage | Redirect) -> Response:
    if isinstance(fresh_page, Redirect):
        return RedirectResponse(page_request.root + fresh_page.path, 303)
    return HTMLResponse(fresh_page.text, fresh_page.status)


# --- pages that browsers ask for by themselves ------------------------------------------------------------------------


async def _answered_live(
    call: Call, page: Page, page_request: PageRequest, params: dict[str, Any], since: str
) -> Response:
    """The browser asks because it heard the event `since` of the stream, as many others may just now; so one page will
    do for all who heard it. One that was drawn before the event may lack what it told of."""
    cache, rendering = call.web.cache, call.web.rendering
    key = (
        call.operator,
        page_request.root,
        page_request.path,
        frozenset(page_request.query.items()),
        page_request.is_quick,
        since,
    )
    fresh_page = cache.fresh_page(key)
    if fresh_page is None:
        here = (asyncio.get_running_loop(), key)
        if here not in rendering:
            rendering[here] = asyncio.ensure_future(
                in_time(cache.page, key, lambda: _render(call, page.make, page_request, params, page.place))
            )
            rendering[here].add_done_callback(lambda _: rendering.pop(here, None))
        fresh_page = await asyncio.shield(rendering[here])
    return _response(page_request, fresh_page)


# --- signing in and out -----------------------------------------------------------------------------------------------


def _login(web: WebContext) -> Answer:
    async def answer(request: Request) -> Response:
        page_request = page_request_of(request)
        if request.method != "POST":
            return render_login(web, page_request, wrong=False, onward=safe_path(page_request.query.get("onward", "/")))
        form = dict(parse_form(await read_body(request)))
        operator = web.access.tokens.find(form.get("token", "").strip())
        onward = safe_path(form.get("onward", "/"))
        if operator is None:  # a right token comes in, whoever else tries wrong ones from behind the same proxy
            peer = request.client.host if request.client else ""
            web.access.tries.check(peer)
            web.access.tries.note_wrong(peer)
            return render_login(web, page_request, wrong=True, onward=onward, status=401)
        response = RedirectResponse(page_request.root + onward, 303)
        response.set_cookie(
            COOKIE,
            web.access.sessions.begin(operator),
            max_age=LENGTH,
            path=page_request.root or "/",
            secure=_is_by_https(request),
            httponly=True,
            samesite="strict",
        )
        return response

    return answer


def _is_by_https(request: Request) -> bool:
    """Does the browser speak https, be it to a proxy? It says so itself when it sends a form."""
    return request.url.scheme == "https" or request.headers.get("origin", "").lower().startswith("https://")


def _logout(web: WebContext) -> Answer:
    async def answer(request: Request) -> Response:
        session = getattr(request.state, "session", None)
        if session is not None:
            await in_time(web.signed_out.end, session)
        root = page_request_of(request).root
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


def refuse_page(web: WebContext, request: Request, problem: Problem) -> Response:
    """What went wrong, as a page; whoever is not signed in goes to the login page."""
    page_request = page_request_of(request)
    is_look = request.method in ("GET", "HEAD")
    if problem.status == 401 and is_look:
        onward = page_request.path if not request.url.query else f"{page_request.path}?{request.url.query}"
        return RedirectResponse(page_request.root + address("/login", onward=onward if onward != "/" else None), 303)
    again_in = _AGAIN if is_look and problem.status == 503 else None
    known = _last_known(web, request) if problem.status == 503 else None
    return render_problem(web, page_request, problem, again_in, None if is_look else _came_from(request), known)


def _last_known(web: WebContext, request: Request) -> tuple[int, dict[State, int]] | None:
    """How many jobs there were in each state that this operator sees, and how long ago that was."""
    operator, known = getattr(request.state, "operator", None), web.cache.last_queues()
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
