// Times and ages. The clock is the store's, taken from each message; ages tick in the browser.
import { signal } from "@preact/signals";

let ahead = 0;
export const now = signal(Date.now());

export function setStoreTime(at: string): void {
  ahead = Date.parse(at) - Date.now();
  now.value = Date.now() + ahead;
}

setInterval(() => {
  if (!document.hidden) now.value = Date.now() + ahead;
}, 1000);

const UNITS: [number, string][] = [
  [86_400_000, "d"],
  [3_600_000, "h"],
  [60_000, "min"],
  [1_000, "s"],
];

/** A duration as the command line writes it: "12 s", "12 min", "1 h 59 min", "3 d 4 h". */
export function span(ms: number): string {
  if (ms < 1_000) return "a moment";
  for (let i = 0; i < UNITS.length - 1; i++) {
    const [size, unit] = UNITS[i]!;
    const [less, lesser] = UNITS[i + 1]!;
    if (ms >= size) {
      const rest = Math.floor((ms % size) / less);
      return `${Math.floor(ms / size)} ${unit}${unit !== "min" && ms < 10 * size && rest ? ` ${rest} ${lesser}` : ""}`;
    }
  }
  return `${Math.floor(ms / 1_000)} s`;
}

const two = (n: number): string => String(n).padStart(2, "0");

/** "3:34" for a cell. */
export const short = (ms: number): string =>
  ms < 100 ? `${Math.round(ms)} ms` : ms < 1_000 ? `${(Math.floor(ms / 100) / 10).toFixed(1)} s` : `${Math.floor(ms / 60_000)}:${two(Math.floor(ms / 1_000) % 60)}`;

/** "14:11:44" today; with the date before it otherwise. */
export function clock(at: string | number, seconds = true): string {
  const day = new Date(at);
  const today = new Date(now.peek());
  const time = `${two(day.getHours())}:${two(day.getMinutes())}${seconds ? `:${two(day.getSeconds())}` : ""}`;
  if (day.toDateString() === today.toDateString()) return time;
  const date = day.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
  return `${date}${day.getFullYear() === today.getFullYear() ? "" : ` ${day.getFullYear()}`} ${time}`;
}

/** What hovering a time shows: UTC and the age. */
export function about(at: string): string {
  const age = now.peek() - Date.parse(at);
  const words = Math.abs(age) < 1_000 ? "now" : age > 0 ? `${span(age)} ago` : `in ${span(-age)}`;
  return `${new Date(at).toISOString().replace("T", " ").replace(/\..*/, "")} UTC, ${words}`;
}
