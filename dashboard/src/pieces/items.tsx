// A stage's items: big cells up to 60, then squares, of which each may stand for several items. And a job's children.
import { useState } from "preact/hooks";
import { now, short } from "../clock";
import { pathOf } from "../router";
import { type ChildrenTab, type ItemCell, type ItemsTab, stateOf, type Timeline } from "../views";
import { Card } from "./card";
import { Glyph } from "./glyph";
import { local, readable } from "./words";

const STATES: Record<string, string> = { d: "done", r: "running", t: "retrying", f: "failed", "?": "doubt", ".": "todo" };
const WORDS: Record<string, string> = { done: "done", running: "running", retrying: "trying again", todo: "to do", failed: "failed", doubt: "in doubt" };
const UNKNOWN_FILL = 30;

function Cell({ cell, number, usual }: { cell: ItemCell; number: number; usual: number | null }) {
  const since = cell.state === "running" && cell.started_at ? Math.max(0, now.value - Date.parse(cell.started_at)) : null;
  const words = since !== null ? short(since) : cell.words || (cell.took_ms != null ? short(cell.took_ms) : WORDS[cell.state]);
  const kept = cell.is_kept ? ", recorded by an earlier worker" : "";
  return (
    <button type="button" class={`cell ${cell.state}${cell.is_kept ? " kept" : ""}`} data-path={cell.path || undefined} disabled={!cell.path} aria-label={`${cell.name || number}: ${WORDS[cell.state]}, ${words}${kept}`}>
      {since !== null && <i style={{ height: `${usual ? Math.min(96, (100 * since) / usual) : UNKNOWN_FILL}%` }} />}
      <b>{number}</b>
      <span title={cell.words || undefined}>{words}</span>
    </button>
  );
}

/** The paths of a stage's items in the order of its squares, as far as the timeline has each of them. */
function pathsOf(line: Timeline | null, stage: string): string[] {
  if (!line || line.is_binned || line.is_cut) return [];
  const began = new Map<string, number>();
  for (const bar of line.bars) if (bar.path && line.rows[bar.row]?.stage === stage) began.set(bar.path, Math.min(bar.at, began.get(bar.path) ?? bar.at));
  return [...began].sort(([a, at], [b, then]) => at - then || (a < b ? -1 : 1)).map(([path]) => path);
}

/** Many items as squares. They are too small to be buttons of their own: arrows choose one, Enter opens it. */
function SquareList({ tab, letters, paths, open }: { tab: ItemsTab; letters: string; paths: string[]; open: (path: string) => void }) {
  const [at, setAt] = useState(0);
  const cursor = Math.min(at, paths.length - 1);
  const move = (event: KeyboardEvent) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10 }[event.key];
    if (event.key === "Enter") {
      event.preventDefault();
      open(paths[cursor]!);
    } else if (step) {
      event.preventDefault();
      const next = Math.max(0, Math.min(paths.length - 1, cursor + step));
      setAt(next);
      light(event.currentTarget as Element, paths[next]!);
    }
  };
  return (
    <div class="squares" role="listbox" tabIndex={0} aria-label={tab.words} aria-activedescendant={`square-${cursor}`} onKeyDown={move} onFocus={(event) => light(event.currentTarget, paths[cursor]!)}>
      {[...letters].map((one, i) => (
        <i key={i} id={`square-${i}`} class={STATES[one]} role="option" aria-selected={i === cursor} data-path={paths[i]} title={`${i + 1}: ${WORDS[STATES[one]!]}`} aria-label={`${i + 1}: ${WORDS[STATES[one]!]}`} />
      ))}
    </div>
  );
}

