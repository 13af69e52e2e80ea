"""A worker for tests of the foreman: uses the channel, reserves jobs, and does what its mode and its jobs say.

A job's `do` is "hold" (runs until it is stopped or its worker quits), "wait" (until there is a file of that name in
`for`), "finish", "die" (by `signal` or with `code`), "orphan" (starts a process in a group of its own and holds),
"stick" (reads no messages any more) or "freeze" (finishes, and then stops the worker as by `kill -STOP`, but never
while it holds the lock of the storage's file).
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from packhorse.core.errors import StorageUnavailable, WorkerNotFound
from packhorse.core.job import QUEUED, Job, Reason
from packhorse.core.outcome import Completed, Stopped
from packhorse.storage import open_storage
from packhorse.storage.records import Filter, WorkerInfo
from packhorse.worker.ipc import Channel
from packhorse.worker.shared_status import SharedStatus

parser = argparse.ArgumentParser()
parser.add_argument("--mode", default="obedient")  # broken, stubborn, spent, frozen
for name in ("--id", "--shared-status", "--foreman", "--url"):
    parser.add_argument(name)
for name in ("--channel", "--parent", "--concurrency", "--max-jobs"):
    parser.add_argument(name, type=int)
parser.add_argument("--burst", action="store_true")
options = parser.parse_args()

QUEUES = {"work": 1}


class FakeWorker:
    def __init__(self) -> None:
        self.storage = open_storage(options.url)
        self.status = SharedStatus(Path(options.shared_status))
        self.channel = Channel.from_fd(options.channel)
        self.held: dict[str, tuple[int, Job]] = {}
        self.takes_jobs = True
        self.drains = False
        self.done = 0
        self.reported: dict[str, int] = {}

    def run(self) -> NoReturn:
        signal.signal(signal.SIGTERM, self.drain)
        self.storage.join(
            WorkerInfo(
                options.id,
                foreman=options.foreman,
                host=socket.gethostname(),
                pid=os.getpid(),
                queues=["work"],
                info={"python": "3"},
            )
        )
        self.channel.send({"say": "online", "pid": os.getpid(), "tasks": ["send"], "queues": QUEUES})
        if options.mode == "spent":
            self.end("it has nothing to do", done=0)
        while True:
            self.status.note_look()
            if select.select([self.channel], [], [], 0.02)[0]:
                self.listen()
            self.finish_what_has_waited()
            if self.takes_jobs:
                with suppress(StorageUnavailable, WorkerNotFound):
                    self.take()
            self.report()
            if self.drains and not self.held and options.mode != "stubborn":
                self.end("drained")
            if options.max_jobs is not None and self.done >= options.max_jobs:
                self.end("max_jobs")
            if options.burst and not self.held and not self.storage.count(Filter(frozenset({QUEUED}))).number:
                self.end("drained", found_nothing=True)

    def finish_what_has_waited(self) -> None:
        for job_id, (_, job) in list(self.held.items()):
            args = json.loads(job.args)
            if args["do"] == "wait" and Path(args["for"]).exists():
                self.storage.finish([Completed(job.token)])
                self.forget(job_id)

    def drain(self, *_: object) -> None:
        self.takes_jobs, self.drains = False, True

    def listen(self) -> None:
        messages, is_open = self.channel.read()
        for message in messages:
            match message["do"]:
                case "drain":
                    self.drain()
                case "quiet":
                    self.takes_jobs = False
                case "quit" if options.mode != "stubborn":
                    self.end("quit")
                case "stop":
                    self.stop(message["job_id"], message["fence"], Reason(message["reason"]))
                case "stacks":
                    items = [{"title": "slot 0: hold", "text": "here", "job_id": job_id} for job_id in self.held]
                    self.channel.send({"say": "stacks", "order": message["order"], "items": items, "more": 0})
                case "dump":
                    sys.stderr.write("the stacks of a worker\n")
        if not is_open:
            os._exit(0)

    def take(self) -> None:
        free = [slot for slot in range(options.concurrency) if slot not in {slot for slot, _ in self.held.values()}]
        if not free:
            return
        for job in self.storage.reserve(options.id, QUEUES, len(free)):
            self.storage.start([job.token])
            slot = free.pop()
            self.status.begin(slot, job.id)
            self.held[job.id] = (slot, job)
            self.do(job, json.loads(job.args))

    def do(self, job: Job, args: dict) -> None:
        match args["do"]:
            case "finish":
                self.storage.finish([Completed(job.token)])
                self.forget(job.id)
            case "die" if "signal" in args:
                os.kill(os.getpid(), args["signal"])
                signal.pause()
            case "die":
                os._exit(args["code"])
            case "orphan":
                nowhere = subprocess.DEVNULL  # the reader of our output must not wait for it
                subprocess.Popen(["sleep", "60"], process_group=0, stdout=nowhere, stderr=nowhere)
            case "stick":
                time.sleep(600)
            case "freeze":
                self.storage.finish([Completed(job.token)])
                self.forget(job.id)
                os.kill(os.getpid(), signal.SIGSTOP)

    def stop(self, job_id: str, fence: int, reason: Reason) -> None:
        if job_id in self.held and self.held[job_id][1].fence == fence:
            self.storage.finish([Stopped(self.held[job_id][1].token, reason)])
            self.forget(job_id)

    def forget(self, job_id: str) -> None:
        self.status.clear(self.held.pop(job_id)[0])
        self.done += 1

    def report(self) -> None:
        report = {"busy": len(self.held), "slots": options.concurrency, "done": self.done, "failed": 0}
        report["takes_jobs"] = self.takes_jobs
        if report != self.reported:
            self.reported = report
            self.channel.send({"say": "report", **report, "running": []})

    def end(self, why: str, **facts: int) -> NoReturn:
        self.storage.leave(options.id, why=why)
        self.channel.send({"say": "leaving", "why": why, **facts})
        os._exit(0)


if __name__ == "__main__":
    if options.mode == "broken":
        raise ImportError("no module named horse")
    if options.mode == "frozen":
        os.kill(os.getpid(), signal.SIGSTOP)
    FakeWorker().run()
