// One job: its sentence, its stages, its items, its timeline and its story.
import { useEffect, useRef, useState } from "preact/hooks";
import { clock } from "../clock";
import { beside, stepJobs } from "../keys";
import { Page, useView } from "../page";
import { JobActs } from "../pieces/acts";
import { Card, Empty, Pairs } from "../pieces/card";
import { Cost } from "../pieces/charts";
import { Decide } from "../pieces/decide";
import { Glyph } from "../pieces/glyph";
import { crosslight, ItemsCard } from "../pieces/items";
import { byName } from "../pieces/named";
import { Preview, ValueShown } from "../pieces/preview";
import { ComparePanel } from "../pieces/second-chance";
import { StepPanel } from "../pieces/step-panel";
import { Story } from "../pieces/story";
import { Strip } from "../pieces/strip";
import { TimelineCard, useTimeline } from "../pieces/timeline";
import { Fresh, local, Sentence } from "../pieces/words";
import { pathOf } from "../router";
import { type Fact, type JobPage, partOf, type State, stateOf } from "../views";

/** Facts that change now and then. The others are times, which change with every second. */
const MONEY = ["Spent", "Wasted", "Saved by records"];
const TONES: Record<string, State> = { Wasted: "review", "Saved by records": "completed" };

/** The words that say that a figure is rough. They are smaller than the figure. */
const roughly = (words: string): string => /^(?:about|at least) /.exec(words)?.[0] ?? "";

function Facts({ of }: { of: Fact[] }) {
  return (
    <dl class="card facts" style={{ "--n": of.length }}>
      {of.map((one) => (
        <div key={one.name}>
          <dt>{one.name}</dt>
          <dd class={TONES[one.name] ? `big tone is-${TONES[one.name]}` : "big"}>
            {roughly(one.words) && <small>{roughly(one.words)}</small>}
            {MONEY.includes(one.name) ? <Fresh of={one.words.slice(roughly(one.words).length)} /> : one.words.slice(roughly(one.words).length)}
          </dd>
          <dd>{one.more}</dd>
        </div>
      ))}
    </dl>
  );
}

const SHOWN = 14;

function Log({ view }: { view: JobPage }) {
  const [all, setAll] = useState(false);
  useEffect(() => {
    const hear = (event: Event) => (event as CustomEvent<string>).detail === "l" && setAll((one) => !one);
    document.addEventListener("holdfast:key", hear);
    return () => document.removeEventListener("holdfast:key", hear);
  }, []);
  const newest = [...view.log].reverse();
  const lines = all ? newest : newest.slice(0, SHOWN);
  return (
    <Card
      title="Log"
      note={`last ${lines.length} of ${view.log.length} lines`}
      right={
        newest.length > SHOWN && (
          <button type="button" class="btn small" aria-pressed={all} onClick={() => setAll(!all)}>
            All <kbd aria-hidden="true">L</kbd>
          </button>
        )
      }
    >
      <ol class="log">
        {lines.map((one, i) => (
          <li key={newest.length - i} data-path={one.step?.split("/")[0]}>
            <time>{one.at && clock(one.at)}</time>
            <em>{one.name}</em>
            <span class={one.level === "error" || one.level === "critical" ? "tone is-review" : one.level === "warning" ? "tone is-retryable" : undefined}>{one.text}</span>
          </li>
        ))}
      </ol>
    </Card>
  );
}

function Left({ view, open }: { view: JobPage; open: (path: string) => void }) {
  const path = `/api/v1/jobs/${view.job.id}`;
  const line = useTimeline(view);
  const hasItems = view.items.length > 0 || view.children !== null;
  return (
    <div class="stack">
      {view.result && (
        <Card title="Result">
          <div class="padded">
            <ValueShown of={view.result} whole={`${path}/result`} />
          </div>
        </Card>
      )}
      {view.error && !view.review && (
        <Card title="Error">
          <div class="padded">
            <pre class="json plain-text bad trace">{`${view.error.line}\n${view.error.traceback}`}</pre>
          </div>
        </Card>
      )}
      {hasItems && <ItemsCard items={view.items} children={view.children} line={line} open={open} />}
      <TimelineCard line={line} view={view} open={open} />
      {view.log.length > 0 && <Log view={view} />}
      {!hasItems && !view.result && view.job.attempt === 1 && !view.job.started_at && !view.log.length && !view.job.finished_at && (
        <Card title="Steps">
          <Empty>Nothing has run yet.</Empty>
        </Card>
      )}
    </div>
  );
}

