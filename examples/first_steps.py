"""First steps: enqueue some jobs, look at them, steer them, and play the worker by hand.

Run it: python examples/first_steps.py
"""

import tempfile
from pathlib import Path

from packhorse import Packhorse
from packhorse.codec import encode_result
from packhorse.outcome import Completed
from packhorse.storage.records import TaskInfo, WorkerInfo

folder = tempfile.TemporaryDirectory()
app = Packhorse(f"sqlite:///{Path(folder.name) / 'jobs.db'}")  # Packhorse() alone keeps its jobs in ./packhorse.db


@app.task(retries=2, timeout="30s")
def send_notice(user_id: int, email: str) -> str:
    return f"sent to {email}"


@app.task(priority=5)
def add(a: int, b: int) -> int:
    return a + b


def show(title: str) -> None:
    print(f"\n{title}")
    for job in app.jobs(state="unfinished"):
        print(f"  {job.task:<12}{job.state:<10} priority {job.priority}  {job.why()}")


print("A task is still a function: 2 + 3 =", add(2, 3))

# Enqueue: the arguments are checked and stored; a worker runs them.
addition = add.enqueue(2, 3)
anna = send_notice.enqueue(user_id=1, email="anna@example.org")
bob = send_notice.enqueue_in("10m", user_id=2, email="bob@example.org")
carol = send_notice.enqueue_unique(3, "carol@example.org")
twin = send_notice.enqueue_unique(3, "carol@example.org")
show(f"Four jobs; the second for Carol is the first: {twin == carol}")

# A worker joins. `packhorse work` does this, and the work below, in many slots at once.
app.storage.join(WorkerInfo("by-hand", queues=["add", "send_notice"], concurrency=1))
app.storage.announce([TaskInfo(task.name, task.queue) for task in app.registry])
show("A worker is there")

# Steer.
carol.set_priority(9)
bob.force_start(by="you")
anna.abort(by="you")
show("Carol has a higher priority, Bob was forced to start, Anna was aborted")

# Work.
print("\nThe worker works")
while jobs := app.storage.reserve("by-hand", {"add": 1, "send_notice": 1}, limit=1):
    task = app.registry.get(jobs[0].task)
    result = task.function(**task.signature.decode(jobs[0].args))
    app.storage.finish([Completed(jobs[0].token, encode_result(result))])
    print(f"  {task.name:<12}{result}")

# Look.
print(f"\nThe sum is {addition.wait(timeout=1)}. Completed: {app.count(state='completed')}. Anna: {anna.why()}.")
print("\nWhat happened to Bob's notice")
for event in bob.events():
    print(f"  {event.kind:<14} it is {event.state}")

app.close()
folder.cleanup()
