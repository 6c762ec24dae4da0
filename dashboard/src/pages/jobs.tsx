// The jobs: filters, states with counts, and rows of which only the visible ones exist.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { get, Refused } from "../api";
import { about, clock, now, span } from "../clock";
import { missing } from "../live";
import { Page, sentence, useView } from "../page";
import { may } from "../pieces/acts";
import { Dock } from "../pieces/dock";
import { Glyph } from "../pieces/glyph";
import { Fresh, local, number } from "../pieces/words";
import { STATES } from "../made/states";
import { go, leaving, pathOf, place } from "../router";
import { countsOf, type JobLine, type JobsPage, partOf, type State, stateOf } from "../views";
import { JobsList, lastList, listOf } from "./jobs-list";

const narrow = matchMedia("(max-width: 640px)");
/** How tall a row is: on a phone it has three lines. The styles say the same. */
const rowHeight = (): number => (narrow.matches ? 68 : 40);
const AROUND = 12;
const FIELDS = ["type", "queue", "key", "parent", "id", "error"] as const;
const SHORT_ID = /^[0-9a-f-]{6,36}$/i;

function Tokens({ query }: { query: URLSearchParams }) {
  const [text, setText] = useState("");
  const put = (change: (next: URLSearchParams) => void) => {
    const next = new URLSearchParams(query);
    change(next);
    go(pathOf("jobs", "", next.toString()));
  };
  const add = () => {
    const words = text.trim();
    if (!words) return;
    put((next) => {
      const found = /^(type|queue|key|parent|state|id|error)[:= ]\s*(.+)$/.exec(words);
      if (found) next.set(found[1]!, found[2]!);
      else next.set(SHORT_ID.test(words) ? "id" : "key", words);
      if (next.has("error")) next.set("state", "review");
    });
    setText("");
  };
  const tokens = FIELDS.filter((name) => query.has(name));
  return (
    <div class="filters">
      <div class="tokens">
        {tokens.map((name) => (
          <span class="chip" key={name}>
            {`${name} ${query.get(name)}`}
            <button type="button" aria-label={`Remove the filter ${name}`} onClick={() => put((next) => next.delete(name))}>
              ×
            </button>
          </span>
        ))}
        <input
          id="find"
          aria-label="Filter"
          placeholder={tokens.length ? "and…" : "Filter: type make_video, queue video, key order-42, or an id"}
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key === "Enter") add();
            if (event.key === "Escape") event.currentTarget.blur();
            if (event.key === "Backspace" && !text && tokens.length) put((next) => next.delete(tokens[tokens.length - 1]!));
          }}
        />
        <kbd aria-hidden="true">/</kbd>
      </div>
      <button type="button" class="btn" onClick={() => put((next) => (next.get("order") === "oldest" ? next.delete("order") : next.set("order", "oldest")))}>
        {query.get("order") === "oldest" ? "Oldest first" : "Newest first"}
      </button>
    </div>
  );
}

const ORDER: State[] = ["active", "review", "retryable", "pending", "available", "scheduled", "completed", "cancelled", "discarded"];

function States({ query, counts }: { query: URLSearchParams; counts: ReturnType<typeof countsOf> | null }) {
  const chosen = query.get("state") ?? "";
  const to = (state: string) => {
    const next = new URLSearchParams(query);
    if (state) next.set("state", state);
    else next.delete("state");
    return pathOf("jobs", "", next.toString());
  };
  return (
    <nav class="states" aria-label="States">
      <a href={to("")} aria-current={chosen ? undefined : "true"}>
        All
      </a>
      {ORDER.map((state) => (
        <a key={state} href={to(state)} aria-current={chosen === state ? "true" : undefined} title={STATES[state].meaning}>
          <Glyph state={state} size={14} /> {state} {counts && (
            <b>
              <Fresh of={number(counts[state] ?? 0)} />
            </b>
          )}
        </a>
      ))}
    </nav>
  );
}

const TONE: Partial<Record<State, State>> = { review: "review", retryable: "retryable" };

const ran = (of: JobLine): string => (of.took_ms !== null ? span(of.took_ms) : of.started_at && of.state === "active" ? span(Math.max(0, now.value - Date.parse(of.started_at))) : "");

interface RowProps {
  of: JobLine;
  at: number;
  chosen: boolean;
  current: boolean;
  choose: (at: number, range: boolean) => void;
  canChoose: boolean;
}

