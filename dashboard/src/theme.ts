// Sets the theme before the first paint: the chosen one, else the system's. Loaded before everything else.
const system = matchMedia("(prefers-color-scheme: dark)");

function apply() {
  let chosen: string | null = null;
  try {
    chosen = localStorage.getItem("holdfast.theme");
  } catch {
    // A browser that keeps nothing follows the system.
  }
  document.documentElement.dataset.theme = chosen ?? (system.matches ? "dark" : "light");
}

apply();
system.addEventListener("change", apply);
addEventListener("storage", apply);
