// Which theme was chosen, before anything is drawn.
try {
  const theme = localStorage.getItem("packhorse-theme");
  if (theme) document.documentElement.dataset.theme = theme;
} catch {
  /* no storage, no choice */
}