function Items({ tab, line, open }: { tab: ItemsTab; line: Timeline | null; open: (path: string) => void }) {
  if (!tab.squares)
    return (
      <div class="cells">
        {tab.cells.map((one, i) => (
          <Cell key={one.path || `todo-${i}`} cell={one} number={i + 1} usual={tab.usual_ms} />
        ))}
      </div>
    );
  const { each, letters } = tab.squares;
  const paths = each === 1 ? pathsOf(line, tab.stage) : [];
  if (paths.length) return <SquareList tab={tab} letters={letters} paths={paths} open={open} />;
  const range = (i: number) => (each === 1 ? `${i + 1}` : `${i * each + 1} to ${(i + 1) * each}`);
  return (
    <div class="squares" role="img" aria-label={tab.words}>
      {[...letters].map((one, i) => (
        <i key={i} class={STATES[one]} title={`${range(i)}: ${WORDS[STATES[one]!]}`} />
      ))}
    </div>
  );
}

function Children({ tab }: { tab: ChildrenTab }) {
  return (
    <ul class="rows">
      {tab.jobs.map((one) => (
        <li key={one.id}>
          <a class="need" href={pathOf("jobs", one.id)}>
            <Glyph state={stateOf(one.state)} named />
            <span class="two-lines">
              <b>{one.name}</b>
              <span>{local(one.doing)}</span>
            </span>
          </a>
        </li>
      ))}
    </ul>
  );
}

const CHILDREN = " children";

export function ItemsCard({ items, children, line, open }: { items: ItemsTab[]; children: ChildrenTab | null; line: Timeline | null; open: (path: string) => void }) {
  const tabs = [...items.map((one) => ({ name: one.stage, words: one.words })), ...(children ? [{ name: CHILDREN, words: children.words }] : [])];
  const busiest = items.find((one) => one.running > 0) ?? items.find((one) => one.done < (one.total ?? 0)) ?? items[items.length - 1];
  const [chosen, choose] = useState<string | null>(null);
  const name = tabs.some((one) => one.name === chosen) ? chosen : (busiest?.stage ?? CHILDREN);
  const tab = items.find((one) => one.stage === name);
  const move = (event: KeyboardEvent) => {
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    const at = tabs.findIndex((one) => one.name === name) + step;
    if (!step || !tabs[at]) return;
    choose(tabs[at]!.name);
    (event.currentTarget as HTMLElement).querySelectorAll("button")[at]?.focus();
  };
  return (
    <Card
      class="items"
      title={
        <div class="tabs" role="tablist" aria-label="Items" onKeyDown={move}>
          {tabs.map((one) => (
            <button type="button" role="tab" key={one.name} aria-selected={one.name === name} tabIndex={one.name === name ? 0 : -1} onClick={() => choose(one.name)}>
              {one.name === CHILDREN ? "Children" : readable(one.name)} <small>{one.words}</small>
            </button>
          ))}
        </div>
      }
      right={
        tab && (
          <span class="legend" aria-hidden="true">
            <span class="done">done</span>
            <span class="running">running</span>
            <span class="retrying">trying again</span>
            <span class="todo">to do</span>
          </span>
        )
      }
    >
      <div
        role="tabpanel"
        aria-label={tab ? `Items of ${tab.stage}` : "Children"}
        onClick={(event) => {
          const path = (event.target as Element).closest<HTMLElement>("[data-path]")?.dataset.path;
          if (path) open(path);
        }}
      >
        {tab ? <Items key={tab.stage} tab={tab} line={line} open={open} /> : children && <Children tab={children} />}
      </div>
    </Card>
  );
}

/** Light the bar, the cell and the log lines of the step under the pointer or the focus, without drawing anything anew. */
export function crosslight(event: Event): void {
  const path = (event.target as Element).closest<HTMLElement | SVGElement>("[data-path]")?.dataset.path;
  if (event.type !== "focusin" || path) light(event.currentTarget as Element, event.type === "mouseleave" ? "" : path);
}

function light(within: Element, path: string | undefined): void {
  const root = within.closest("main")!;
  for (const one of root.querySelectorAll(".lit")) one.classList.remove("lit");
  if (path) for (const one of root.querySelectorAll(`[data-path="${CSS.escape(path)}"]`)) one.classList.add("lit");
}
