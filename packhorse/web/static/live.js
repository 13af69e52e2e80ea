// Live numbers: figures set as the stream brings them, tables fetched again now and then.
import { heardTime } from "./ago.js";
import { toggledLog } from "./log.js";
import { openStream } from "./stream.js";

const body = document.body;
const root = body.dataset.root;
const SOON = 3000,
  SLOW = 15000,
  HIDDEN = 30000,
  CLICK = 400,
  AGAIN = 3000;
let source = null,
  heardAt = 0,
  isPaused = false,
  refreshed = () => {},
  timer = 0,
  hiddenAt = 0;
let nextAt = { fast: 0, slow: 0 },
  latest = "",
  latestJob = "",
  trouble = "",
  lastId = "",
  later = 0,
  isRefreshing = false,
  againAt = 0;

const number = (value) => (value === null || value === undefined ? "–" : Number(value).toLocaleString("en-US"));

function compact(value) {
  if (value < 1e4) return number(value);
  const [size, unit] = [
    [1e3, "k"],
    [1e6, "M"],
  ].find(([size]) => value < 999.5 * size) ?? [1e9, "G"];
  return `${number(Number((value / size).toPrecision(3)))} ${unit}`;
}

function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  const parts = [];
  for (const [unit, size] of [
    ["d", 86400],
    ["h", 3600],
    ["m", 60],
    ["s", 1],
  ]) {
    const count = Math.floor(seconds / size);
    if (count) {
      parts.push(`${count} ${unit}`);
      seconds -= count * size;
    } else if (parts.length) break;
  }
  return parts.slice(0, 2).join(" ");
}

const FIGURES = {
  unfinished: (t) =>
    compact(
      ["scheduled", "queued", "reserved", "running", "retrying"].reduce((sum, state) => sum + t.states[state], 0),
    ),
  kinds: (t) => (t.failure_kinds ? `${t.failure_kinds} kind${t.failure_kinds === 1 ? "" : "s"}` : ""),
  queues: (t) => t.queues || "",
  schedules: (t) => t.schedules || "",
  workers: (t) => {
    const busy = `${t.busy}/${t.slots}`;
    return !t.workers ? "none" : busy.length > 7 ? busy : `${t.workers} · ${busy}`;
  },
  oldest: (t) =>
    t.oldest === null && t.paused && t.states.queued ? "all in paused queues" : `oldest ${span(t.oldest)}`,
  running: (t) => number(t.busy),
  busy: (t) => (t.slots ? ` · ${Math.round((100 * t.busy) / t.slots)} % busy` : ""),
  slots: (t) => (t.slots ? ` / ${number(t.slots)}` : ""),
  workercount: (t) => `${number(t.workers)} worker${t.workers === 1 ? "" : "s"}`,
  processed: (t) => number(t.processed),
  failed: (t) => number(t.failed),
  halted: (t) => number(t.ever.halted),
};

function setFigures(totals) {
  for (const element of document.querySelectorAll("[data-live]")) {
    const name = element.dataset.live;
    const value = name in FIGURES ? FIGURES[name](totals) : number(totals.states[name.replace("states.", "")]);
    if (element.textContent !== String(value)) element.textContent = value;
  }
}

// --- regions ---------------------------------------------------------------------------------------------------------

// Where a pointer is down, or was a moment ago: what is pressed must be there still when it is let go, and clicked.
let pressed = null,
  lettingGo = 0;

function startPressing() {
  const press = (event) => {
    clearTimeout(lettingGo);
    pressed = event.target;
  };
  const letGo = () => {
    clearTimeout(lettingGo);
    lettingGo = setTimeout(() => {
      pressed = null;
    }, CLICK);
  };
  addEventListener("pointerdown", press, true);
  for (const kind of ["pointerup", "pointercancel"]) addEventListener(kind, letGo, true);
  // Not every browser tells of a pointer that is let go over a scroll bar or a menu.
  addEventListener(
    "pointermove",
    (event) => {
      if (!event.buttons) pressed = null;
    },
    true,
  );
}

// Has somebody typed, chosen or ticked something here?
function isChanged(field) {
  if (field.options)
    return (
      field.selectedIndex !==
      Math.max(
        0,
        [...field.options].findIndex((each) => each.defaultSelected),
      )
    );
  return /checkbox|radio/.test(field.type)
    ? field.checked !== field.defaultChecked
    : field.value !== field.defaultValue;
}

function isInUse(region) {
  if (document.querySelector("dialog[open]")) return true; // it asks about a form, which must still be there after
  if (region.contains(document.activeElement) && document.activeElement !== document.body) return true;
  if (region.contains(pressed) || [...region.querySelectorAll("input, select, textarea")].some(isChanged)) return true;
  const selection = document.getSelection();
  return Boolean(selection && !selection.isCollapsed && region.contains(selection.anchorNode));
}

// The address of what is before the reader: of a list, the very rows, so that it does not move when others come.
function present() {
  const address = new URL(location.href);
  address.hash = "";
  const rows = [...document.querySelectorAll("[data-list] [data-row]")].map((row) => row.dataset.row);
  if (rows.length) address.searchParams.set("shown", rows.join(","));
  return address;
}

// All browsers ask at the same moments, so that the server draws a page once for all of them.
const after = (length) => (Math.floor(Date.now() / length) + 1) * length;

