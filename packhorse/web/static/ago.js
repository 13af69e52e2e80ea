// How long ago something was, or how soon it will be, kept true while a page stands still.
const UNITS = [
  ["d", 86400],
  ["h", 3600],
  ["m", 60],
  ["s", 1],
];
const WORDS = {
  ago: ["", "", "now"],
  since: ["", "", "just now"],
  due: ["", "due ", "due now"],
  next: ["next ", "due ", "due now"],
};
let ahead = -Infinity; // the server's clock before that of this browser, in milliseconds

function told(time) {
  const away = (Date.parse(time.dateTime) - Date.now() - ahead) / 1000;
  const [unit, size] = UNITS.find(([, seconds]) => Math.abs(away) >= seconds) ?? [];
  const [before, past, now] = WORDS[time.dataset.kind];
  if (!unit) return now;
  const text = `${Math.floor(Math.abs(away) / size)} ${unit}`;
  return away > 0 ? `${before}in ${text}` : `${past}${text} ago`;
}

function tick() {
  if (document.hidden || !document.getSelection()?.isCollapsed) return; // what is being copied stays as it is
  for (const time of document.querySelectorAll("time[data-kind]")) {
    if (!(time.dataset.kind in WORDS)) continue;
    const text = told(time);
    if (time.textContent !== text) time.textContent = text;
  }
}

// What time it was when the server wrote a page. One that was long on its way says too little, and what happened since
// would seem to be in the future, so the page that came quickest is believed.
export function heardTime(now) {
  if (now) ahead = Math.max(ahead, now / 1000 - Date.now());
}

export function startAgo() {
  heardTime(document.body.dataset.now);
  if (ahead > -Infinity) setInterval(tick, 1000);
}
