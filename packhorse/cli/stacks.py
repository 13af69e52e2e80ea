"""`packhorse stacks`: where the threads of workers stand just now, asked through the storage, from any machine."""

from __future__ import annotations

from packhorse.cli.failing import CommandError, ExitCode
from packhorse.cli.invocation import Invocation
from packhorse.cli.options import command
from packhorse.cli.ordering import Whom, chosen_ones, name_of, on_workers
from packhorse.cli.output import escape, paint, say
from packhorse.cli.watching import looks
from packhorse.core.event import Subject
from packhorse.monitor.actions import ask_for_stacks, have_answered, workers_of
from packhorse.monitor.stacks import stacks_of
from packhorse.monitor.text import span_text
from packhorse.storage.records import WorkerInfo


@command("stacks", "packhorse stacks 6Sy9y8qR", "packhorse stacks --all", "packhorse stacks mule:4711 --json")
@on_workers
def stacks(invocation: Invocation, whom: Whom) -> int:
    """Show where every thread of workers stands, and so what their jobs do: files, lines and functions, no values.
    Nothing is stopped. WORKER is an id as `packhorse workers` shows it, a pid, or host:pid; of a foreman, all of its
    workers."""
    storage, asked = invocation.storage, []
    everybody: list[WorkerInfo] = []
    for to in chosen_ones(invocation, whom):
        if to.subject is not Subject.FOREMAN and to.foreman is None:
            raise CommandError(f"{name_of(to)} has no foreman and cannot receive orders", ExitCode.UNSUCCESSFUL)
        asked.append((to, ask_for_stacks(storage, to, by=whom.by).number))
    for _ in looks(whom.patience):
        everybody = storage.workers()
        if all(have_answered(workers_of(to, everybody), number) for to, number in asked):
            break
    silent = 0
    for to, number in asked:
        crew = workers_of(to, everybody)
        if not crew:
            invocation.note(f"{name_of(to)} has no workers just now")
        for worker in crew:
            is_answered = have_answered([worker], number)
            silent += not is_answered
            _show(invocation, worker, is_answered, whom.patience)
    return ExitCode.TIMED_OUT if silent else ExitCode.OK


def _show(invocation: Invocation, worker: WorkerInfo, is_answered: bool, patience: int) -> None:
    told = stacks_of(worker) if is_answered else None
    if invocation.as_json:
        items = [{"title": each.title, "job_id": each.job_id, "text": each.text} for each in told.items] if told else []
        invocation.print_json({"id": worker.id, "answered": is_answered, "stacks": items})
        return
    say(paint(escape(f"{name_of(worker)} ({worker.id})"), "bold"))
    if told is None:
        say(f"  has not answered within {span_text(patience)}: something in it may hold the interpreter")
        say(f"  on its machine: py-spy dump --pid {worker.pid}")
    for stack in told.items if told else []:
        say("")
        say(f"{escape(stack.title)}{f'  job {stack.job_id}' if stack.job_id else ''}")
        for line in stack.text.splitlines():
            say(escape(line))
    say("")
