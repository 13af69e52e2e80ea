// Filters that somebody has given a name, kept in this browser, and what the find box suggests.
const KEY = "packhorse-filters";
const root = document.body.dataset.root;

function kept() {
  try {
    return JSON.parse(localStorage.getItem(KEY)) ?? {};
  } catch {
    return {};
  }
}

function keep(filters) {
  try {
    localStorage.setItem(KEY, JSON.stringify(filters));
  } catch {
    /* nowhere to keep it */
  }
  draw();
}

function entry(name, query) {
  const row = document.createElement("li"),
    link = document.createElement("a"),
    drop = document.createElement("button");
  link.textContent = name;
  link.href = `${root}/jobs?${query}`;
  drop.type = "button";
  drop.className = "link";
  drop.textContent = "forget";
  drop.setAttribute("aria-label", `Forget ${name}`);
  drop.addEventListener("click", () => {
    const { [name]: gone, ...rest } = kept();
    keep(rest);
  });
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
  for (const name of ["cursor", "said", "did", "changed", "skipped"]) query.delete(name);
  const name = field.value.trim();
  if (!name) {
    field.focus();
    return;
  }
  field.value = "";
  keep({ ...kept(), [name]: query.toString() });
}

let asked = 0;

function option(text, about) {
  const made = document.createElement("option");
  made.value = text;
  made.label = about;
  return made;
}

// How what is in the box may go on; an answer that comes late is left alone.
async function suggest(box, list) {
  const mine = ++asked;
  const answer = await fetch(`${root}/api/v1/suggestions?q=${encodeURIComponent(box.value.slice(0, 1000))}`);
  if (!answer.ok || mine !== asked) return;
  const { items } = await answer.json();
  const saved = box.id === "find" ? Object.keys(kept()).map((name) => option(name, "saved filter")) : [];
  list.replaceChildren(...saved, ...items.map((each) => option(each.text, each.about)));
}

export function startSaved() {
  draw();
  const field = document.getElementById("save-name");
  field?.addEventListener("keydown", (event) => {
    if (event.key === "Enter") {
      event.preventDefault();
      save(field);
    }
  });
  document.querySelector("[data-saved] p button")?.addEventListener("click", () => save(field));
  const list = document.getElementById("find-names");
  for (const box of document.querySelectorAll("[list=find-names]")) {
    let soon = 0;
    const ask = () => suggest(box, list).catch(() => {});
    box.addEventListener("focus", ask);
    box.addEventListener("input", () => {
      clearTimeout(soon);
      soon = setTimeout(ask, 120);
    });
  }
  const find = document.getElementById("find");
  find?.form.addEventListener("submit", (event) => {
    const query = kept()[find.value.trim()];
    if (query === undefined) return;
    event.preventDefault();
    location.href = `${root}/jobs?${query}`;
  });
}
