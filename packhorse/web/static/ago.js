// How long ago something was, or how soon it will be, kept true while a page stands still.
const UNITS = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];
let ahead = 0; // the server's clock before that of this browser, in milliseconds

function told(time) {
  const away = (Date.parse(time.dateTime) - Date.now() - ahead) / 1000;
  const [unit, size] = UNITS.find(([, seconds]) => Math.abs(away) >= seconds) ?? [];
  if (!unit) return time.dataset.kind === "since" ? "just now" : "now";
  const text = `${Math.floor(Math.abs(away) / size)} ${unit}`;
  return away > 0 ? `in ${text}` : `${text} ago`;
}

function tick() {
  if (document.hidden || !document.getSelection()?.isCollapsed) return; // what is being copied stays as it is
  for (const time of document.querySelectorAll("time[data-kind=ago], time[data-kind=since]")) {
    const text = told(time);
    if (time.textContent !== text) time.textContent = text;
  }
}

export function startAgo() {
  const now = Number(document.body.dataset.now);
  if (!now) return;
  ahead = now / 1000 - Date.now();
  setInterval(tick, 1000);
}
