// A reading line over each chart; its values come from the table that the chart carries.
function read(chart, share) {
  const field = chart.querySelector(".field"), reading = chart.querySelector("[data-reading]");
  const rows = chart.querySelectorAll(".numbers tbody tr");
  if (!field || !rows.length) return;
  const place = Math.round(share * (rows.length - 1));
  const titles = [...chart.querySelectorAll(".numbers thead th")].slice(1).map((cell) => cell.textContent);
  const [time, ...values] = [...rows[place].children].map((cell) => cell.textContent);
  reading.textContent = `${time}  ${titles.map((title, number) => [title, values[number]]).filter(([, value]) => value).map((pair) => pair.join(" ")).join(" · ")}`;
  let cursor = field.querySelector(".cursor");
  if (!cursor) { cursor = document.createElement("div"); cursor.className = "cursor"; field.append(cursor); }
  cursor.style.left = `${(100 * place) / Math.max(1, rows.length - 1)}%`;
  chart.dataset.place = place;
}

function leave(chart) {
  chart.querySelector(".cursor")?.remove();
  const reading = chart.querySelector("[data-reading]");
  if (reading) reading.textContent = "\u00a0";
}

// Charts can be reached and read by keys; what a screen reader reads is their table.
export function reachCharts() {
  for (const field of document.querySelectorAll("[data-chart] .field")) {
    field.tabIndex = 0;
    field.setAttribute("role", "group");
    field.setAttribute("aria-label", `${field.closest("[data-chart]").querySelector("h2").textContent}, read by arrow keys`);
  }
}

// Look closer: the shortest of the ranges that reaches back to the place, as a share of what is shown.
function zoom(share) {
  const ranges = [...document.querySelectorAll(".ranges a")];
  const length = (link) => parseInt(link.textContent) * { m: 1, h: 60, d: 1440 }[link.textContent.slice(-1)];
  const shown = ranges.find((link) => link.hasAttribute("aria-current"));
  const next = shown && ranges.find((link) => length(link) >= (1 - share) * length(shown));
  if (next && next !== shown) next.click();
}

let from = null;

function shareAt(field, event) {
  const box = field.getBoundingClientRect();
  return Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
}

function startZoom() {
  document.addEventListener("pointerdown", (event) => {
    const field = event.target.closest?.(".field");
    from = field && event.button === 0 ? { field, share: shareAt(field, event) } : null;
  });
  document.addEventListener("pointerup", (event) => {
    if (!from) return;
    const to = shareAt(from.field, event), start = Math.min(from.share, to);
    if (Math.abs(to - from.share) > 0.03) zoom(start);
    from = null;
  });
}

export function readCharts() {
  reachCharts();
  startZoom();
  document.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key], chart = event.target.closest?.(".field")?.closest("[data-chart]");
    if (event.key === "Enter" && chart?.querySelector(".cursor")) zoom(chart.dataset.place / Math.max(1, chart.querySelectorAll(".numbers tbody tr").length - 1));
    if (!step || !chart) return;
    event.preventDefault();
    const last = chart.querySelectorAll(".numbers tbody tr").length - 1;
    const place = chart.querySelector(".cursor") ? Number(chart.dataset.place) + step : last;
    read(chart, Math.min(last, Math.max(0, place)) / Math.max(1, last));
  });
  document.addEventListener("focusout", (event) => { if (event.target.matches?.(".field")) leave(event.target.closest("[data-chart]")); });
  document.addEventListener("pointermove", (event) => {
    const field = event.target.closest?.(".field");
    for (const other of document.querySelectorAll(".cursor")) if (!field || !field.contains(other)) leave(other.closest("[data-chart]"));
    if (!field) return;
    read(field.closest("[data-chart]"), shareAt(field, event));
  });
}
