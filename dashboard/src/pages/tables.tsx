// Queues, workers, schedules with limits and budgets, and the lifecycle: what the verbs of the same names show.
import { useEffect, useState } from "preact/hooks";
import { get } from "../api";
import { EVENTS, STATES } from "../made/states";
import { frame } from "../live";
import { Page, useView } from "../page";
import { ActButton, doIt, mayDo } from "../pieces/acts";
import { Button, Card, Empty, Pairs } from "../pieces/card";
import { QueueBar, Slots } from "../pieces/charts";
import { Glyph } from "../pieces/glyph";
import { Diagram } from "../pieces/lifecycle";
import { local, Time } from "../pieces/words";
import { pathOf } from "../router";
import {
  type Act,
  type BudgetsPage,
  countsOf,
  type JobLine,
  type LifecyclePage,
  type LimitLine,
  type LimitsPage,
  type QueueLine,
  type QueuesPage,
  type ScheduleLine,
  type SchedulesPage,
  type State,
  stateOf,
  type WorkerLine,
  type WorkerPage,
  type WorkersPage,
} from "../views";

const READ_MS = 3_000;

/** A view that has no stream: read again every few seconds while it is shown. */
function useRead<T>(path: string): T | null {
  const [found, setFound] = useState<T | null>(null);
  useEffect(() => {
    setFound(null);
    if (!path) return;
    const read = () => void (document.hidden || get<T>(path).then(setFound, () => undefined));
    read();
    const timer = setInterval(read, READ_MS);
    return () => clearInterval(timer);
  }, [path]);
  return found;
}

const REASONED = ["pause", "quiet"];

/** The acts of a queue, a worker, a schedule or a limit. Some ask for a reason first. */
function PlaceActs({ acts }: { acts: Act[] }) {
  const [open, setOpen] = useState("");
  const [reason, setReason] = useState("");
  const simple = acts.filter((one) => mayDo(one) && (one.name !== "set" && one.name !== "close"));
  const asking = simple.find((one) => one.name === open);
  if (asking)
    return (
      <form class="inline" onSubmit={(event) => (event.preventDefault(), void doIt(asking.path, { reason }).then(() => setOpen("")))}>
        <input aria-label="Reason" placeholder="Reason (optional)" value={reason} maxLength={500} ref={(box) => box?.focus()} onInput={(event) => setReason(event.currentTarget.value)} onKeyDown={(event) => event.key === "Escape" && (event.stopPropagation(), setOpen(""))} />
        <Button small main type="submit">
          {asking.words}
        </Button>
      </form>
    );
  return (
    <>
      {simple.map((one) =>
        REASONED.includes(one.name) ? (
          <Button small key={one.name} onClick={() => setOpen(one.name)}>
            {one.words}
          </Button>
        ) : (
          <ActButton small key={one.name} act={one} />
        ),
      )}
    </>
  );
}

function Crumbs({ page, name, id }: { page: string; name: string; id: string }) {
  return id ? (
    <>
      <a href={pathOf(page)}>{name}</a> <span aria-hidden="true">/</span> {id}
    </>
  ) : (
    <>{name}</>
  );
}

function QueueCard({ of }: { of: QueueLine }) {
  const { bar } = of;
  const facts = [
    { name: "Workers", text: String(bar.workers) },
    { name: "Jobs", text: `${of.total.toLocaleString("en")}, ${of.ended.toLocaleString("en")} of them ended` },
    ...(of.most_waiting ? [{ name: "At most", text: `${of.most_waiting.toLocaleString("en")} waiting (${of.when_full ?? ""}); now ${of.depth.toLocaleString("en")}` }] : []),
  ];
  return (
    <Card
      title={bar.name}
      note={bar.is_paused ? bar.pause_words : undefined}
      right={
        <>
          <a href={pathOf("jobs", "", `queue=${encodeURIComponent(bar.name)}`)}>Jobs</a>
          <PlaceActs acts={of.acts} />
        </>
      }
    >
      <QueueBar of={bar} bare />
      <Pairs of={facts} />
    </Card>
  );
}

