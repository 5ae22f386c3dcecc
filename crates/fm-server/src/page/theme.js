// Before anything is drawn: a page that turns dark a moment later would flash.
try {
  const theme = localStorage.getItem("flash-moe.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // A browser that keeps nothing has the system's theme.
}
