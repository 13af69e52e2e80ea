// A reading line over each chart; its values come from the table that the chart carries.
function read(chart, share) {
  const field = chart.querySelector(".field"),
    reading = chart.querySelector("[data-reading]");
  const rows = chart.querySelectorAll(".numbers tbody tr");
  if (!field || !rows.length) return;
  const place = Math.round(share * (rows.length - 1));
  const titles = [...chart.querySelectorAll(".numbers thead th")].slice(1).map((cell) => cell.textContent);
  const [time, ...values] = [...rows[place].children].map((cell) => cell.textContent);
  reading.textContent = `${time}  ${titles
    .map((title, number) => [title, values[number]])
    .filter(([, value]) => value)
    .map((pair) => pair.join(" "))
    .join(" · ")}`;
  let cursor = field.querySelector(".cursor:not(.band)");
  if (!cursor) {
    cursor = document.createElement("div");
    cursor.className = "cursor";
    field.append(cursor);
  }
  cursor.style.left = `${(100 * place) / Math.max(1, rows.length - 1)}%`;
  chart.dataset.place = place;
}

function leave(chart) {
  chart.querySelector(".cursor:not(.band)")?.remove();
  const reading = chart.querySelector("[data-reading]");
  if (reading) reading.textContent = "\u00a0";
}

// Where the pointer is: a fresh chart is read there, too, though the pointer rests.
let pointer = null;

function readAgain() {
  const field = pointer && document.elementFromPoint(pointer.clientX, pointer.clientY)?.closest(".field");
  if (field && !field.querySelector(".cursor")) read(field.closest("[data-chart]"), shareAt(field, pointer));
}

// Charts can be reached and read by keys; what a screen reader reads is their table.
export function reachCharts() {
  readAgain();
  for (const field of document.querySelectorAll("[data-chart] .field")) {
    field.tabIndex = 0;
    field.setAttribute("role", "group");
    field.setAttribute(
      "aria-label",
      `${field.closest("[data-chart]").querySelector("h2").textContent}, read by arrow keys`,
    );
  }
}

function shareAt(field, event) {
  const box = field.getBoundingClientRect();
  return Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
}

const lastPlace = (field) =>
  Math.max(1, field.closest("[data-chart]").querySelectorAll(".numbers tbody tr").length - 1);

// A stretch that is being marked: from one place of a chart to another, both as shares of its width.
let marked = null;

function mark(field, from, to) {
  unmark();
  const band = document.createElement("div");
  band.className = "cursor band";
  band.style.left = `${100 * Math.min(from, to)}%`;
  band.style.width = `${100 * Math.abs(to - from)}%`;
  field.append(band);
  marked = { field, from, to, band };
}

function unmark() {
  marked?.band.remove();
  marked = null;
}

// Look closer at what is marked: the same page, about that time alone.
function zoom({ field, from, to }) {
  const first = Number(field.dataset.first),
    width = Number(field.dataset.width),
    last = lastPlace(field);
  const moment = (place) => `${new Date(1000 * (first + place * width)).toISOString().slice(0, 16)}Z`;
  const address = new URL(location.href);
  address.searchParams.set("from", moment(Math.round(Math.min(from, to) * last)));
  address.searchParams.set("to", moment(Math.round(Math.max(from, to) * last) + 1));
  location.assign(address);
}

// Not every page with a chart can be about another time.
const hasRanges = () => document.querySelector(".ranges") !== null;

function startZoom() {
  let from = null;
  document.addEventListener("pointerdown", (event) => {
    const field = hasRanges() && event.target.closest?.(".field[data-first]");
    from = field && event.button === 0 ? { field, share: shareAt(field, event) } : null;
  });
  document.addEventListener("pointermove", (event) => {
    if (from) mark(from.field, from.share, shareAt(from.field, event));
  });
  document.addEventListener("pointercancel", () => {
    from = null;
    unmark();
  });
  document.addEventListener("pointerup", () => {
    if (from && marked && Math.abs(marked.to - marked.from) > 0.03) zoom(marked);
    from = null;
    unmark();
  });
}

// By keys: Enter marks where the reading line is, and a second time looks closer at what lies between.
function markByKey(chart, field) {
  const place = Number(chart.dataset.place) / lastPlace(field);
  if (marked?.field === field && marked.from !== place) zoom({ field, from: marked.from, to: place });
  else mark(field, place, place);
}

export function readCharts() {
  reachCharts();
  startZoom();
  document.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key],
      chart = event.target.closest?.(".field")?.closest("[data-chart]");
    if (event.key === "Enter" && hasRanges() && chart?.querySelector(".cursor"))
      markByKey(chart, event.target.closest(".field"));
    if (event.key === "Escape") unmark();
    if (!step || !chart) return;
    event.preventDefault();
    const last = chart.querySelectorAll(".numbers tbody tr").length - 1;
    const place = chart.querySelector(".cursor:not(.band)") ? Number(chart.dataset.place) + step : last;
    read(chart, Math.min(last, Math.max(0, place)) / Math.max(1, last));
    if (marked) mark(marked.field, marked.from, Number(chart.dataset.place) / Math.max(1, last));
  });
  document.addEventListener("focusout", (event) => {
    if (event.target.matches?.(".field")) {
      unmark();
      leave(event.target.closest("[data-chart]"));
    }
  });
  document.addEventListener("pointermove", (event) => {
    const field = event.target.closest?.(".field");
    pointer = event;
    for (const other of document.querySelectorAll(".cursor:not(.band)"))
      if (!field || !field.contains(other)) leave(other.closest("[data-chart]"));
    if (!field) return;
    read(field.closest("[data-chart]"), shareAt(field, event));
  });
}