/** A fact that is a time is shown as one; all others as they are. */
const asked = (words: string): string => (/^\d{4}-\d\d-\d\dT[\d:.]+Z$/.test(words) ? clock(words) : words);

function Right({ view }: { view: JobPage }) {
  return (
    <div class="stack">
      <Story view={view} />
      {view.cost.length > 0 && (
        <Card title="Cost by stage">
          <ul class="costs">
            {view.cost.map((one) => (
              <Cost key={one.stage} of={one} />
            ))}
          </ul>
        </Card>
      )}
      <Card title="What was asked">
        <Pairs of={view.asked.map((one) => ({ name: one.name, text: [asked(one.words), one.more].filter(Boolean).join(", ") }))} />
        <div class="padded">
          {view.parameters.length && Array.isArray(view.arguments.json) ? <Preview value={byName(view.arguments.json, view.parameters)} /> : <ValueShown of={view.arguments} whole={`/api/v1/jobs/${view.job.id}/arguments`} />}
        </div>
      </Card>
    </div>
  );
}

function Title({ view }: { view: JobPage }) {
  const state = stateOf(view.job.state);
  return (
    <div class="job-title">
      <b>{view.job.name}</b>
      <span class={`pill is-${state}`}>
        <Glyph state={state} part={partOf(view.job)} size={14} /> {view.job.state}
      </span>
      <span class="chip mono">{view.job.short}</span>
      {view.job.key && <span class="chip mono">{view.job.key}</span>}
      <a class="chip" href={pathOf("queues", view.job.queue)}>
        {view.job.queue}
      </a>
      {view.job.parent && (
        <a class="chip" href={pathOf("jobs", view.job.parent)}>
          its parent
        </a>
      )}
    </div>
  );
}

export function Job({ id }: { id: string }) {
  const view = useView<JobPage>(`view=job&id=${encodeURIComponent(id)}`);
  const [step, setStep] = useState<string | null>(null);
  const [compared, setCompared] = useState(false);
  const from = useRef<HTMLElement | null>(null);
  const open = (path: string) => {
    from.current = document.activeElement as HTMLElement;
    setStep(path);
  };
  const close = () => {
    setStep(null);
    setCompared(false);
    from.current?.focus();
  };
  const crumbs = (
    <>
      <a href={pathOf("jobs")}>Jobs</a> <span aria-hidden="true">/</span> {view && <a href={pathOf("jobs", "", `type=${encodeURIComponent(view.job.type)}`)}>{view.job.type}</a>}
    </>
  );
  return (
    <Page title={view?.title ?? "Job"} crumbs={crumbs} acts={
        view && (
          <>
            {[-1, 1].map((by) => beside(by) && (
              <button type="button" key={by} class="btn square beside" aria-label={by < 0 ? "Previous job of the list" : "Next job of the list"} onClick={() => stepJobs(by)}>
                {by < 0 ? "←" : "→"} <kbd aria-hidden="true">{by < 0 ? "[" : "]"}</kbd>
              </button>
            ))}
            <JobActs view={view} />
          </>
        )
      } ready={!!view}>
      {view && (
        <div onMouseOver={crosslight} onMouseLeave={crosslight} onFocusIn={crosslight}>
          <Title view={view} />
          <h1 class="sentence">
            <Sentence text={view.sentence} state={stateOf(view.job.state)} />
          </h1>
          {view.why && <p class="why">{local(view.why)}</p>}
          {view.made_from && (
            <p class="why">
              {view.made_from.words} <a href={pathOf("jobs", view.made_from.job)}>The first run</a>{" "}
              <button type="button" class="btn small" onClick={(event) => ((from.current = event.currentTarget), setCompared(true))}>
                Compare
              </button>
            </p>
          )}
          <Decide questions={view.questions} review={view.review} />
          <Strip stages={view.stages} state={stateOf(view.job.state)} open={open} />
          <Facts of={view.facts} />
          <div class="columns">
            <Left view={view} open={open} />
            <Right view={view} />
          </div>
          {step && <StepPanel view={view} path={step} close={close} />}
          {compared && view.made_from && <ComparePanel id={view.job.id} from={view.made_from} close={close} />}
        </div>
      )}
    </Page>
  );
}
