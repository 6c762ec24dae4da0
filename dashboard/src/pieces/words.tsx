// Sentences, times and small text. The words come from the server; here they only get colour and links.
import type { ComponentChildren } from "preact";
import { useRef } from "preact/hooks";
import { about, clock, now, span } from "../clock";
import { pathOf } from "../router";
import type { State } from "../views";

/** What stands out in a sentence: counts of what runs, what needs a person or was lost, and, in grey, what is estimated. */
const N = String.raw`\d{1,3}(?:,\d{3})*`;
const MARKS = new RegExp(`((?<!stage )\\b${N} of ${N}|\\b${N} jobs? runs?\\b)|(\\b${N} needs? you|[Nn]eeds a person|\\b${N} workers? (?:was|were) lost|\\S+ was lost)|([Aa]bout [^,.;]+\.?)`, "g");

/** Colour a sentence. Its words stay as the server wrote them. */
export function Sentence({ text: said, state = "active" }: { text: string; state?: State }) {
  const text = local(said);
  const parts = [];
  let at = 0;
  for (const found of text.matchAll(MARKS)) {
    const [words, runs, needs] = found;
    if (found.index > at) parts.push(text.slice(at, found.index));
    at = found.index + words.length;
    if (needs?.endsWith("you"))
      parts.push(
        <a class="tone is-review" href={pathOf("review")}>
          {words}
        </a>,
      );
    else parts.push(<span class={runs ? `tone is-${state === "review" ? "review" : "active"}` : needs ? "tone is-review" : "faint"}>{words}</span>);
  }
  parts.push(text.slice(at));
  return <>{parts}</>;
}

const UTC = /(?:(\d{4}-\d\d-\d\d) )?\b(\d\d:\d\d)(:\d\d)? UTC/g;

/** The server's words have their times in UTC; a page shows all of its times in one zone, the browser's. */
export const local = (text: string): string =>
  text.replace(UTC, (whole, day: string | undefined, time: string, seconds: string | undefined) => {
    const at = Date.parse(`${day ?? new Date(now.peek()).toISOString().slice(0, 10)}T${time}${seconds ?? ":00"}Z`);
    return Number.isNaN(at) ? whole : clock(at, !!seconds);
  });

export const ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone;

export function Time({ at, seconds = true }: { at: string; seconds?: boolean }) {
  return (
    <time dateTime={at} title={about(at)}>
      {clock(at, seconds)}
    </time>
  );
}

/** How often a value has changed since it was first shown: the key of what shows it, so that each change is seen. */
export function useChanges(value: unknown): number {
  const seen = useRef({ value, times: 0 });
  if (seen.current.value !== value) seen.current = { value, times: seen.current.times + 1 };
  return seen.current.times;
}

/** A value that is marked for a moment when it has changed. */
export function Fresh({ of, children }: { of: string | number; children?: ComponentChildren }) {
  const times = useChanges(of);
  return (
    <span key={times} class={times ? "fresh" : undefined}>
      {children ?? of}
    </span>
  );
}

/** How long ago, ticking. */
export function Age({ since, after = "" }: { since: string; after?: string }) {
  return <>{span(Math.max(0, now.value - Date.parse(since))) + after}</>;
}

/** A step's or stage's name for people; the real one is in the page's links and commands. */
export const readable = (name: string): string => name.replaceAll("_", " ");

export const number = (n: number | string): string => (typeof n === "string" ? n : n >= 1_000_000 ? `${(n / 1_000_000).toFixed(2)} M` : n.toLocaleString("en"));

/** JSON as text with quiet colours. Values stay text: nothing in them becomes markup. */
export function Json({ value }: { value: unknown }) {
  if (value !== null && typeof value === "object" && !Array.isArray(value)) {
    const fields = Object.entries(value as Record<string, unknown>);
    const simple = fields.length > 0 && fields.every(([, one]) => one === null || typeof one !== "object");
    if (simple)
      return (
        <div class="json pairs">
          {fields.map(([name, one]) => (
            <div key={name}>
              <span class="k">{name}</span> <span class={typeof one === "string" ? "s" : "v"}>{JSON.stringify(one)}</span>
            </div>
          ))}
        </div>
      );
  }
  return <div class="json">{typeof value === "string" ? <span class="s">{JSON.stringify(value)}</span> : JSON.stringify(value, null, 2)}</div>;
}