function Row({ of, at, chosen, current, choose, canChoose }: RowProps) {
  const state = stateOf(of.state);
  return (
    <li class={`job-row${chosen ? " chosen" : ""}${current ? " current" : ""}`} style={{ top: `${at * rowHeight()}px` }} aria-posinset={at + 1} aria-setsize={-1}>
      <span class="tick">
        <Glyph state={state} part={partOf(of)} named />
        {canChoose && <input type="checkbox" aria-label={`Choose ${of.name}`} checked={chosen} onClick={(event) => choose(at, event.shiftKey)} />}
      </span>
      <a href={pathOf("jobs", of.id)}>
        <span class="mono faint">{of.short}</span>
        <b class="cut">{of.name}</b>
        <span class={`cut words${TONE[state] ? ` tone is-${TONE[state]}` : ""}`}>{local(of.doing)}</span>
        <span class="num muted ran">{ran(of)}</span>
        <span class="num muted when" title={about(of.created_at)}>
          {clock(of.created_at, false)}
        </span>
        <span class="num spent">
          <Fresh of={of.spent_words} />
        </span>
      </a>
    </li>
  );
}

/** The window of rows: which of them are visible, by the page's scroll. */
function useWindow(box: { current: HTMLElement | null }, count: number): [number, number] {
  const [range, setRange] = useState<[number, number]>([0, 60]);
  useLayoutEffect(() => {
    let asked = 0;
    const look = () => {
      asked = 0;
      const top = box.current?.getBoundingClientRect().top ?? 0;
      const first = Math.max(0, Math.floor(-top / rowHeight()) - AROUND);
      const last = Math.min(count, Math.ceil((innerHeight - top) / rowHeight()) + AROUND);
      setRange((old) => (old[0] === first && old[1] === last ? old : [first, Math.max(first, last)]));
    };
    const soon = () => (asked ||= requestAnimationFrame(look));
    look();
    addEventListener("scroll", soon, { passive: true });
    addEventListener("resize", soon);
    return () => {
      removeEventListener("scroll", soon);
      removeEventListener("resize", soon);
      cancelAnimationFrame(asked);
    };
  }, [count]);
  return range;
}

function Rows({ list, chosen, choose, canChoose }: { list: JobsList; chosen: ReadonlySet<string>; choose: (at: number, range: boolean) => void; canChoose: boolean }) {
  const box = useRef<HTMLOListElement>(null);
  const rows = list.rows.value;
  const [first, last] = useWindow(box, rows.length);
  const [cursor, setCursor] = useState(list.cursor);
  useEffect(() => {
    if (last >= rows.length - AROUND && list.next.value && !list.trouble.value) void list.more();
  }, [last, rows.length, list.next.value]);
  useEffect(() => {
    const hear = (event: Event) => {
      const key = (event as CustomEvent<string>).detail;
      const step = key === "j" ? 1 : key === "k" ? -1 : 0;
      if (step) {
        const next = Math.min(rows.length - 1, Math.max(0, list.cursor + step));
        list.cursor = next;
        setCursor(next);
        const tall = rowHeight();
        const top = (box.current?.getBoundingClientRect().top ?? 0) + next * tall;
        if (top < 60) scrollBy(0, top - 60);
        else if (top + tall > innerHeight - 60) scrollBy(0, top + tall - innerHeight + 60);
      } else if (key === "x" || key === "X") choose(list.cursor, key === "X");
      else if (key === "Enter" && rows[list.cursor]) go(pathOf("jobs", rows[list.cursor]!.id));
    };
    document.addEventListener("holdfast:key", hear);
    return () => document.removeEventListener("holdfast:key", hear);
  }, [rows, choose]);
  return (
    <ol class="job-rows" ref={box} style={{ height: `${rows.length * rowHeight()}px` }} aria-label="Jobs">
      {rows.slice(first, last).map((one, i) => (
        <Row key={one.id} of={one} at={first + i} chosen={chosen.has(one.id)} current={first + i === cursor} choose={choose} canChoose={canChoose} />
      ))}
    </ol>
  );
}

const FILTERS = ["state", "type", "queue", "key", "parent", "id", "error", "order"];
const WATCHED = ["state", "type", "queue"];
const POLL_MS = 2_000;

