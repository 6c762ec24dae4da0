// Requests to the server: reads and acts. Errors are problem details, shown in their own words.
import { session } from "./live";
import { BASE } from "./router";

export class Refused extends Error {
  constructor(
    message: string,
    readonly status: number,
    readonly fields: Record<string, string> = {},
  ) {
    super(message);
  }
}

interface Problem {
  title?: string;
  detail?: string;
}

/** The server's check names the field that doesn't fit: "the answer: stars: must be at most 5, but is 7". */
const FIELD = /^[^:]+: \.?([\w.[\]]+): (.+)$/;
const MISSING = /^'([^']+)' is (?:missing|unknown)/;

export async function call<T = unknown>(method: string, path: string, body?: unknown): Promise<T> {
  let answer: Response;
  try {
    answer = await fetch(`${BASE}${path}`, {
      method,
      headers: body === undefined ? {} : { "Content-Type": "application/json", "X-CSRF-Token": session.peek()?.csrf ?? "" },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch {
    throw new Refused("The server can't be reached. Nothing was changed; try again when it is back.", 0);
  }
  if (answer.status === 401) {
    location.assign(`${BASE}/login?next=${encodeURIComponent(location.pathname + location.search)}`);
    throw new Refused("Log in first.", 401);
  }
  const text = await answer.text();
  const data = parse(text);
  if (!answer.ok) throw refusal(answer.status, data as Problem | undefined, text);
  return data as T;
}

function parse(text: string): unknown {
  try {
    return text ? JSON.parse(text) : undefined;
  } catch {
    return undefined;
  }
}

function refusal(status: number, problem: Problem | undefined, text: string): Refused {
  const words = problem?.detail ?? problem?.title ?? (text.slice(0, 300) || `The server answered ${status}.`);
  return new Refused(words, status, fieldsIn(words));
}

function fieldsIn(words: string): Record<string, string> {
  const [path, reason] = FIELD.exec(words)?.slice(1) ?? ["", words.replace(/^[^:]+: /, "")];
  const missing = MISSING.exec(reason!)?.[1];
  const steps = [path!.replace(/\[(\d+)\]/g, ".$1"), missing].filter(Boolean);
  return steps.length ? { [steps.join(".")]: reason! } : {};
}

/** Ask for a stream and don't follow it: a stream that is refused doesn't say why in the browser, but its answer does. */
export async function probe(path: string): Promise<void> {
  const answer = await fetch(`${BASE}${path}`);
  if (answer.ok) return void answer.body?.cancel();
  const text = await answer.text();
  throw refusal(answer.status, parse(text) as Problem | undefined, text);
}

export const get = <T>(path: string): Promise<T> => call<T>("GET", path);
export const post = <T>(path: string, body: unknown = {}): Promise<T> => call<T>("POST", path, body);
