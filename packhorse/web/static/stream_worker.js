// Holds one event stream for all tabs and windows of this browser: HTTP/1.1 allows six connections to a server, and
// a stream for each tab would use them up. A tab sends {open: topics, url} or {close: true}, and gets
// {kind, data, id}, {opened: true} or {failed: true}.
const tabs = new Map(); // port -> {topics, url, seen: when it was heard last}
const latest = new Map(); // topic -> its last event
const SILENT = 90000,
  LOOK = 30000; // a tab that was closed without a word is dropped; a hidden one speaks once a minute
const MOST = 50; // topics, as the server allows
let source = null,
  covered = new Set();

function tell(message) {
  for (const port of tabs.keys()) port.postMessage(message);
}

function close() {
  source?.close();
  source = null;
  covered = new Set();
  latest.clear();
}

function connect(since) {
  const wanted = [...new Set([...tabs.values()].flatMap((tab) => tab.topics))].slice(-MOST);
  const { url } = [...tabs.values()].at(-1);
  close();
  covered = new Set(wanted);
  source = new EventSource(
    `${url}?topics=${encodeURIComponent(wanted.join(","))}${since ? `&last_event_id=${encodeURIComponent(since)}` : ""}`,
  );
  source.addEventListener("open", () => tell({ opened: true }));
  source.addEventListener("error", () => {
    close();
    tell({ failed: true });
  });
  for (const kind of ["overview", "job", "trouble"]) source.addEventListener(kind, (event) => hand(kind, event));
}

function hand(kind, { data, lastEventId }) {
  const message = { kind, data, id: lastEventId };
  const topic = kind === "job" ? `job:${JSON.parse(data).id}` : "overview";
  if (kind !== "trouble") latest.set(topic, message);
  for (const [port, tab] of tabs) if (kind === "trouble" || tab.topics.includes(topic)) port.postMessage(message);
}

function join(port, { open, url, since }) {
  const isKnown = tabs.has(port);
  tabs.delete(port); // the newest stands last
  tabs.set(port, { topics: open, url, seen: Date.now() });
  if (!source || !open.every((topic) => covered.has(topic))) return connect(source ? "" : since);
  if (isKnown) return undefined;
  if (source.readyState === EventSource.OPEN) port.postMessage({ opened: true });
  for (const topic of open) if (latest.has(topic)) port.postMessage(latest.get(topic));
  return undefined;
}

function leave(port) {
  tabs.delete(port);
  if (!tabs.size) close();
}

addEventListener("connect", ({ ports: [port] }) => {
  port.onmessage = ({ data }) => {
    if (data.close) leave(port);
    else if (data.open) join(port, data);
    else if (tabs.has(port)) tabs.get(port).seen = Date.now();
  };
});

setInterval(() => {
  for (const [port, tab] of tabs) if (Date.now() - tab.seen > SILENT) leave(port);
}, LOOK);
