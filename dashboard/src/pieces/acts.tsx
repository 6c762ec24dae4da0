// What a person may do: buttons that ask again on themselves, a reason, and the command that does the same.
import { signal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { post, Refused } from "../api";
import { session } from "../live";
import type { Act, JobPage } from "../views";
import { Button } from "./card";
import { BASE } from "../router";
import { Icon } from "./glyph";
import { useKey } from "./use-key";

const ARMED_MS = 4_000;
const NOTICE_MS = 6_000;

export const notice = signal<{ text: string; bad: boolean } | null>(null);
let clearing = 0;

export function say(text: string, bad = false): void {
  notice.value = { text, bad };
  clearTimeout(clearing);
  clearing = window.setTimeout(() => (notice.value = null), NOTICE_MS);
}

export type Scope = "act" | "review" | "submit";

/** Whether whoever looks may do this: what a token doesn't cover has no button. */
export const may = (scope: Scope): boolean => session.value?.scopes.includes(scope) ?? false;

const REVIEWING = ["replay", "rerun", "resolve", "resolve-step", "discard"];
export const mayDo = (act: Act): boolean => may(act.name === "fork" ? "submit" : REVIEWING.includes(act.name) ? "review" : "act");

/** Do something on the server and say how it went, in the server's words. Returns whether it worked. */
export async function doIt(path: string, body: unknown): Promise<boolean> {
  try {
    const done = await post<{ words?: string }>(path, body);
    say(done?.words ?? "Done.");
    return true;
  } catch (error) {
    say(error instanceof Refused ? error.message : String(error), true);
    return false;
  }
}

/** A button for what can't be taken back: the second press within four seconds does it. */
export function Twice({ children, sure, onSure, keys, small, disabled }: { children: string; sure: string; onSure: () => void; keys?: string; small?: boolean; disabled?: boolean }) {
  const [armed, arm] = useState(false);
  const press = () => {
    if (disabled) return;
    if (armed) onSure();
    arm(!armed);
  };
  useEffect(() => {
    if (!armed) return;
    const timer = setTimeout(() => arm(false), ARMED_MS);
    return () => clearTimeout(timer);
  }, [armed]);
  useKey(keys, press);
  return (
    <button type="button" class={`btn${small ? " small" : ""}${armed ? " armed" : ""}`} disabled={disabled} onClick={press} aria-live="polite">
      {armed ? sure : children}
      {keys && !armed && (
        <span class="keys" aria-hidden="true">
          <kbd>{keys}</kbd>
        </span>
      )}
    </button>
  );
}

/** Any act as its button. One that can't be taken back asks again on itself. */
export function ActButton({ act, reason = "", keys, body = {}, small, done }: { act: Act; reason?: string; keys?: string; body?: object; small?: boolean; done?: () => void }) {
  const run = () => void doIt(act.path, { ...body, reason }).then((worked) => worked && done?.());
  if (!mayDo(act)) return null;
  if (act.twice)
    return (
      <Twice sure={act.twice} keys={keys} onSure={run} small={small}>
        {act.words}
      </Twice>
    );
  return (
    <Button small={small} onClick={run} keys={keys}>
      {act.words}
    </Button>
  );
}

export function JobActs({ view }: { view: JobPage }) {
  const [open, setOpen] = useState(false);
  const [reason, setReason] = useState("");
  const menu = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (!open) return;
    const away = (event: Event) => !menu.current?.contains(event.target as Node) && setOpen(false);
    document.addEventListener("pointerdown", away);
    return () => document.removeEventListener("pointerdown", away);
  }, [open]);
  const allowed = view.acts.filter(mayDo);
  const cancel = allowed.find((one) => one.name === "cancel");
  const isOver = view.job.finished_at !== null;
  return (
    <div class="acts" ref={menu} onKeyDown={(event) => event.key === "Escape" && open && (event.stopPropagation(), setOpen(false))}>
      {cancel && <ActButton act={cancel} reason={reason} keys="C" done={() => setReason("")} />}
      <button type="button" class="btn square" aria-label="More" aria-expanded={open} onClick={() => setOpen(!open)}>
        <Icon name="more" />
      </button>
      {open && (
        <div class="menu" role="group" aria-label="More acts">
          {allowed.length > 0 && (
            <label>
              <span>
                Reason <small>(optional, kept in the history)</small>
              </span>
              <input value={reason} onInput={(event) => setReason(event.currentTarget.value)} maxLength={500} />
            </label>
          )}
          {!isOver && may("act") && <SignalForm id={view.job.id} />}
          {view.acts.map((one) => (
            <Copy key={one.name} text={reason ? `${one.command} --reason ${quoted(reason)}` : one.command} />
          ))}
          <Copy text={`holdfast show ${view.job.short}`} />
          <a class="btn small" href={`${BASE}/api/v1/jobs/${view.job.id}/export`} data-plain download={`run-${view.job.short}.json`}>
            Export as a file
          </a>
        </div>
      )}
    </div>
  );
}

/** A text as one word of a command line. */
export const quoted = (text: string): string => `'${text.replaceAll("'", "'\\''")}'`;

export function Copy({ text }: { text: string }) {
  const copy = () => {
    const done = navigator.clipboard?.writeText(text) ?? Promise.reject(new Error("no clipboard"));
    void done.then(
      () => say("Copied."),
      () => say("The browser didn't allow copying.", true),
    );
  };
  return (
    <button type="button" class="copy mono" title="Copy the command" onClick={copy}>
      {text}
    </button>
  );
}

function SignalForm({ id }: { id: string }) {
  const [name, setName] = useState("");
  const [text, setText] = useState("");
  const send = async () => {
    let value: unknown = null;
    try {
      value = text.trim() ? JSON.parse(text) : null;
    } catch {
      value = text;
    }
    if (await doIt(`/api/v1/jobs/${id}/signal`, { name, value })) setText("");
  };
  return (
    <form class="signal" onSubmit={(event) => (event.preventDefault(), void send())}>
      <label>
        Signal
        <input value={name} placeholder="approved" required onInput={(event) => setName(event.currentTarget.value)} />
      </label>
      <label>
        <span>
          Value <small>(JSON or text)</small>
        </span>
        <input class="mono" value={text} onInput={(event) => setText(event.currentTarget.value)} />
      </label>
      <Button small type="submit">
        Send
      </Button>
    </form>
  );
}
