// The time range that somebody chose goes along to the other pages of this tab that have one.
const KEY = "packhorse-range";
const PAGES = /^\/($|failures|tasks|queues\/.)/;

function kept() {
  try { return sessionStorage.getItem(KEY); } catch { return null; }
}

// The same address, with the range that was chosen.
export function withRange(href) {
  const address = new URL(href, location.href), root = document.body.dataset.root, range = kept();
  const isOurs = address.origin === location.origin && address.pathname.startsWith(root);
  const isWithout = !address.searchParams.has("range") && PAGES.test(address.pathname.slice(root.length));
  if (range && isOurs && isWithout) address.searchParams.set("range", range);
  return address.href;
}

export function startRange() {
  const chosen = new URLSearchParams(location.search).get("range");
  try { if (chosen) sessionStorage.setItem(KEY, chosen); } catch { /* for this page only */ }
  const follow = (event) => {
    const link = event.target.closest?.("a[href]");
    if (link && link.href !== withRange(link.href)) link.href = withRange(link.href);
  };
  for (const kind of ["click", "auxclick"]) document.addEventListener(kind, follow, true);
}