async function refresh(slowToo) {
  const wanted = [...document.querySelectorAll("[data-region]")].filter(
    (region) => slowToo || !("slow" in region.dataset),
  );
  if (!wanted.length || "posted" in body.dataset) return; // the answer to a form has no address to ask for it again
  let answer, text;
  try {
    // The event that made it ask: a page that was drawn for others before that one may lack what it told of.
    answer = await fetch(present(), {
      headers: { "X-Packhorse": slowToo ? "live" : "quick", "Last-Event-ID": lastId },
    });
    text = await answer.text();
  } catch {
    return changed();
  }
  if (!answer.ok && answer.status !== 404) return answer.status >= 500 ? changed() : undefined;
  const fresh = new DOMParser().parseFromString(text, "text/html");
  heardTime(fresh.body.dataset.now);
  for (const region of wanted) {
    const other = fresh.getElementById(region.id);
    if (!other || region.isEqualNode(other)) continue;
    if (isInUse(region)) {
      changed();
      continue;
    }
    keepOpen(region, other);
    region.replaceWith(document.adoptNode(other));
  }
  for (const element of document.querySelectorAll("main .js, #actions .js")) element.hidden = false;
  for (const element of document.querySelectorAll("main .nojs")) element.hidden = true;
  refreshed();
}

const nameOf = (details) =>
  [
    details.closest("[data-row]")?.dataset.row,
    details.closest("[data-chart]")?.querySelector("h2").textContent,
    details.firstElementChild.textContent,
  ].join();

function keepOpen(before, after) {
  const were = [...before.querySelectorAll("details")],
    are = [...after.querySelectorAll("details")];
  const same = (details, place) =>
    were.length === are.length ? were[place] : were.find((each) => nameOf(each) === nameOf(details));
  are.forEach((details, place) => {
    details.open = same(details, place)?.open ?? details.open;
  });
  const here = before.querySelector("[data-row].here")?.dataset.row;
  if (here) after.querySelector(`[data-row="${CSS.escape(here)}"]`)?.classList.add("here");
  const scrolls = before.querySelectorAll(".scroll"),
    others = after.querySelectorAll(".scroll");
  if (scrolls.length === others.length)
    requestAnimationFrame(() =>
      scrolls.forEach((each, place) => {
        others[place].scrollLeft = each.scrollLeft;
      }),
    );
}

// Look again, but not too often: what comes too soon after the last time is put off, never left out.
async function changed() {
  clearTimeout(later);
  if (isPaused) return;
  const now = Date.now();
  if (isRefreshing || now < nextAt.fast) {
    later = setTimeout(changed, Math.max(100, nextAt.fast - now));
    return;
  }
  const slowToo = now >= nextAt.slow;
  nextAt.fast = after(SOON);
  if (slowToo) nextAt.slow = after(SLOW);
  else if (document.querySelector("[data-slow]")) later = setTimeout(changed, nextAt.slow - now);
  isRefreshing = true;
  try {
    await refresh(slowToo);
  } finally {
    isRefreshing = false;
  }
}

// --- the stream ------------------------------------------------------------------------------------------------------

function heard(kind, data) {
  heardAt = Date.now();
  if (isPaused) return;
  const value = JSON.parse(data);
  trouble = kind === "trouble" ? `storage: ${value.title}` : "";
  tell();
  if (kind === "overview") {
    setFigures(value);
    const { oldest, ...rest } = value;
    const text = JSON.stringify(rest);
    if (text !== latest || (oldest ?? 0) > 0) changed();
    latest = text;
  } else if (kind === "job") {
    toggledLog(value);
    const text = JSON.stringify({ ...value, last_line: 0 }); // new lines are put into the page by themselves
    if (text !== latestJob) {
      nextAt.fast = Math.min(nextAt.fast, Date.now());
      changed();
    }
    latestJob = text;
  }
}

function open() {
  if (source || isPaused) return;
  const since = againAt ? lastId : "";
  againAt = 0;
  source = openStream(`${root}/api/v1/stream`, body.dataset.topics, since, {
    event: (kind, data, id) => {
      lastId = id;
      heard(kind, data);
    },
    failed: () => {
      close();
      againAt = Date.now() + AGAIN * (1 + Math.random());
      tell();
    },
  });
}

// A browser comes back by itself only to a server that broke off, not to one that refused, and does not tell when.
function comeBack() {
  const left = Math.ceil((againAt - Date.now()) / 1000);
  const since = heardAt ? `, no data since ${new Date(heardAt).toTimeString().slice(0, 8)}` : "";
  mark("away", `reconnecting${left > 0 ? ` in ${left} s` : ""}${since}`);
  if (left <= 0) open();
}

function close() {
  source?.close();
  source = null;
}

function mark(state, text) {
  const element = document.querySelector("[data-livemark]");
  if (!element) return;
  element.hidden = false;
  element.dataset.is = state;
  body.toggleAttribute("data-away", state === "away");
  element.querySelector("[data-livetext]").textContent = text;
}

function tell() {
  if (isPaused) return mark("paused", "paused");
  if (document.hidden && Date.now() - hiddenAt > HIDDEN) return close();
  if (!source) return comeBack();
  source.beat();
  if (!source.isOpen) return;
  if (trouble) return mark("away", trouble);
  const age = Math.round((Date.now() - heardAt) / 1000);
  if (heardAt && age < 5) mark("live", "live");
  else if (heardAt) mark("live", `live, ${age} s ago`);
}

export function pauseLive() {
  isPaused = !isPaused;
  if (isPaused) close();
  else open();
  tell();
}

export function listen(whenRefreshed) {
  if (!body.dataset.topics) return;
  refreshed = whenRefreshed;
  nextAt = { fast: after(SOON), slow: after(SLOW) };
  startPressing();
  open();
  timer = setInterval(tell, 1000);
  document.addEventListener("visibilitychange", () => {
    hiddenAt = Date.now();
    if (!document.hidden) open();
  });
  addEventListener("pagehide", () => {
    clearInterval(timer);
    clearTimeout(later);
    close();
  });
}