/** The first page: by the stream if it knows the filter, else read again every two seconds. */
function useFirstPage(wanted: string): { view: JobsPage | null; refused: string } {
  const isWatched = [...new URLSearchParams(wanted).keys()].every((name) => WATCHED.includes(name));
  const live = useView<JobsPage>(isWatched ? `view=jobs${wanted && "&"}${wanted}` : "view=navigation");
  const [polled, setPolled] = useState<{ of: string; page?: JobsPage; refused?: string } | null>(null);
  useEffect(() => {
    if (isWatched) return;
    const read = () => {
      if (!document.hidden)
        get<JobsPage>(`/api/v1/jobs?${wanted}&limit=60`).then(
          (page) => setPolled({ of: wanted, page }),
          (error: unknown) => error instanceof Refused && error.status === 400 && setPolled({ of: wanted, refused: error.message }),
        );
    };
    read();
    const timer = setInterval(read, POLL_MS);
    return () => clearInterval(timer);
  }, [wanted, isWatched]);
  if (isWatched) return { view: live, refused: missing.value };
  const mine = polled?.of === wanted ? polled : null;
  return { view: mine?.page ?? null, refused: mine?.refused ?? "" };
}

export function Jobs() {
  const query = place.value.query;
  const wanted = new URLSearchParams(FILTERS.filter((name) => query.has(name)).map((name) => [name, query.get(name)!])).toString();
  const list = listOf(wanted);
  const { view, refused } = useFirstPage(wanted);
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set());
  const lastChosen = useRef(0);
  useEffect(() => {
    if (view) list.take(view);
  }, [view]);
  useLayoutEffect(() => {
    lastList.value = list;
    setChosen(new Set());
    scrollTo(0, list.top);
    const note = () => (list.top = scrollY);
    const leave = () => list.keep();
    leaving.add(note);
    addEventListener("pagehide", leave);
    return () => {
      leaving.delete(note);
      removeEventListener("pagehide", leave);
    };
  }, [list]);
  const choose = (at: number, range: boolean) => {
    const rows = list.rows.peek();
    const next = new Set(chosen);
    const [from, to] = range ? [Math.min(at, lastChosen.current), Math.max(at, lastChosen.current)] : [at, at];
    const on = range || !chosen.has(rows[at]?.id ?? "");
    for (const one of rows.slice(from, to + 1)) next[on ? "add" : "delete"](one.id);
    lastChosen.current = at;
    list.cursor = at;
    setChosen(next);
  };
  const ready = list.rows.value.length > 0 || !!view;
  if (refused)
    return (
      <Page title="Jobs" crumbs="Jobs" sentence={sentence(refused)} ready refused>
        <Tokens query={query} />
        <States query={query} counts={null} />
      </Page>
    );
  const canChoose = may("act") || may("review");
  return (
    <Page title={view?.sentence.split(".")[0] ?? "Jobs"} crumbs="Jobs" sentence={view?.sentence ?? "Jobs"} ready>
      <Tokens query={query} />
      <States query={query} counts={view?.states.length ? countsOf(view.states) : null} />
      {view?.has_scanned_out && <p class="faint note-line">{`No index serves this filter: the first ${number(view.scanned)} jobs were looked at.`}</p>}
      <section class="card job-card" aria-label="Jobs">
        <div class="job-row head" aria-hidden="true">
          <span class="tick" />
          <span class="head-cells">
            <span>Id</span>
            <span>Job</span>
            <span>Where it stands</span>
            <span class="num ran">Ran for</span>
            <span class="num when">Submitted</span>
            <span class="num spent">Spent</span>
          </span>
        </div>
        {list.fresh.value.length > 0 && (
          <button type="button" class="fresh-chip" onClick={() => list.showFresh()}>
            {`${list.fresh.value.length} new`}
          </button>
        )}
        {ready && <Rows key={wanted} list={list} chosen={chosen} choose={choose} canChoose={canChoose} />}
        {view && !list.rows.value.length && <p class="empty">{`No job matches${view.hint}.`}</p>}
        {list.trouble.value && (
          <p class="error">
            {list.trouble.value}{" "}
            <button type="button" class="link" onClick={() => void list.more()}>
              Try again
            </button>
          </p>
        )}
      </section>
      {canChoose && <Dock chosen={chosen} clear={() => setChosen(new Set())} filter={wanted} total={list.rows.value.length} />}
    </Page>
  );
}