export function Queues({ id }: { id: string }) {
  const view = useView<QueuesPage>("view=queues");
  const shown = view?.queues.filter((one) => !id || one.bar.name === id) ?? [];
  return (
    <Page title={id || "Queues"} crumbs={<Crumbs page="queues" name="Queues" id={id} />} sentence={view?.sentence} ready={!!view}>
      <div class="stack">
        {shown.map((one) => (
          <QueueCard key={one.bar.name} of={one} />
        ))}
        {view && !shown.length && <Empty>{id ? `There is no queue ${id}.` : "No queue has had a job yet."}</Empty>}
      </div>
    </Page>
  );
}

function WorkerCard({ of }: { of: WorkerLine }) {
  const facts = [
    ...(of.host ? [{ name: "Host", text: `${of.host}, process ${of.pid}` }] : []),
    ...(of.queues.length ? [{ name: "Queues", text: of.queues.join(", ") }] : []),
    ...(of.types ? [{ name: "Runs", text: of.types.join(", ") || "no type" }] : []),
    ...(of.has.length ? [{ name: "Has", text: of.has.join(", ") }] : []),
    ...(of.trouble ? [{ name: "Trouble", text: of.trouble }] : []),
  ];
  return (
    <Card
      class={of.state}
      title={
        <h2>
          <a href={pathOf("workers", of.id)}>{of.id}</a>
        </h2>
      }
      note={local(of.sentence)}
      right={
        <>
          {of.state !== "gone" && <Slots of={of} />}
          <PlaceActs acts={of.acts} />
        </>
      }
    >
      {facts.length > 0 && <Pairs of={facts} />}
      {of.running.length > 0 && (
        <ul class="rows">
          {of.running.map((one) => (
            <li key={one.job}>
              <a class="need" href={pathOf("jobs", one.job)}>
                <Glyph state={of.state === "gone" ? "review" : "active"} named />
                <span class="two-lines">
                  <b>{one.name || one.short}</b>
                  <span>
                    <span class="mono">{one.short}</span> {one.words}
                  </span>
                </span>
              </a>
            </li>
          ))}
        </ul>
      )}
    </Card>
  );
}

/** What a worker ran, among the newest jobs. */
function Ran({ jobs }: { jobs: JobLine[] }) {
  return (
    <Card title="What it ran" note="of the newest jobs">
      <ul class="rows">
        {jobs.map((one) => (
          <li key={one.id}>
            <a class="need" href={pathOf("jobs", one.id)}>
              <Glyph state={stateOf(one.state)} named />
              <span class="two-lines">
                <b>{one.name}</b>
                <span>
                  <span class="mono">{one.short}</span> {local(one.doing)}
                </span>
              </span>
            </a>
          </li>
        ))}
      </ul>
    </Card>
  );
}

export function Workers({ id }: { id: string }) {
  const view = useView<WorkersPage>("view=workers");
  const ran = useRead<WorkerPage>(id && `/api/v1/workers/${encodeURIComponent(id)}`)?.ran ?? [];
  const shown = view?.workers.filter((one) => !id || one.id === id) ?? [];
  return (
    <Page title={id || "Workers"} crumbs={<Crumbs page="workers" name="Workers" id={id} />} sentence={view?.sentence} ready={!!view}>
      <div class="stack">
        {shown.map((one) => (
          <WorkerCard key={one.id} of={one} />
        ))}
        {ran.length > 0 && <Ran jobs={ran} />}
        {view && !shown.length && <Empty>{id ? `There is no worker ${id} now.` : "No worker is running. Start one: holdfast worker MODULE:APP"}</Empty>}
      </div>
    </Page>
  );
}

function ScheduleRow({ of }: { of: ScheduleLine }) {
  const state: State = of.is_paused ? "pending" : of.trouble ? "review" : "scheduled";
  return (
    <li class="schedule">
      <Glyph state={state} />
      <span class="two-lines">
        <b>{of.name}</b>
        <span>{`${of.when}, ${of.type}`}</span>
      </span>
      <span class="two-lines">
        <span class={of.trouble ? "tone is-review" : undefined}>{of.trouble || of.sentence}</span>
        <span>
          {of.is_paused
            ? of.pause_words
            : of.next.slice(0, 3).map((at, i) => (
                <span key={at}>
                  {i ? ", " : "next "}
                  <Time at={at} seconds={false} />
                </span>
              ))}
        </span>
      </span>
      <span class="row-acts">
        {of.last_job && (
          <a class="btn small" href={pathOf("jobs", of.last_job)}>
            {of.last_state && <Glyph state={stateOf(of.last_state)} size={13} />} Last job
          </a>
        )}
        <PlaceActs acts={of.acts} />
      </span>
    </li>
  );
}

