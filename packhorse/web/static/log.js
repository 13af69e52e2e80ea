// A job's log, line by line as it is written.
let isFetching = false,
  told = 0;

const hours = (text) => text.slice(11, 23);

function shown(line, before) {
  const row = document.createElement("p");
  row.className = `l-${line.level}`;
  row.classList.toggle("next", before !== "" && line.attempt !== Number(before)); // the first line of another attempt
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

// The lines up to the last one that was told of, be it while others were fetched.
export async function toggledLog(job) {
  const log = document.querySelector(`[data-log]`);
  if (log?.dataset.log !== job.id) return;
  told = Math.max(told, job.last_line);
  if (isFetching) return;
  isFetching = true;
  try {
    while (told > Number(log.dataset.last) && (await fetchLines(log)));
  } catch {
    /* the server is away; the next event tells of them again */
  } finally {
    isFetching = false;
  }
}

async function fetchLines(log) {
  const path = `${document.body.dataset.root}/api/v1/jobs/${encodeURIComponent(log.dataset.log)}/log?after=${log.dataset.last}&level=${log.dataset.level}`;
  const answer = await fetch(path);
  if (!answer.ok) return false;
  const page = await answer.json();
  if (page.last === Number(log.dataset.last)) return false;
  if (page.items.length) log.querySelector("[data-none]")?.remove();
  for (const line of page.items) {
    log.append(shown(line, log.dataset.attempt));
    log.dataset.attempt = line.attempt;
  }
  while (log.children.length > 1000) log.firstElementChild.remove();
  log.dataset.last = page.last;
  const count = document.querySelector("[data-line-count]");
  if (count && page.items.length)
    count.textContent = `${log.children.length} line${log.children.length === 1 ? "" : "s"}`;
  if (document.querySelector("[data-follow]")?.checked) log.scrollTop = log.scrollHeight;
  return true;
}

export function startLog() {
  const log = document.querySelector("[data-log]");
  if (log) log.scrollTop = log.scrollHeight;
}
