// The event stream as a tab sees it: shared with the other tabs of this browser, or its own where that is not possible.
const KINDS = ["overview", "job", "trouble"];

// on.event(kind, data, id), on.failed(). The answer has isOpen, beat() and close().
export function openStream(url, topics, since, on) {
  return typeof SharedWorker === "function" ? shared(url, topics, since, on) : own(url, topics, since, on);
}

function shared(url, topics, since, on) {
  const { port } = new SharedWorker(new URL("./stream_worker.js", import.meta.url), { name: "packhorse-stream" });
  const stream = {
    isOpen: false,
    beat: () => port.postMessage({ here: true }),
    close: () => {
      port.postMessage({ close: true });
      port.close();
    },
  };
  port.onmessage = ({ data }) => {
    if (data.failed) return on.failed();
    stream.isOpen = true;
    return data.kind && on.event(data.kind, data.data, data.id);
  };
  port.postMessage({ open: topics.split(","), url: new URL(url, location.href).href, since });
  return stream;
}

function own(url, topics, since, on) {
  const source = new EventSource(
    `${url}?topics=${encodeURIComponent(topics)}${since ? `&last_event_id=${encodeURIComponent(since)}` : ""}`,
  );
  for (const kind of KINDS) source.addEventListener(kind, (event) => on.event(kind, event.data, event.lastEventId));
  source.addEventListener("error", on.failed);
  return {
    get isOpen() {
      return source.readyState === EventSource.OPEN;
    },
    beat: () => {},
    close: () => source.close(),
  };
}
