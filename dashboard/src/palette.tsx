// Everything by name: pages, jobs by id or key, acts. And the list of all keys.
import { signal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { get } from "./api";
import { PAGES, title, toggleTheme } from "./frame";
import { press } from "./keys";
import { Glyph, Icon } from "./pieces/glyph";
import { go, pathOf, place } from "./router";
import { type JobsPage, type State, stateOf } from "./views";

const open = signal<"" | "palette" | "help">("");
export const openPalette = (): void => void (open.value = "palette");
export const openHelp = (): void => void (open.value = "help");
export const isOpen = (): boolean => open.value !== "";

interface Entry {
  name: string;
  note: string;
  state?: State;
  run: () => void;
}

const ASK_MS = 120;

export const KEYS: [string, string][] = [
  ["/", "find on this page"],
  ["Ctrl K", "everything by name"],
  ["G then O J R Q W S L", "go to a page"],
  ["J K", "next and previous row"],
  ["Enter", "open"],
  ["X, Shift X", "choose, choose a range"],
  ["C", "cancel"],
  ["R", "replay"],
  ["A", "answer"],
  ["Ctrl Enter", "send the answer"],
  ["L", "all of the log"],
  ["F", "fit the timeline"],
  ["[ ]", "previous and next job of the list"],
  ["T", "light or dark"],
  ["Esc", "back"],
  ["?", "this list"],
];

function entriesFor(text: string): Entry[] {
  const acts: Entry[] = [
    ...PAGES.map((page) => ({ name: title(page), note: "page", run: () => go(pathOf(page)) })),
    { name: "Change the theme", note: "T", run: toggleTheme },
    { name: "All keys", note: "?", run: openHelp },
  ];
  if (place.value.page === "jobs" && place.value.id) acts.push({ name: "Cancel this job", note: "C", run: () => press("c") }, { name: "All of the log", note: "L", run: () => press("l") });
  const words = text.trim().toLowerCase();
  return words ? acts.filter((one) => one.name.toLowerCase().includes(words)) : acts;
}

function Palette() {
  const [text, setText] = useState("");
  const [found, setFound] = useState<Entry[]>([]);
  const [at, setAt] = useState(0);
  const box = useRef<HTMLInputElement>(null);
  useLayoutEffect(() => box.current?.focus(), []);
  useEffect(() => {
    setAt(0);
    if (text.trim().length < 2) return setFound([]);
    let current = true;
    const timer = setTimeout(() => {
      const words = encodeURIComponent(text.trim());
      const by = (field: string) => get<JobsPage>(`/api/v1/jobs?${field}=${words}&limit=5`).then((page) => page.jobs, () => []);
      void Promise.all([by("id"), by("key"), by("type")]).then((lists) => {
        const jobs = new Map(lists.flat().map((one) => [one.id, one]));
        const entries = [...jobs.values()].map((one) => ({ name: one.name, note: `${one.type} ${one.short}`, state: stateOf(one.state), run: () => go(pathOf("jobs", one.id)) }));
        if (current) setFound(entries);
      });
    }, ASK_MS);
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, [text]);
  const entries = text.trim() ? [...entriesFor(text), ...found] : entriesFor(text);
  const run = (one: Entry | undefined) => {
    if (!one) return;
    open.value = "";
    one.run();
  };
  return (
    <>
      <label class="palette-find">
        <Icon name="find" />
        <input
          ref={box}
          role="combobox"
          aria-expanded="true"
          aria-controls="palette-list"
          aria-activedescendant={entries[at] ? `palette-${at}` : undefined}
          aria-label="Find a page, a job or an act"
          placeholder="A page, a job's id or key, an act"
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
          onKeyDown={(event) => {
            const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
            if (step) {
              event.preventDefault();
              setAt((at + step + entries.length) % Math.max(1, entries.length));
            } else if (event.key === "Enter") {
              event.preventDefault();
              run(entries[at]);
            }
          }}
        />
      </label>
      <div id="palette-list" role="listbox" aria-label="What was found" class="palette-list">
        {entries.map((one, i) => (
          <div key={one.name + one.note} id={`palette-${i}`} role="option" aria-selected={i === at} onMouseMove={() => setAt(i)} onClick={() => run(one)}>
            {one.state && <Glyph state={one.state} size={14} />}
            <span class="cut">{one.name}</span>
            <small>{one.note}</small>
          </div>
        ))}
        {!entries.length && <p class="empty">Nothing has this name.</p>}
      </div>
    </>
  );
}

export function Overlay() {
  const dialog = useRef<HTMLDialogElement>(null);
  const which = open.value;
  useLayoutEffect(() => {
    if (which && !dialog.current?.open) dialog.current?.showModal();
    if (!which) dialog.current?.close();
  }, [which]);
  return (
    <dialog ref={dialog} class="overlay" aria-label={which === "help" ? "All keys" : "Find"} onClose={() => (open.value = "")} onClick={(event) => event.target === dialog.current && (open.value = "")}>
      {which === "palette" && <Palette />}
      {which === "help" && (
        <div class="help">
          <h2>Keys</h2>
          <dl>
            {KEYS.map(([keys, what]) => (
              <div key={keys}>
                <dt>
                  <kbd>{keys}</kbd>
                </dt>
                <dd>{what}</dd>
              </div>
            ))}
          </dl>
          <button type="button" class="btn small" onClick={() => (open.value = "")}>
            Close
          </button>
        </div>
      )}
    </dialog>
  );
}
