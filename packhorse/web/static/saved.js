// Filters that somebody has given a name, kept in this browser, and what the find box suggests.
const KEY = "packhorse-filters";
const root = document.body.dataset.root;

function kept() {
  try { return JSON.parse(localStorage.getItem(KEY)) ?? {}; } catch { return {}; }
}

function keep(filters) {
  try { localStorage.setItem(KEY, JSON.stringify(filters)); } catch { /* nowhere to keep it */ }
  draw();
}

function entry(name, query) {
  const row = document.createElement("li"), link = document.createElement("a"), drop = document.createElement("button");
  link.textContent = name;
  link.href = `${root}/jobs?${query}`;
  drop.type = "button";
  drop.className = "link";
  drop.textContent = "forget";
  drop.setAttribute("aria-label", `Forget ${name}`);
  drop.addEventListener("click", () => { const { [name]: gone, ...rest } = kept(); keep(rest); });
  row.append(link, " ", drop);
  return row;
}

function draw() {
  const list = document.querySelector("[data-saved] ul");
  if (!list) return;
  const rows = Object.entries(kept()).map(([name, query]) => entry(name, query));
  const none = document.createElement("li");
  none.className = "quiet";
  none.textContent = "None yet. Name the filter that you see, and save it.";
  list.replaceChildren(...(rows.length ? rows : [none]));
}

function save(field) {
  const query = new URLSearchParams(location.search);
  for (const name of ["cursor", "said", "changed", "skipped"]) query.delete(name);
  const name = field.value.trim();
  if (!name) { field.focus(); return; }
  field.value = "";
  keep({ ...kept(), [name]: query.toString() });
}

async function suggest(list) {
  const names = (path) => fetch(`${root}/api/v1/${path}`).then((answer) => answer.ok ? answer.json() : { items: [] });
  const [tasks, queues] = await Promise.all([names("tasks"), names("queues")]);
  for (const name of new Set([...tasks.items, ...queues.items].slice(0, 500).map((each) => each.name))) {
    const option = document.createElement("option");
    option.value = name;
    list.append(option);
  }
}

export function startSaved() {
  draw();
  const field = document.getElementById("save-name");
  field?.addEventListener("keydown", (event) => { if (event.key === "Enter") { event.preventDefault(); save(field); } });
  document.querySelector("[data-saved] p button")?.addEventListener("click", () => save(field));
  const find = document.getElementById("find"), list = document.getElementById("find-names");
  if (find && list) find.addEventListener("focus", () => suggest(list).catch(() => {}), { once: true });
}
