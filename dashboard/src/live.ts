// One stream for the visible tab: the page's whole view whenever it changed. A hidden tab closes it.
import { effect, signal } from "@preact/signals";
import { get, probe, Refused } from "./api";
import { setStoreTime } from "./clock";
import { BASE } from "./router";
import type { Navigation, Session } from "./views";

export type Link = "live" | "reconnecting" | "away";

export const frame = signal<Navigation | null>(null);
export const session = signal<Session | null>(null);
/** The shown page's view, and the query that it came from: a page never shows another page's view. */
export const shown = signal<{ of: string; view: unknown } | null>(null);
export const link = signal<Link>("reconnecting");
export const trouble = signal("");
export const missing = signal("");

/** What a page watches, as a query of the stream. Each page sets it when it is shown. */
export const watched = signal("");

const RETRY_MS = 1_000;
/** The server beats every five seconds, so this is more than two missed beats. */
const SILENT_MS = 11_000;
const FRAME_MS = 3_000;

let source: EventSource | null = null;
let waiting: string | null = null;
let again = 0;
let heardAt = 0;
let asked = "";

function apply(query: string): void {
  const text = waiting;
  waiting = null;
  if (text === null || query !== watched.peek()) return;
  const view = JSON.parse(text) as { now?: string };
  if (view.now) setStoreTime(view.now);
  link.value = "live";
  missing.value = "";
  shown.value = { of: query, view };
}

function close(): void {
  source?.close();
  source = null;
  clearTimeout(again);
}

function open(query: string): void {
  close();
  if (!query || document.hidden) return;
  const mine = new EventSource(`${BASE}/api/v1/stream?${query}`);
  source = mine;
  const hear = () => (heardAt = Date.now());
  hear();
  mine.addEventListener("beat", hear);
  mine.addEventListener("view", (event: MessageEvent<string>) => {
    hear();
    if (waiting === null) requestAnimationFrame(() => apply(query));
    waiting = event.data;
  });
  mine.addEventListener("trouble", (event: MessageEvent<string>) => {
    hear();
    link.value = "away";
    trouble.value = detail(event.data);
  });
  mine.addEventListener("gone", (event: MessageEvent<string>) => (missing.value = detail(event.data)));
  mine.onerror = () => source === mine && reconnect(query);
}

function reconnect(query: string): void {
  link.value = "reconnecting";
  close();
  // The first time, ask at once why: the filter may be wrong, or the job unknown.
  again = window.setTimeout(() => void retry(query), asked === query ? RETRY_MS : 0);
  asked = query;
}

/** A server that hangs keeps its connections open and says nothing. */
function checkBeat(): void {
  if (source && !document.hidden && Date.now() - heardAt > SILENT_MS) reconnect(watched.peek());
}

const detail = (text: string): string => String((JSON.parse(text) as { detail?: string }).detail ?? text);

/** A stream that fails doesn't say why; a plain request for the same does. */
async function retry(query: string): Promise<void> {
  try {
    await get("/session");
    await probe(`/api/v1/stream?${query}`);
  } catch (error) {
    if (error instanceof Refused && (error.status === 400 || error.status === 404) && query === watched.peek()) {
      link.value = "live";
      return void (missing.value = error.message);
    }
    if (error instanceof Refused && error.status === 503) {
      link.value = "away";
      trouble.value = error.message;
    }
  }
  if (query === watched.peek()) open(query);
}

async function readFrame(): Promise<void> {
  if (document.hidden || !session.peek()?.scopes.includes("read")) return;
  try {
    frame.value = await get<Navigation>("/api/v1/navigation");
  } catch {
    // The stream says what is wrong; the frame keeps what it has.
  }
}

export function startLive(): void {
  effect(() => {
    const query = watched.value;
    missing.value = "";
    asked = "";
    open(query);
  });
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) return close();
    open(watched.peek());
    void readFrame();
  });
  addEventListener("pagehide", close);
  addEventListener("pageshow", (event) => event.persisted && open(watched.peek()));
  const begin = () =>
    get<Session>("/session").then(
      (mine) => {
        session.value = mine;
        void readFrame();
      },
      () => setTimeout(begin, RETRY_MS),
    );
  void begin();
  setInterval(() => void readFrame(), FRAME_MS);
  setInterval(checkBeat, RETRY_MS);
}