function LimitCard({ of }: { of: LimitLine }) {
  return (
    <div class="limit">
      <h3>
        <b>{of.name}</b> <span class="muted">{of.sentence}</span> {of.set_by && <span class="faint">{of.set_by}</span>}
        <span class="row-acts">
          <PlaceActs acts={of.acts} />
        </span>
      </h3>
      {of.keys.map((one) => (
        <Gauge key={one.key} name={one.key} words={one.words} part={of.at_once ? one.in_use / of.at_once : null} tone={one.closed_until ? "retryable" : "active"} />
      ))}
    </div>
  );
}

export function Schedules() {
  const view = useView<SchedulesPage>("view=schedules");
  const limits = useRead<LimitsPage>("/api/v1/limits");
  const budgets = useRead<BudgetsPage>("/api/v1/budgets");
  return (
    <Page title="Schedules" crumbs="Schedules, limits and budgets" sentence={view?.sentence} ready={!!view}>
      {view && (
        <div class="stack">
          <Card title="Schedules">
            {view.schedules.length ? (
              <ul class="rows">
                {view.schedules.map((one) => (
                  <ScheduleRow key={one.name} of={one} />
                ))}
              </ul>
            ) : (
              <Empty>Nothing is submitted by the clock.</Empty>
            )}
          </Card>
          <Card title="Limits">{limits && (limits.limits.length ? limits.limits.map((one) => <LimitCard key={one.name} of={one} />) : <Empty>{limits.sentence}</Empty>)}</Card>
          <Card title="Budgets">
            {budgets &&
              (budgets.budgets.length ? (
                budgets.budgets.map((one) => {
                  const [amount] = one.amounts;
                  const part = amount?.granted ? amount.spent / amount.granted : null;
                  return (
                    <a key={one.job} class="gauge-link" href={pathOf("jobs", one.job)}>
                      <Gauge name={one.name} words={one.words} part={part} tone={part !== null && part >= 1 ? "review" : "active"} />
                    </a>
                  );
                })
              ) : (
                <Empty>{budgets.sentence}</Empty>
              ))}
          </Card>
        </div>
      )}
    </Page>
  );
}

function Gauge({ name, words, part, tone }: { name: string; words: string; part: number | null; tone: string }) {
  return (
    <div class="queue-row">
      <span class="cut">{name}</span>
      <span class="meter wide" aria-hidden="true">
        {part !== null && <i class={`is-${tone || "active"}`} style={{ width: `${100 * Math.min(1, part)}%` }} />}
      </span>
      <span class="num muted">{words}</span>
    </div>
  );
}

export function Lifecycle() {
  useView("view=navigation");
  const view = useRead<LifecyclePage>("/api/v1/lifecycle");
  const counts = view && countsOf(view.states);
  return (
    <Page title="Lifecycle" crumbs="Lifecycle" sentence={view ? `The life of a job, and where ${frame.value?.store ?? "this store"}'s jobs are now.` : undefined} ready={!!view}>
      {view && (
        <div class="stack">
          <Card title="Nine states, eighteen events" right="click a state for its jobs">
            <Diagram counts={counts!} />
          </Card>
          <div class="halves">
            <Card title="States">
              <dl class="meanings">
                {(Object.entries(STATES) as [State, { meaning: string }][]).map(([state, { meaning }]) => (
                  <div key={state}>
                    <dt class={`tone is-${state}`}>
                      <Glyph state={state} size={14} /> {state}
                    </dt>
                    <dd>{meaning}</dd>
                  </div>
                ))}
              </dl>
            </Card>
            <Card title="Events">
              <dl class="meanings">
                {EVENTS.map((one) => (
                  <div key={one.event}>
                    <dt>{one.event}</dt>
                    <dd>{`${one.meaning} (${one.who})`}</dd>
                  </div>
                ))}
              </dl>
            </Card>
          </div>
        </div>
      )}
    </Page>
  );
}
