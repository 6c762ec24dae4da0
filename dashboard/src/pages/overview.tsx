// The overview: what needs a person, what runs, where jobs are, and how workers and queues do.
import { useMemo } from "preact/hooks";
import { clock, span } from "../clock";
import { Page, useView } from "../page";
import { Card, Empty, Key } from "../pieces/card";
import { EndsLegend, Finished, Money, QueueBar, Slots } from "../pieces/charts";
import { Glyph } from "../pieces/glyph";
import { LifecycleMap } from "../pieces/lifecycle";
import { SmallStrip } from "../pieces/strip";
import { local } from "../pieces/words";
import { pathOf } from "../router";
import { countsOf, type JobLine, type OverviewPage, partOf, type ReviewLine, stateOf, type WorkerDot } from "../views";

const TO_DO: Record<string, string> = { question: "Answer", doubt: "Decide", failure: "Look" };

export function NeedRow({ of, chosen }: { of: ReviewLine; chosen?: boolean }) {
  return (
    <li>
      <a class="need" href={pathOf("review", of.job)} aria-current={chosen ? "true" : undefined}>
        <Glyph state={of.kind === "question" ? "pending" : "review"} />
        <span class="two-lines">
          <b>{of.name}</b>
          <span>{`${of.type}: ${of.words}`}</span>
        </span>
        {chosen === undefined && <span class="btn small">{TO_DO[of.kind]}</span>}
      </a>
    </li>
  );
}

function RunningRow({ of }: { of: JobLine }) {
  const state = stateOf(of.state);
  return (
    <li>
      <a class="run" href={pathOf("jobs", of.id)}>
        <Glyph state={state} part={partOf(of)} />
        <span class="two-lines">
          <b>{of.name}</b>
          <span>
            {of.type} <span class="mono">{of.short}</span> {of.recoveries > 0 && <span class="tone is-review">continued after a lost worker</span>}
          </span>
        </span>
        <span class="cut words" title={local(of.where)}>
          {local(of.doing)}
        </span>
        <SmallStrip of={of} />
        <span class="num muted">{of.remaining_ms ? `about ${span(of.remaining_ms)}` : ""}</span>
        <span class="num spent">{of.spent_words}</span>
      </a>
    </li>
  );
}

function WorkerRow({ of }: { of: WorkerDot }) {
  return (
    <li>
      <a class={`worker ${of.state}`} href={pathOf("workers", of.id)}>
        <span class="cut">
          <b>{of.id}</b> <span class="muted">{local(of.words)}</span>
        </span>
        {of.state !== "gone" && <Slots of={of} />}
      </a>
    </li>
  );
}

const sum = (workers: WorkerDot[], of: "slots" | "busy"): number => workers.reduce((all, one) => all + (one.state === "alive" ? one[of] : 0), 0);

export function Overview() {
  const view = useView<OverviewPage>("view=overview");
  const counts = useMemo(() => countsOf(view?.states ?? []), [view?.states]);
  const slots = sum(view?.workers ?? [], "slots");
  const [first, ...rest] = view?.sentence.split(/(?<=\.) /) ?? [];
  return (
    <Page title={first?.replace(/\.$/, "") ?? "Overview"} sentence={first} more={[...rest, ...(view?.alerts ?? [])].join(" ")} ready={!!view}>
      {view && (
        <div class="stack">
          {view.needs.length > 0 && (
            <Card
              title="Needs you"
              right={
                <a href={pathOf("review")}>
                  Open the inbox <Key is="G R" />
                </a>
              }
            >
              <ul class="rows">
                {view.needs.map((one) => (
                  <NeedRow key={one.kind + one.job + (one.question ?? "")} of={one} />
                ))}
              </ul>
            </Card>
          )}
          <Card title="Running" note={view.running_total > view.running.length ? `${view.running.length} of ${view.running_total.toLocaleString("en")}` : undefined} right={<a href={pathOf("jobs", "", "state=active")}>All</a>}>
            {view.running.length ? (
              <>
                <div class="run head" aria-hidden="true">
                  <span />
                  <span>Job</span>
                  <span>Now</span>
                  <span>Stages</span>
                  <span class="num">Left</span>
                  <span class="num">Spent</span>
                </div>
                <ul class="rows">
                  {view.running.map((one) => (
                    <RunningRow key={one.id} of={one} />
                  ))}
                </ul>
              </>
            ) : (
              <Empty>No job is running.</Empty>
            )}
          </Card>
          <Card
            title="Where jobs are"
            right={
              <span>
                all 18 events are on <a href={pathOf("lifecycle")}>Lifecycle</a>
              </span>
            }
          >
            <LifecycleMap counts={counts} />
          </Card>
          <div class="halves">
            <div class="stack">
              {view.finished.first && (
                <Card title="Ended per minute" note={local(view.finished.since_words)} right={<EndsLegend />}>
                  <Finished of={view.finished} />
                </Card>
              )}
              {view.money && (
                <Card title="Money today" right={`since ${clock(view.money.since, false)}`}>
                  <Money of={view.money} />
                </Card>
              )}
            </div>
            <div class="stack">
              <Card title="Workers" right={slots ? `${sum(view.workers, "busy")} of ${slots} slots` : undefined}>
                {view.workers.length ? (
                  <ul class="rows">
                    {view.workers.map((one) => (
                      <WorkerRow key={one.id} of={one} />
                    ))}
                  </ul>
                ) : (
                  <Empty>No worker is running. Start one: holdfast worker MODULE:APP</Empty>
                )}
              </Card>
              <Card title="Queues">
                {view.queues.length ? view.queues.map((one) => <QueueBar key={one.name} of={one} />) : <Empty>No job has been submitted yet.</Empty>}
              </Card>
            </div>
          </div>
        </div>
      )}
    </Page>
  );
}
