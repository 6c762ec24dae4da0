// The keyboard: one listener. Pages hear a key as the event `holdfast:key`, so that every key has one owner on a page.
import { toggleTheme } from "./frame";
import { isOpen, openHelp, openPalette } from "./palette";
import { lastList } from "./pages/jobs-list";
import { go, pathOf, place } from "./router";

const GO_MS = 1_200;
const PLACES: Record<string, string> = { o: "overview", j: "jobs", r: "review", q: "queues", w: "workers", s: "schedules", l: "lifecycle" };

let going = 0;

/** Tell the shown page that a key was pressed. */
export const press = (key: string): void => void document.dispatchEvent(new CustomEvent("holdfast:key", { detail: key }));

const isTyping = (target: EventTarget | null): boolean => target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName)) && (target as HTMLInputElement).type !== "checkbox";

/** The job before or after the shown one in the list that was looked at last. */
export function beside(by: number): string {
  const { page, id } = place.value;
  const rows = lastList.value?.rows.value ?? [];
  const at = rows.findIndex((one) => one.id === id);
  return page === "jobs" && id && at >= 0 ? (rows[at + by]?.id ?? "") : "";
}

export function stepJobs(by: number): void {
  const next = beside(by);
  if (next) go(pathOf("jobs", next), true);
}

function stepRows(by: number): void {
  const rows = [...document.querySelectorAll<HTMLElement>("main .rows a")];
  if (!rows.length) return;
  const at = rows.indexOf(document.activeElement as HTMLElement);
  rows[Math.max(0, Math.min(rows.length - 1, at + by))]?.focus();
}

function back(): void {
  const { page, id } = place.value;
  if (document.activeElement instanceof HTMLElement && document.activeElement !== document.body && isTyping(document.activeElement)) return document.activeElement.blur();
  press("Escape");
  if (page === "jobs" && id) go(pathOf("jobs", "", lastList.value?.query ?? ""));
  else if (id) go(pathOf(page));
}

export function listenToKeys(): void {
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented) return;
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
      event.preventDefault();
      return openPalette();
    }
    if (event.ctrlKey || event.metaKey || event.altKey || isOpen()) return;
    if (isTyping(event.target) && event.key !== "Escape") return;
    if (Date.now() - going < GO_MS && PLACES[event.key]) {
      going = 0;
      event.preventDefault();
      return go(pathOf(PLACES[event.key]!));
    }
    const onButton = event.target instanceof HTMLElement && /^(A|BUTTON)$/.test(event.target.tagName);
    switch (event.key) {
      case "g":
        going = Date.now();
        return;
      case "/": {
        event.preventDefault();
        const find = document.getElementById("find");
        return find ? find.focus() : openPalette();
      }
      case "?":
        return openHelp();
      case "t":
        return toggleTheme();
      case "[":
        return stepJobs(-1);
      case "]":
        return stepJobs(1);
      case "Escape":
        return back();
      case "Enter":
        return onButton ? undefined : press("Enter");
      case "a":
        if (document.getElementById("decide")) return document.querySelector<HTMLElement>("#decide input, #decide textarea")?.focus();
        return press("a");
      case "j":
      case "k":
        if (place.value.page !== "review" && !(place.value.page === "jobs" && !place.value.id)) stepRows(event.key === "j" ? 1 : -1);
        return press(event.key);
      default:
        if (event.key.length === 1) press(event.key);
    }
  });
}
