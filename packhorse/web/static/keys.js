// Single keys for those who know them; they can be switched off.
import { pauseLive } from "./live.js";
import { withRange } from "./range.js";

const PLACES = {
  o: "/",
  j: "/jobs",
  f: "/failures",
  q: "/queues",
  t: "/tasks",
  w: "/workers",
  s: "/schedules",
  a: "/audit",
};
let isGoing = false,
  ticked = "";

const isOff = () => {
  try {
    return localStorage.getItem("packhorse-keys") === "off";
  } catch {
    return false;
  }
};

function move(step) {
  const rows = [...document.querySelectorAll("[data-row]")];
  if (!rows.length) return;
  const at = rows.findIndex((row) => row.classList.contains("here"));
  rows[at]?.classList.remove("here");
  const row = rows[Math.min(rows.length - 1, Math.max(0, at + step))];
  row.classList.add("here");
  row.scrollIntoView({ block: "nearest" });
}

// All rows from the one that was ticked last to this one.
function tickTo(row) {
  const rows = [...document.querySelectorAll("[data-row]")];
  const places = [rows.findIndex((each) => each.dataset.row === ticked), rows.indexOf(row)].sort((a, b) => a - b);
  if (places[0] < 0) return;
  for (const each of rows.slice(places[0], places[1] + 1)) {
    const box = each.querySelector("input[type=checkbox]");
    if (box && !box.checked) box.click();
  }
}

export function startKeys(nextTheme) {
  const dialog = document.getElementById("keys");
  const off = dialog?.querySelector("[data-keys-off]");
  if (off) {
    off.checked = isOff();
    off.addEventListener("change", () => {
      try {
        localStorage.setItem("packhorse-keys", off.checked ? "off" : "on");
      } catch {
        /* for this page only */
      }
    });
  }
  document.querySelector("[data-keys]")?.addEventListener("click", () => dialog?.showModal());
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || isOff()) return;
    if (event.target.matches("input, textarea, select, [contenteditable]")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (document.querySelector("dialog[open]")) return;
    if (isGoing) {
      isGoing = false;
      if (event.key in PLACES) location.href = withRange(document.body.dataset.root + PLACES[event.key]);
      return;
    }
    const row = document.querySelector("[data-row].here");
    switch (event.key) {
      case "/":
        event.preventDefault();
        document.getElementById("find")?.focus();
        break;
      case "g":
        isGoing = true;
        setTimeout(() => {
          isGoing = false;
        }, 1500);
        break;
      case "j":
        move(1);
        break;
      case "k":
        move(-1);
        break;
      case "x":
        ticked = row?.dataset.row;
        row?.querySelector("input[type=checkbox]")?.click();
        break;
      case "X":
        tickTo(row);
        break;
      case "e": {
        const more = row?.querySelector("details");
        if (more) more.open = !more.open;
        break;
      }
      case "]":
        document.querySelector("a[rel=next]")?.click();
        break;
      case "[":
        history.back();
        break;
      case "Enter":
        if (row && !event.target.closest("a, button, summary")) row.querySelector("a")?.click();
        break;
      case "u":
        document.querySelector("[data-undo]")?.requestSubmit();
        break;
      case "r":
      case "c":
        if (!event.repeat) document.querySelector(`#actions [aria-keyshortcuts=${event.key}]`)?.click();
        break;
      case "p":
        pauseLive();
        break;
      case "t":
        nextTheme();
        break;
      case "?":
        dialog?.showModal();
        break;
    }
  });
}
