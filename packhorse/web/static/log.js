// A job's log, line by line as it is written.
let isFetching = false;

const hours = (text) => text.slice(11, 23);

function shown(line) {
  const row = document.createElement("p");
  row.className = `l-${line.kind}`;
  const time = document.createElement("time");
  time.dateTime = line.at;
  time.dataset.kind = "hours";
  time.textContent = hours(line.at);
  const kind = document.createElement("span");
  kind.className = "kind";
  kind.textContent = line.kind === "log" ? "" : line.kind;
  const message = document.createElement("bdi");
  message.textContent = line.message;
  row.append(time, " ", kind, message);
  return row;
}

export async function toggledLog(job) {
  const log = document.querySelector(`[data-log]`);
  if (!log || log.dataset.log !== job.id || isFetching || !(job.last_line > Number(log.dataset.last))) return;
  isFetching = true;
  try {
    const path = `${document.body.dataset.root}/api/v1/jobs/${encodeURIComponent(job.id)}/log?after=${log.dataset.last}`;
    const answer = await fetch(path);
    if (!answer.ok) return;
    const page = await answer.json();
    log.querySelector("[data-none]")?.remove();
    for (const line of page.items) log.append(shown(line));
    while (log.children.length > 1000) log.firstElementChild.remove();
    log.dataset.last = page.last;
    const count = document.querySelector("[data-line-count]");
    if (count) count.textContent = `${log.children.length} line${log.children.length === 1 ? "" : "s"}`;
    if (document.querySelector("[data-follow]")?.checked) log.scrollTop = log.scrollHeight;
  } finally {
    isFetching = false;
  }
}

export function startLog() {
  const log = document.querySelector("[data-log]");
  if (log) log.scrollTop = log.scrollHeight;
}
