// Which page is shown. Addresses are real paths, so that links, back and reload work.
import { signal } from "@preact/signals";

/** The path under which the server is mounted, found from this script's own address. */
export const BASE = new URL(import.meta.url).pathname.replace(/\/static\/[^/]*$/, "");

export interface Place {
  page: string;
  id: string;
  query: URLSearchParams;
}

function read(): Place {
  const [page = "", ...rest] = location.pathname.slice(BASE.length).split("/").filter(Boolean);
  return { page: page || "overview", id: decode(rest.join("/")), query: new URLSearchParams(location.search) };
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export const place = signal<Place>(read());

export const pathOf = (page: string, id = "", query = ""): string =>
  `${BASE}/${page === "overview" ? "" : page}${id ? `/${encodeURIComponent(id)}` : ""}${query ? `?${query}` : ""}`;

/** What a page does before another one takes its place: the list of jobs notes how far it is scrolled. */
export const leaving = new Set<() => void>();

export function go(path: string, replace = false): void {
  if (path === location.pathname + location.search) return;
  for (const note of leaving) note();
  history[replace ? "replaceState" : "pushState"](null, "", path);
  const before = place.value;
  place.value = read();
  if (replace || (before.page === place.value.page && before.id === place.value.id)) return;
  scrollTo(0, 0);
  requestAnimationFrame(() => document.querySelector("main")?.focus({ preventScroll: true }));
}

/** Take over clicks on links within the dashboard; everything else is the browser's. */
export function followLinks(): void {
  history.scrollRestoration = "manual";
  addEventListener("popstate", () => {
    for (const note of leaving) note();
    place.value = read();
  });
  document.addEventListener("click", (event) => {
    const link = (event.target as Element).closest?.("a");
    if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    if (link.origin !== location.origin || link.hasAttribute("download") || link.target || link.dataset.plain !== undefined) return;
    event.preventDefault();
    go(link.pathname + link.search);
  });
}
