// The time range that was chosen, or marked in a chart, goes along to the other pages of this tab that have one.
const KEY = "packhorse-range";
const PAGES = /^\/($|failures|tasks|queues\/.)/;
const NAMES = ["range", "from", "to"];

function kept() {
  try {
    return new URLSearchParams(sessionStorage.getItem(KEY) ?? "");
  } catch {
    return new URLSearchParams();
  }
}

// The same address, with the range that was chosen.
export function withRange(href) {
  const address = new URL(href, location.href),
    root = document.body.dataset.root;
  const isOurs = address.origin === location.origin && address.pathname.startsWith(root);
  const hasOwn = NAMES.some((name) => address.searchParams.has(name));
  if (!isOurs || hasOwn || !PAGES.test(address.pathname.slice(root.length))) return address.href;
  for (const [name, value] of kept()) address.searchParams.set(name, value);
  return address.href;
}

export function startRange() {
  const asked = [...new URLSearchParams(location.search)].filter(([name]) => NAMES.includes(name));
  try {
    if (asked.length) sessionStorage.setItem(KEY, new URLSearchParams(asked));
  } catch {
    /* for this page only */
  }
  const follow = (event) => {
    const link = event.target.closest?.("a[href]");
    if (link && link.href !== withRange(link.href)) link.href = withRange(link.href);
  };
  for (const kind of ["click", "auxclick"]) document.addEventListener(kind, follow, true);
}
