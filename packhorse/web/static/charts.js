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

export function readCharts() {
  document.addEventListener("pointermove", (event) => {
    const field = event.target.closest?.(".field");
    for (const other of document.querySelectorAll(".cursor")) if (!field || !field.contains(other)) leave(other.closest("[data-chart]"));
    if (!field) return;
    const box = field.getBoundingClientRect();
    read(field.closest("[data-chart]"), Math.min(1, Math.max(0, (event.clientX - box.left) / box.width)));
  });
}
