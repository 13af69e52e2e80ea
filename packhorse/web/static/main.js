// What scripts add to pages that work without them.
import { listen } from "./live.js";
import { reachCharts, readCharts } from "./charts.js";
import { startKeys } from "./keys.js";
import { startForms } from "./forms.js";
import { startLog } from "./log.js";
import { startZone } from "./zone.js";
import { startAgo } from "./ago.js";
import { startColumns } from "./columns.js";
import { startSaved } from "./saved.js";
import { startRange } from "./range.js";

for (const element of document.querySelectorAll(".js")) element.hidden = false;
for (const element of document.querySelectorAll(".nojs")) element.hidden = true;

const THEMES = ["", "light", "dark"];

export function nextTheme() {
  const root = document.documentElement;
  const theme = THEMES[(THEMES.indexOf(root.dataset.theme ?? "") + 1) % THEMES.length];
  if (theme) root.dataset.theme = theme;
  else delete root.dataset.theme;
  try {
    localStorage.setItem("packhorse-theme", theme);
  } catch {
    /* it lasts for this page */
  }
  sayTheme();
}

function sayTheme() {
  const button = document.querySelector("[data-theme-button]");
  const theme = document.documentElement.dataset.theme || "as the system";
  if (button) {
    button.setAttribute("aria-label", `Theme: ${theme}`);
    button.title = `Theme: ${theme}`;
  }
}

document.querySelector("[data-theme-button]")?.addEventListener("click", nextTheme);
sayTheme();
startZone();
startAgo();
startForms();
startKeys(nextTheme);
readCharts();
startLog();
startColumns();
startSaved();
startRange();
listen(() => {
  startZone();
  startForms();
  reachCharts();
});
