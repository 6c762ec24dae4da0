// The frame around every page: the left column, the phone's tabs, the live dot, and what the last act answered.
import { frame, link, trouble } from "./live";
import { notice } from "./pieces/acts";
import { Icon, Mark } from "./pieces/glyph";
import { number } from "./pieces/words";
import { openHelp, openPalette } from "./palette";
import { pathOf, place } from "./router";

export const PAGES = ["overview", "jobs", "review", "queues", "workers", "schedules", "lifecycle"] as const;
const TABS = PAGES.slice(0, 5);

export const title = (page: string): string => page[0]!.toUpperCase() + page.slice(1);

function countOf(page: string): number {
  const all = frame.value;
  return { jobs: all?.jobs, review: all?.needs, workers: all?.workers }[page] ?? 0;
}

export function toggleTheme(): void {
  const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  try {
    localStorage.setItem("holdfast.theme", next);
  } catch {
    // Kept for this page only.
  }
}

const FACES = { live: "Live", reconnecting: "Reconnecting…", away: "Store can't be reached" };

function Live() {
  return (
    <div class={`live ${link.value}`} role="status">
      <i />
      <span>
        {FACES[link.value]}
        {link.value === "away" && trouble.value && <small>{trouble.value}</small>}
      </span>
    </div>
  );
}

export function Side() {
  const page = place.value.page;
  const all = frame.value;
  return (
    <header class="side">
      <a class="brand" href={pathOf("overview")} aria-label="Holdfast">
        <Mark /> Holdfast
      </a>
      <button type="button" class="find" aria-label="Find a job" onClick={openPalette}>
        <Icon name="find" size={15} />
        <span>Find a job</span>
        <kbd aria-hidden="true">Ctrl K</kbd>
      </button>
      <nav class="pages" aria-label="Pages">
        {PAGES.map((one) => (
          <a key={one} href={pathOf(one)} aria-current={page === one ? "page" : undefined}>
            <Icon name={one} />
            {title(one)}
            {countOf(one) > 0 && <span class={`n${one === "review" ? " hot" : ""}`}>{number(countOf(one))}</span>}
          </a>
        ))}
      </nav>
      {all && all.queues.length > 0 && (
        <nav class="queues" aria-labelledby="queues-title">
          <h2 id="queues-title">Queues</h2>
          {all.queues.map((one) => (
            <a key={one.state} href={pathOf("queues", one.state)}>
              <span class="cut">{one.state}</span>
              <span>{all.paused.includes(one.state) ? "paused" : number(one.jobs)}</span>
            </a>
          ))}
        </nav>
      )}
      <div class="foot">
        {all && (
          <span class="mono cut" title={all.store}>
            {all.store}
          </span>
        )}
        <div>
          <Live />
          <button type="button" class="icon all-keys" aria-label="Keys" title="All keys (?)" onClick={openHelp}>
            <Icon name="key" />
          </button>
          <button type="button" class="icon" aria-label="Change the theme" title="Change the theme (T)" onClick={toggleTheme}>
            <Icon name="theme" />
          </button>
        </div>
      </div>
    </header>
  );
}

export function Tabs() {
  const page = place.value.page;
  return (
    <nav class="tabbar" aria-label="Main pages">
      {TABS.map((one) => (
        <a key={one} href={pathOf(one)} aria-current={page === one ? "page" : undefined}>
          <Icon name={one} size={18} />
          {title(one)}
          {one === "review" && countOf(one) > 0 && <span class="n">{countOf(one)}</span>}
        </a>
      ))}
    </nav>
  );
}

export function Notice() {
  const said = notice.value;
  return (
    <div class={`notice${said?.bad ? " bad" : ""}`} role="status" aria-live="polite">
      {said && <p>{said.text}</p>}
    </div>
  );
}
