// Which columns lists of jobs show, and how close their rows stand: kept in this browser.
const KEY = "packhorse-columns";
const USUAL = ["Queue", "Priority", "Attempt", "Waited", "Ran", "When"];
const sheet = new CSSStyleSheet();

function kept() {
  try {
    return JSON.parse(localStorage.getItem(KEY)) ?? USUAL;
  } catch {
    return USUAL;
  }
}

function show(chosen) {
  const hidden = USUAL.filter((name) => !chosen.includes(name)).map(
    (name) => `.jobs [data-label="${name}"] { display: none !important; }`,
  );
  const worker = chosen.includes("Worker")
    ? [".jobs .spare { display: table-cell; } @media (max-width: 1000px) { .jobs td.spare { display: flex; } }"]
    : [];
  const close = chosen.includes("close") ? [".jobs :is(th, td) { padding-block: .1rem; }"] : [];
  sheet.replaceSync([...hidden, ...worker, ...close].join("\n"));
}

export function startColumns() {
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
  show(kept());
  const boxes = [...document.querySelectorAll("[data-columns] input")];
  for (const box of boxes) {
    box.checked = kept().includes(box.value);
    box.addEventListener("change", () => {
      const chosen = boxes.filter((each) => each.checked).map((each) => each.value);
      try {
        localStorage.setItem(KEY, JSON.stringify(chosen));
      } catch {
        /* for this page only */
      }
      show(chosen);
    });
  }
}
