// Exact times in UTC or in the time of this browser.
const isLocal = () => {
  try {
    return localStorage.getItem("packhorse-zone") === "local";
  } catch {
    return false;
  }
};
const two = (number, width = 2) => String(number).padStart(width, "0");

function shown(moment, kind, local) {
  const get = (name) => (local ? moment[`get${name}`]() : moment[`getUTC${name}`]());
  const hours = `${two(get("Hours"))}:${two(get("Minutes"))}:${two(get("Seconds"))}.${two(get("Milliseconds"), 3)}`;
  if (kind === "moment") return `${get("FullYear")}-${two(get("Month") + 1)}-${two(get("Date"))} ${hours.slice(0, 8)}`;
  return kind === "hours" ? hours : `${get("FullYear")}-${two(get("Month") + 1)}-${two(get("Date"))} ${hours}`;
}

let isListening = false;

export function startZone() {
  const button = document.querySelector("[data-zone]");
  const local = isLocal();
  if (button) {
    button.textContent = local ? "local time" : "UTC";
    button.title = "Show times in UTC or in local time";
  }
  if (local || isListening) {
    for (const time of document.querySelectorAll(
      "time[data-kind=clock], time[data-kind=hours], time[data-kind=moment]",
    ))
      time.textContent = shown(new Date(time.dateTime), time.dataset.kind, local);
  }
  if (button && !isListening) {
    isListening = true;
    button.addEventListener("click", () => {
      try {
        localStorage.setItem("packhorse-zone", isLocal() ? "utc" : "local");
      } catch {
        /* nothing to keep it in */
      }
      startZone();
    });
  }
}
