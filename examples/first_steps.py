"""First steps: enqueue some jobs, show them, change them, run them, and show their outcomes.

Run it: python examples/first_steps.py. It keeps its jobs in ./first_steps.db, which it deletes at the start.
"""

from pathlib import Path

from packhorse import Packhorse, current_job

app = Packhorse("sqlite:///first_steps.db")  # Packhorse() alone keeps its jobs in ./packhorse.db


@app.middleware  # around every attempt, in the worker
def log_attempts(job, call):
    job.log(f"attempt {job.attempt} starts")
    try:
        return call()  # the next middleware, and finally the task
    finally:
        job.log(f"attempt {job.attempt} has ended")


@app.task
def add(a: int, b: int) -> int:
    return a + b


@app.task(retries=2, backoff=0, timeout="30s")
def send_notice(user_id: int, email: str) -> str:
    if user_id == 2 and current_job().attempt == 1:
        raise ConnectionError("the mail server is busy")  # it is retried, here immediately
    return f"sent to {email}"


def show(title: str) -> None:
    print(f"\n{title}")
    for job in app.jobs(state="unfinished"):
        print(f"  {job.task:<12}{job.state:<10} priority {job.priority}  {job.why()}")


def main() -> None:
    print("A task is still a function: 2 + 3 =", add(2, 3))

    # Enqueue jobs: the arguments are checked and stored.
    addition = add.enqueue(2, 3)
    anna = send_notice.enqueue(user_id=1, email="anna@example.org")
    bob = send_notice.enqueue_in("10m", user_id=2, email="bob@example.org")
    carol = send_notice.enqueue_unique(3, "carol@example.org")
    twin = send_notice.enqueue_unique(3, "carol@example.org")
    show(f"Four jobs; the second for Carol is the first: {twin == carol}")

    # Change them.
    carol.set_priority(9)
    bob.force_start(by="you")
    anna.abort(by="you")
    show("Carol has a higher priority, Bob was forced to start, Anna was aborted")

    # Run them. `packhorse work first_steps.py` in another terminal does the same, and keeps running.
    print("\nA worker works until nothing is left", flush=True)
    app.run(max=1, burst=True)

    # Show the outcomes.
    print(f"\nThe sum is {addition.wait(timeout=1)}. Carol's notice: {carol.result}. Anna: {anna.why()}.")
    print("\nWhat happened to Bob's notice")
    for event in bob.events():
        print(f"  {event.kind:<14} it is {event.state}")
    print("\nWhat the middleware wrote around it")
    for line in bob.logs():
        print(f"  {line.message}")
    print("\nNow try: packhorse jobs --url sqlite:///first_steps.db")


if __name__ == "__main__":
    for left in Path().glob("first_steps.db*"):
        if left.is_file():
            left.unlink()
    main()
