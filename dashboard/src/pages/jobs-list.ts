// The rows of the jobs page: loaded by pages, kept in place while they change, new ones waiting behind a chip.
import { batch, signal } from "@preact/signals";
import { get } from "../api";
import type { JobLine, JobsPage } from "../views";

const PAGE = 200;
const KEPT_LISTS = 8;
const RESTORED_MOST = 5_000;

export class JobsList {
  readonly rows = signal<JobLine[]>([]);
  readonly fresh = signal<JobLine[]>([]);
  readonly next = signal<string | null>(null);
  readonly loading = signal(false);
  readonly trouble = signal("");
  top = 0;
  cursor = 0;
  private index = new Map<string, number>();
  private begun = false;

  constructor(readonly query: string) {}

  /** Take the first page as it is now: known rows change in place, unknown ones wait behind the chip. */
  take(view: JobsPage): void {
    if (!this.begun) return this.begin(view);
    const rows = this.rows.peek().slice();
    let changed = false;
    const fresh: JobLine[] = [];
    for (const one of view.jobs) {
      const at = this.index.get(one.id);
      if (at === undefined) fresh.push(one);
      else if (isChanged(rows[at]!, one)) {
        rows[at] = one;
        changed = true;
      }
    }
    batch(() => {
      if (changed) this.rows.value = rows;
      this.fresh.value = fresh;
    });
    if (!rows.length && fresh.length) this.showFresh();
  }

  private begin(view: JobsPage): void {
    this.begun = true;
    batch(() => {
      this.rows.value = view.jobs;
      this.next.value = view.next;
    });
    this.reindex();
    void this.restore();
  }

  private reindex(): void {
    this.index = new Map(this.rows.peek().map((one, i) => [one.id, i]));
  }

  showFresh(): void {
    this.rows.value = [...this.fresh.peek(), ...this.rows.peek()];
    this.fresh.value = [];
    this.reindex();
  }

  async more(): Promise<void> {
    const after = this.next.peek();
    if (!after || this.loading.peek()) return;
    this.loading.value = true;
    try {
      const page = await get<JobsPage>(`/api/v1/jobs?${this.query}${this.query && "&"}limit=${PAGE}&after=${encodeURIComponent(after)}`);
      const rows = this.rows.peek();
      for (const one of page.jobs) if (!this.index.has(one.id)) this.index.set(one.id, rows.push(one) - 1);
      batch(() => {
        this.rows.value = rows.slice();
        this.next.value = page.next;
        this.trouble.value = "";
      });
    } catch (error) {
      this.trouble.value = error instanceof Error ? error.message : String(error);
    } finally {
      this.loading.value = false;
    }
  }

  /** After a reload: load as many rows as were there, so that the place is found again. */
  private async restore(): Promise<void> {
    const kept = readKept(this.query);
    if (!kept) return;
    this.top = kept.top;
    this.cursor = kept.cursor;
    while (this.rows.peek().length < Math.min(kept.count, RESTORED_MOST) && this.next.peek() && !this.trouble.peek()) await this.more();
    // The rows are drawn before the next frame; without them the page is too short to be scrolled.
    requestAnimationFrame(() => requestAnimationFrame(() => scrollTo(0, kept.top)));
  }

  keep(): void {
    try {
      sessionStorage.setItem("holdfast.list", JSON.stringify({ query: this.query, top: scrollY, count: this.rows.peek().length, cursor: this.cursor }));
    } catch {
      // Without storage, a reload begins at the top.
    }
  }
}

/** Whether a row shows something else now: its state, its words, or its progress. */
const isChanged = (a: JobLine, b: JobLine): boolean => a.version !== b.version || a.doing !== b.doing || a.spent_words !== b.spent_words;

function readKept(query: string): { top: number; count: number; cursor: number } | null {
  try {
    const kept = JSON.parse(sessionStorage.getItem("holdfast.list") ?? "null") as { query: string; top: number; count: number; cursor: number } | null;
    return kept?.query === query ? kept : null;
  } catch {
    return null;
  }
}

const lists = new Map<string, JobsList>();

/** The list of a query. Going back to it finds its rows and its place as they were. */
export function listOf(query: string): JobsList {
  const known = lists.get(query) ?? new JobsList(query);
  lists.delete(query);
  lists.set(query, known);
  for (const old of lists.keys()) {
    if (lists.size <= KEPT_LISTS) break;
    lists.delete(old);
  }
  return known;
}

/** The last list that was looked at: `[` and `]` step through it from a job's page. */
export const lastList = signal<JobsList | null>(null);
