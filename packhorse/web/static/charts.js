// A reading line over each chart; its values come from the table that the chart carries.
function read(chart, share) {
  const field = chart.querySelector(".field"), reading = chart.querySelector("[data-reading]");
  const rows = chart.querySelectorAll(".numbers tbody tr");
  if (!field || !rows.length) return;
  const place = Math.round(share * (rows.length - 1));
  const titles = [...chart.querySelectorAll(".numbers thead th")].slice(1).map((cell) => cell.textContent);
  const [time, ...values] = [...rows[place].children].map((cell) => cell.textContent);
  reading.textContent = `${time}  ${titles.map((title, number) => `${title} ${values[number]}`).join(" · ")}`;
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

export function readCharts() {
  reachCharts();
  document.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key], chart = event.target.closest?.(".field")?.closest("[data-chart]");
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
    const box = field.getBoundingClientRect();
    read(field.closest("[data-chart]"), Math.min(1, Math.max(0, (event.clientX - box.left) / box.width)));
  });
}
